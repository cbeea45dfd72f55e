"""The package's own names: loaded with their first use, typed by a stub that says the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

STUB = Path(penstock.__file__).with_suffix(".pyi")


def test_the_stub_and_the_package_have_the_same_names() -> None:
    tree = ast.parse(STUB.read_text("utf-8"))
    declared = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes: dict[str, str] = vars(penstock)["_HOMES"]
    assert {f"penstock.{homes[str(name)]}" for name in declared} == set(declared.values())
    assert sorted(declared, key=str) == sorted(homes) == sorted(vars(penstock)["__all__"])
    for name in declared:
        assert getattr(penstock, str(name)).__name__ == name


def test_importing_the_package_loads_nothing_of_the_store() -> None:
    code = "import sys, penstock.record; print(sorted(m for m in sys.modules if 'penstock' in m))"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    loaded = ast.literal_eval(found.stdout.decode())
    assert loaded == ["penstock", "penstock.errors", "penstock.record"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = penstock.opne  # type: ignore[attr-defined] # wrong on purpose
    assert "open" in dir(penstock)
