"""Every package says what others may use of it, and other packages use nothing else.

A package either has exports (`__all__`: names, or modules that are interfaces themselves), or its
docstring says to which package it is internal.
"""

from __future__ import annotations

import ast
import re
from ast import unparse
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

SOURCES: Final = Path(__file__).parents[1] / "src"
INTERNAL: Final = re.compile(r"[Ii]nternal\s+to\s+`(penstock(?:\.\w+)+)`")

# Modules that other packages import although `__all__` does not name them, and why.
EXCEPTIONS: Final = {
    "penstock.pipeline.continuous": "public; `__all__` is for users of Spark",
    "penstock.pipeline.source": "Spark finds data sources in modules that are called pyspark_*",
}

# An alias for annotations, which needs the stubs of pyarrow.
TYPES_ONLY: Final = {"AnyArray"}


class Import(NamedTuple):
    importer: str
    module: str
    name: str | None
    """A name of the module; None if the module itself is imported."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SOURCES.rglob("*.py"))}


@cache
def packages() -> dict[str, ast.Module]:
    return {
        name: ast.parse(path.read_text("utf-8"))
        for name, path in modules().items()
        if path.name == "__init__.py" and name.startswith("penstock.")
    }


@cache
def exports(package: str) -> frozenset[str] | None:
    """Return what `__all__` of a package names; None without it."""
    for node in packages()[package].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return None


def owner(package: str) -> str | None:
    """Return the package that a package without exports is internal to."""
    found = INTERNAL.search(ast.get_docstring(packages()[package]) or "")
    return found[1] if found else None


def imports_of(importer: str, path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in modules():
                    yield Import(importer, whole, None)
                elif node.module in modules():
                    yield Import(importer, node.module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules():
                    yield Import(importer, alias.name, None)


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(
        found for importer, path in modules().items() for found in imports_of(importer, path)
    )


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def is_exported(found: Import) -> bool:
    """Say whether another package may import this: a name of a package's exports, a module among
    the exports of its package, or a package that has exports itself."""
    if found.module in packages():
        names = exports(found.module)
        return names is not None and (found.name is None or found.name in names)
    package, _, module = found.module.rpartition(".")
    return package not in packages() or module in (exports(package) or ())


def problem_of(package: str) -> str | None:
    """Return what is wrong with a package that has no exports."""
    inner = owner(package)
    if inner is None:
        return "has no `__all__`, and its docstring does not say to what it is internal"
    if inner not in packages() or inner == package or not is_inside(package, inner):
        return f"is not in {inner}"
    outside = {
        found.importer
        for found in all_imports()
        if is_inside(found.module, package) and not is_inside(found.importer, inner)
    }
    return f"is internal to {inner}, but imported by {sorted(outside)}" if outside else None


def test_a_package_has_exports_or_says_to_which_package_it_is_internal() -> None:
    without = [package for package in packages() if exports(package) is None]
    assert without
    problems = {package: problem_of(package) for package in without}
    assert {package: problem for package, problem in problems.items() if problem} == {}


def test_other_packages_import_exports_only() -> None:
    refused = {
        f"{found.importer} imports {found.name or 'the module'} of {found.module}"
        for found in all_imports()
        if not is_inside(found.importer, ".".join(found.module.split(".")[:2]))
        and not is_exported(found)
        and found.module not in EXCEPTIONS
    }
    assert refused == set(), "import what `__all__` names, or add the module or the name to it"


def typed_exports(package: str) -> dict[str, str]:
    """Return the names that a package's `__init__` imports of its own modules, and their homes."""
    return {
        alias.name: node.module
        for node in ast.walk(packages()[package])
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}.")
        for alias in node.names
        if node.module is not None
    }


def test_what_a_package_exports_exists() -> None:
    for package in packages():
        interfaces = {name for name in exports(package) or () if f"{package}.{name}" in modules()}
        for name in (exports(package) or frozenset()) - interfaces:
            assert hasattr(import_module(package), name) or name in TYPES_ONLY, f"{package}: {name}"


def test_a_name_that_is_loaded_with_its_first_use_is_the_one_that_the_type_checker_sees() -> None:
    lazy = [
        package for package, tree in packages().items() if "lazy_exports(__name__" in unparse(tree)
    ]
    assert {"penstock.adapter", "penstock.engine.segment", "penstock.meta"} < set(lazy)
    for package in lazy:
        typed = typed_exports(package)
        interfaces = {name for name in exports(package) or () if f"{package}.{name}" in modules()}
        assert set(typed) == (exports(package) or set()) - interfaces, package
        for name in set(typed) - TYPES_ONLY:
            home = import_module(typed[name])
            assert getattr(import_module(package), name) is getattr(home, name), (
                f"{package}: {name}"
            )
