"""Names of a package that are loaded with their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from sys import modules


def lazy_exports(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`: a name is imported when it is asked for."""
    homes = {name: module for module, names in names_by_module.items() for name in names}

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{home}"), name)
        setattr(modules[package], name, value)
        return value

    return load
