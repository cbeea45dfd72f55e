"""Engines of other packages, found by their entry points.

A package offers an engine with an entry point of the group `penstock.engines`:

    [project.entry-points."penstock.engines"]
    jsonl = "my_package:open_engine"

A topic asks for it with the storage type `plugin:jsonl`. `open_engine` takes an `EngineContext` and
returns a `StorageEngine`; a node calls it when a topic first needs the engine, and once per process
unless it raises. The entry points of the installation are read then, not when a node starts.

The gate for such an engine is the conformance suite in `penstock.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final, cast

from msgspec import Struct

from penstock.engine.contract import StorageEngine
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import SetupError
from penstock.platform.clock import Clock

GROUP: Final = "penstock.engines"
PREFIX: Final = "plugin:"
DIRECTORY: Final = "plugins"
"""In a node's data directory: holds a directory for each of these engines."""


class EngineContext(Struct, frozen=True):
    """What a node gives to an engine of another package."""

    path: str
    """A directory that exists and that only this engine uses. `penstock-id` in it is the node's."""
    clock: Clock
    """The source of every time: record timestamps, expiry, retention."""
    limits: StableOffsets
    """`stable_until(shard.name)` is the first offset that an open transaction may still change;
    compaction ends before it."""


EnginePlugin = Callable[[EngineContext], StorageEngine]


def plugin_name(storage_type: str) -> str | None:
    """Return the name of the entry point that a storage type asks for; None for built-in types."""
    return storage_type.removeprefix(PREFIX) if storage_type.startswith(PREFIX) else None


def load_plugin(name: str) -> EnginePlugin:
    """Import what the entry point `name` refers to. Raises `SetupError` when no installed package
    has it, when several have it, or when it cannot be imported."""
    points = list(entry_points(group=GROUP, name=name))
    if len(points) != 1:
        installed = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise SetupError(
            f"{len(points)} installed packages offer the engine {name!r} (group {GROUP!r}; "
            f"installed: {installed}); install exactly one package that does, on every node"
        )
    try:
        plugin = points[0].load()
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"the engine {name!r} cannot be imported from {points[0].value!r}: {error}"
        ) from error
    if not callable(plugin):
        raise SetupError(f"the engine {name!r} is {points[0].value!r}, which cannot be called")
    return cast("EnginePlugin", plugin)
