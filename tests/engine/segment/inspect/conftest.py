"""The same stores as for views."""

from __future__ import annotations

from tests.engine.segment.readonly.conftest import copy, golden_copy, written

__all__ = ["copy", "golden_copy", "written"]
