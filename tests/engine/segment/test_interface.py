"""What other packages may import of the segment engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.engine import segment

LISTED = """
import sys
import penstock.engine.segment
print(*(name for name in sys.modules if name.startswith("penstock.engine.segment.")))
"""


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'CommitLogs'"):
        getattr(segment, "CommitLogs")  # noqa: B009 the type checker knows that it is missing


def test_importing_the_package_loads_none_of_its_modules() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LISTED], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == []
