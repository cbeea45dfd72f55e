"""The same stores as for views."""

from __future__ import annotations

from tests.segment.view.conftest import copy, golden, golden_copy, written

__all__ = ["copy", "golden", "golden_copy", "written"]
