"""The report of an executor on itself. Runs where nothing of ours may be installed: this module is
sent by value, and uses the standard library alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def report(names: tuple[str, ...], shared: str) -> str:
    """Return a JSON object: the host, Python's version, which modules are missing, which version of
    penstock there is, and whether the path `shared` is seen."""
    import importlib.util
    import json
    import os
    import platform
    import sys

    missing = []
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            missing.append(name)
    return json.dumps(
        {
            "host": platform.node(),
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
            "missing": missing,
            "penstock": installed_version(),
            "sees_path": not shared or os.path.exists(shared),
        }
    )


def installed_version() -> str | None:
    """Return the version of penstock that is installed; None where this is not known."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:
        return None


def report_of_task(names: tuple[str, ...], shared: str) -> Callable[[int], str]:
    """Return a function for a task."""

    def ask(_: int) -> str:
        return report(names, shared)

    return ask


def report_rows(
    names: tuple[str, ...], shared: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`, which gives one row."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_arrays([pa.array([report(names, shared)])], ["answer"])

    return ask
