"""Names of a package that are loaded with their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules


def lazy_exports(package: str, exports: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`: a name is imported when it is asked for. `exports` has
    the names of each module, with spaces between."""
    homes = {name: module for module, names in exports.items() for name in names.split()}

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{home}"), name)
        setattr(modules[package], name, value)
        return value

    return load
