"""What other packages may import of the meta service."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import meta

LISTED = """
import sys
import penstock.meta.raft
print(*(name for name in sys.modules if name.startswith("penstock.")))
"""


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'penstock\.meta' has no attribute 'RaftGroup'"):
        getattr(meta, "RaftGroup")  # noqa: B009 the type checker knows that it is missing


def test_importing_the_interfaces_loads_none_of_their_modules() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LISTED], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(ran.stdout.split())
    exports = {"penstock.platform", "penstock.platform.lazy_exports"}
    assert loaded - exports == {"penstock.meta", "penstock.meta.raft"}
