"""Whose the directories are that a store has outside of its own.

    <directory>/.penstock/owner   id and path of the store that it belongs to
    <directory>/.penstock/lock    locked while that store is open

Two stores that are configured with the same `commit_log_path` would write into one log, each over
the records of the other; with the same path of queues or index, one would remove what the other
uses. So a directory has one owner, and another store is refused before anything is changed.

The owner is known by an id in its `store.properties`: it may be moved, and the directory, too. A
directory without a mark, such as RocketMQ's, becomes the property of the first that opens it.
RocketMQ passes over directories inside a log and among the queues.
"""

from __future__ import annotations

import uuid
import zlib
from typing import Final

from msgspec import Struct

from penstock.engine.segment.paths import StorePaths, is_index_name
from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.engine.segment.rocketmq.java_properties import read_properties, write_properties
from penstock.errors import NotAStoreError, SettingsError
from penstock.platform.disk import Disk, absolute_path

MARK: Final = ".penstock"
"""Its files are not to be opened by the way: to close the file of a lock ends the lock."""
_PARTS_OF_A_STORE: Final = frozenset({"commitlog", "consumequeue", "batchconsumequeue", "index"})


class _Owner(Struct, frozen=True):
    store_id: str
    root: str


class StoreLock:
    """The locks of a store and of its directories elsewhere, as one."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        """Lock the store's own directory; `LockedError` when another process has it open."""
        self._disk: Final = disk
        self._locks: Final = [disk.lock(paths.lock)]

    def add_outer(self, paths: StorePaths) -> None:
        """Lock the directories elsewhere, too."""
        for directory in outer_directories(paths):
            self._locks.append(self._disk.lock(f"{directory}/{MARK}/lock"))

    def release(self) -> None:
        while self._locks:
            self._locks.pop().release()


def outer_directories(paths: StorePaths) -> list[str]:
    """Return the directories of a store that do not lie in its own."""
    return [path for path in _directories(paths).values() if not _is_inside(path, paths.root)]


def draw_store_id() -> str:
    return uuid.uuid4().hex


def check_owners(disk: Disk, paths: StorePaths, store_id: str) -> None:
    """Refuse directories that belong to another store; nothing is changed."""
    for setting, directory in _directories(paths).items():
        owner = _owner_of(disk, directory)
        if owner is None and not _is_inside(directory, paths.root):
            owner = _store_around(disk, directory)
        if owner is not None and (owner.store_id != store_id or not store_id):
            raise SettingsError(
                f"{directory} belongs to the store {owner.root}, not to {paths.root}: give each "
                f"store a {setting} of its own; if {owner.root} is gone for good, remove "
                f"{directory}/{MARK}"
            )


def check_unused(disk: Disk, paths: StorePaths) -> None:
    """Refuse directories for a new store in which there are queues or indexes already."""
    for setting, directory in _directories(paths).items():
        if _is_inside(directory, paths.root) or _owner_of(disk, directory) is not None:
            continue
        if any(_is_queue_or_index(disk, directory, name) for name in disk.list(directory)):
            raise NotAStoreError(
                f"{directory} holds files of a store, and {paths.root} holds none; choose an empty "
                f"or a new directory as {setting}"
            )


def mark_owned(disk: Disk, paths: StorePaths, store_id: str) -> None:
    """Write into all directories elsewhere whose they are. The store knows its id by now."""
    for directory in outer_directories(paths):
        owner = _Owner(store_id, absolute_path(paths.root))
        if _owner_of(disk, directory) != owner:
            values = {"storeId": owner.store_id, "storePath": owner.root}
            values["checksum"] = _checksum(owner)
            disk.replace(f"{directory}/{MARK}/owner", write_properties(values).encode())


def _directories(paths: StorePaths) -> dict[str, str]:
    """Return the directories that may lie elsewhere, by the settings that say so."""
    return {
        "commit_log_path": paths.commit_log,
        "consume_queue_path": paths.consume_queue,
        "index_path": paths.index,
    }


def _is_inside(path: str, root: str) -> bool:
    return f"{absolute_path(path)}/".startswith(f"{absolute_path(root).rstrip('/')}/")


def _owner_of(disk: Disk, directory: str) -> _Owner | None:
    """Return whose a directory is; a damaged mark says nothing."""
    data = read_whole(disk, f"{directory}/{MARK}/owner")
    if data is None:
        return None
    values = read_properties(data.decode("utf-8", "replace"))
    owner = _Owner(values.get("storeId", ""), values.get("storePath", ""))
    return owner if values.get("checksum") == _checksum(owner) else None


def _checksum(owner: _Owner) -> str:
    return f"{zlib.crc32(f'{owner.store_id} {owner.root}'.encode('utf-8', 'replace')):08x}"


def _store_around(disk: Disk, directory: str) -> _Owner | None:
    """Return the store that an unmarked directory is an ordinary part of."""
    above, _, name = absolute_path(directory).rpartition("/")
    is_store = name in _PARTS_OF_A_STORE and any(
        disk.exists(f"{around}/{sign}")
        for around in (above, directory.rstrip("/").rpartition("/")[0])
        for sign in ("store.properties", "lock")
    )
    return _Owner("", above) if is_store else None


def _is_queue_or_index(disk: Disk, directory: str, name: str) -> bool:
    if not disk.is_directory(f"{directory}/{name}"):
        return is_index_name(name)
    return any(queue.isascii() and queue.isdigit() for queue in disk.list(f"{directory}/{name}"))
