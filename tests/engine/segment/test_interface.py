"""What other packages may import of the segment engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.engine import segment

LISTED = """
import sys
import penstock.engine.segment
print(*(name for name in sys.modules if name.startswith("penstock.engine.segment.")))
"""


def test_every_exported_name_is_the_one_that_the_type_checker_sees() -> None:
    source = ast.parse(Path(segment.__file__ or "").read_text("utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(segment.__name__)
        for alias in node.names
    }
    assert set(typed) == set(segment.__all__)
    del typed["AnyArray"]  # an alias for annotations, which needs pyarrow's stubs
    for name, module in typed.items():
        assert module is not None
        __import__(module)
        assert getattr(segment, name) is getattr(sys.modules[module], name)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'CommitLogs'"):
        getattr(segment, "CommitLogs")  # noqa: B009 the type checker knows that it is missing


def test_importing_the_package_loads_none_of_its_modules() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LISTED], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == []
