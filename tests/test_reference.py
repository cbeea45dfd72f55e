"""Every public name has a docstring: the API reference is made of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text("utf-8")
MODULES = re.findall(r"^PUBLIC := (.*)$", MAKEFILE, re.MULTILINE)[0].split()


def public_names(module: str) -> Iterator[tuple[str, object]]:
    """Yield what a module exports: `__all__`, or the classes and functions that it defines."""
    found = import_module(module)
    names = getattr(found, "__all__", None)
    for name in names or [name for name in vars(found) if not name.startswith("_")]:
        value = getattr(found, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        if names or value.__module__ == module:
            yield f"{module}.{name}", value


def members(owner: type) -> Iterator[tuple[str, object]]:
    """Yield methods and properties, also inherited ones, that have public names."""
    for name in dir(owner):
        value = inspect.getattr_static(owner, name)
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        yield name, value


def test_every_public_name_has_a_docstring() -> None:
    silent: list[str] = []
    count = 0
    for module in MODULES:
        for path, value in public_names(module):
            count += 1
            if not value.__doc__:
                silent.append(path)
            if inspect.isclass(value):
                silent += [
                    f"{path}.{name}" for name, _ in members(value)
                    if not inspect.getdoc(getattr(value, name))
                ]  # fmt: skip
    assert silent == []
    assert count > 50
