"""What other packages may import of the meta service."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock import meta
from penstock.meta import raft

LISTED = """
import sys
import penstock.meta.raft
print(*(name for name in sys.modules if name.startswith("penstock.")))
"""


@pytest.mark.parametrize("package", [meta, raft])
def test_every_exported_name_is_the_one_that_the_type_checker_sees(package: ModuleType) -> None:
    source = ast.parse(Path(package.__file__ or "").read_text("utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module != "penstock.platform.lazy_exports"
        for alias in node.names
    }
    del typed["TYPE_CHECKING"]
    assert set(typed) == set(package.__all__)
    for name, module in typed.items():
        assert module is not None
        __import__(module)
        assert getattr(package, name) is getattr(sys.modules[module], name)


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
