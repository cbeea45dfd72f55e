"""Knows the engines' directories again: what was kept in one that is gone is lost, and not empty.

    DATA/engines                a line for each engine that was opened here: name, id, here or lost
    DATA/segment/penstock/id    the id, where the engine itself is
    DATA/rocksdb/penstock-id
    DATA/plugins/NAME/penstock-id   of an engine of another package

A directory may be deleted, or its disk not be mounted, while the metadata stay: the start would
make all shards anew, empty, and serve them. Instead they are reported as lost, before anything is
served. As long as nothing new was made in its place, the directory can be put back: its shards are
found again, except those that an operator had begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

from penstock.engine.contract import StorageEngine
from penstock.engine.engine_set import EngineSet
from penstock.engine.plugins import DIRECTORY, PREFIX, EngineContext, load_plugin, plugin_name
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import CorruptionError
from penstock.meta import MetaClient
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger

KNOWN_ENGINES: Final = "engines"
_HERE: Final = "here"
_LOST: Final = "lost"
_SIZE_MAX: Final = 4096
_log: Final = get_logger(__name__)
T = TypeVar("T")


PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "segment": ("segment/penstock/id", "segment/commitlog"),
    "rocksdb": ("rocksdb/penstock-id", "rocksdb/CURRENT"),
}
"""Of every engine that keeps records: the file of its id, and what is there whenever it is."""
LOG_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    **PLACES,
    "segment": ("segment/penstock/id", "segment/store.properties"),
}
"""The same for a node whose commit log has a path of its own; the store says when that is gone."""


class EngineIdentities:
    """The file `DATA/engines`. The caller holds the lock of the directory."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        draw_id: Callable[[], str],
        places: Mapping[str, tuple[str, str]] = PLACES,
    ) -> None:
        self._places: Final = places
        self._disk: Final = disk
        self._root: Final = root
        self._draw_id: Final = draw_id
        self._lines: Final[dict[str, tuple[str, str]]] = {}
        for line in self._read(KNOWN_ENGINES).splitlines():
            name, engine_id, state = (*line.split(), "", "", "")[:3]
            is_known = name in places or plugin_name(name) is not None
            if is_known and engine_id and state in {_HERE, _LOST}:
                self._lines[name] = (engine_id, state)

    def gone(self) -> list[tuple[str, str]]:
        """Return the engines that were here and are not: name and id. Raise `CorruptionError` for
        one that is another than was here: its shards would be deleted as unknown."""
        missing = []
        for name, (engine_id, state) in self._lines.items():
            there = self._id_of(name)
            if there is not None and there not in {"", engine_id}:
                raise CorruptionError(
                    f"{self._root}/{name}",
                    position=0,
                    reason=f"this is not the directory that was here (id {engine_id}, "
                    f"found {there}); put that one back, or move this one away",
                )
            if state == _HERE and there is None:
                missing.append((name, engine_id))
        return missing

    def back(self) -> list[tuple[str, str]]:
        """Return the engines that were lost and are here again."""
        return [
            (name, engine_id)
            for name, (engine_id, state) in self._lines.items()
            if state == _LOST and self._id_of(name) == engine_id
        ]

    def record_opened(self, name: str) -> None:
        """Know the engine from now on, before it takes a record."""
        there = self._id_of(name)
        line = self._lines.get(name)
        if line is not None and there == line[0]:
            return  # if it was lost, it is not found yet
        if not there:
            there = self._draw_id() if line is None or line[1] == _LOST else line[0]
            self._disk.replace(f"{self._root}/{self._place(name)[0]}", f"{there}\n".encode())
        self._save_line(name, there, _HERE)

    def id_of(self, name: str) -> str:
        """Return the id of an engine that was opened here; empty when it was not."""
        return self._lines.get(name, ("", ""))[0]

    def record_lost(self, name: str) -> None:
        self._save_line(name, self._lines[name][0], _LOST)

    def record_present(self, name: str) -> None:
        self._save_line(name, self._lines[name][0], _HERE)

    def _save_line(self, name: str, engine_id: str, state: str) -> None:
        lines = self._lines | {name: (engine_id, state)}
        text = "".join(
            f"{name} {known_id} {state}\n" for name, (known_id, state) in sorted(lines.items())
        )
        self._disk.replace(f"{self._root}/{KNOWN_ENGINES}", text.encode())
        self._lines[name] = (engine_id, state)

    def open_plugin(self, name: str, clock: Clock, limits: StableOffsets) -> StorageEngine:
        """Open the engine of another package in its own directory. Raises `SetupError` when the
        package is missing."""
        plugin = load_plugin(name)
        path = f"{self._root}/{DIRECTORY}/{name}"
        self._disk.make_directory(path)
        engine = plugin(EngineContext(path, clock, limits))
        try:
            self.record_opened(f"{PREFIX}{name}")
        except BaseException:
            engine.close()
            raise
        return engine

    def plugins(self) -> list[str]:
        """Return the storage types of other packages' engines that were opened here."""
        return [name for name in self._lines if plugin_name(name) is not None]

    def _place(self, name: str) -> tuple[str, str]:
        plugin = plugin_name(name)
        if plugin is None:
            return self._places[name]
        path = f"{DIRECTORY}/{plugin}/penstock-id"
        return path, path

    def _id_of(self, name: str) -> str | None:
        """Return the id of the engine that is here now, empty if it has none; None without one."""
        id_path, content = self._place(name)
        if not self._disk.exists(f"{self._root}/{content}"):
            return None
        return self._read(id_path).strip()

    def _read(self, name: str) -> str:
        path = f"{self._root}/{name}"
        if not self._disk.exists(path):
            return ""
        file = self._disk.open(path, writable=False)
        try:
            return file.read_at(0, _SIZE_MAX).decode("ascii", "replace")
        finally:
            file.close()


class Insist(Protocol):
    """Does what needs a majority again and again, until it is done."""

    def __call__(self, step: Callable[[], T], /) -> T: ...


def reconcile_engines(
    known: EngineIdentities,
    meta: MetaClient,
    engines: EngineSet,
    storage_types: Mapping[str, str],
    insist: Insist,
) -> None:
    """Report what is gone and what is back, before anything is served."""
    for name, engine_id in known.gone():
        _log.error("engine_gone", engine=name, id=engine_id)
        insist(partial(meta.report_engine_loss, storage_types.get(name, name), engine_id))
        known.record_lost(name)
    for name, engine_id in known.back():
        _log.warning("engine_back", engine=name, id=engine_id)
        engine = engines.get(storage_types.get(name, name))
        for shard in engine.list_shard():
            if not insist(partial(meta.restore_lost_shard, shard, engine_id)):
                engine.delete_shard(shard)
        known.record_present(name)
