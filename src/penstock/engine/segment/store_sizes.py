"""Which file sizes a store directory has: by its `store.properties`, or by its files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from penstock.disk import Disk
from penstock.engine.segment.file_set import is_file_name
from penstock.engine.segment.format import BATCH_UNIT, QUEUE_UNIT
from penstock.engine.segment.java_properties import read_properties, write_properties
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.settings import MIB, FileSizes
from penstock.engine.segment.sidecar import read_whole
from penstock.errors import CorruptionError, NotAStoreError, SettingsError

_NAMES: Final = {
    "commit_log_file_size": "mappedFileSizeCommitLog",
    "consume_queue_file_size": "mappedFileSizeConsumeQueue",
    "batch_queue_file_size": "mapperFileSizeBatchConsumeQueue",
    "index_slots": "maxHashSlotNum",
    "index_entries_max": "maxIndexNum",
}

_CHECKSUM: Final = "penstockChecksum"
"""Of what this file says: with a wrong size, everything derived would be thrown away and built
anew."""

_STRICT: Final = "penstockRequiresChecksums"
"""`true` in stores that Penstock created: all of their records have a checksum of their own. A
store that RocketMQ wrote does not say so."""

ROCKETMQ_SIZES: Final = FileSizes(
    commit_log_file_size=1024 * MIB,
    consume_queue_file_size=300_000 * 20,
    batch_queue_file_size=300_000 * 46,
    index_slots=5_000_000,
    index_entries_max=20_000_000,
)
"""RocketMQ's defaults, for a directory that does not say."""


def is_store(disk: Disk, paths: StorePaths) -> bool:
    """Say whether a directory holds a store, ours or RocketMQ's."""
    return disk.exists(paths.properties) or any(
        is_file_name(name) for name in disk.list(paths.commit_log)
    )


def check_is_store(disk: Disk, paths: StorePaths) -> None:
    """Refuse what is no store, with the reason."""
    exists = disk.exists(paths.root)
    if exists and not disk.is_directory(paths.root):
        raise NotAStoreError(f"{paths.root} is no store: it is no directory")
    if not is_store(disk, paths):
        missing = "it has no commitlog/ and no store.properties"
        reason = missing if exists else "there is no such directory"
        raise NotAStoreError(f"{paths.root} is no store: {reason}")


def check_directory(disk: Disk, paths: StorePaths) -> bool:
    """Return whether a store is there; refuse a directory that holds something else."""
    if is_store(disk, paths):
        return True
    others = [name for name in disk.list(paths.root) if not _may_be_ours(disk, paths.root, name)]
    if others:
        raise NotAStoreError(
            f"{paths.root} is no store: it has no commitlog/ and no store.properties, "
            f"but {', '.join(others[:3])}{', …' if len(others) > 3 else ''}; "
            "choose an empty or a new directory"
        )
    return False


def _may_be_ours(disk: Disk, root: str, name: str) -> bool:
    """Say whether a creation that a crash cut short can have left this: the store's own empty
    directories, and files that were being replaced."""
    if name in ("lock", "penstock") or name.endswith(".tmp"):
        return True
    return name in ("commitlog", "index") and not disk.list(f"{root}/{name}")


def stored_sizes(disk: Disk, paths: StorePaths) -> FileSizes:
    """Return the sizes of an existing store."""
    data = read_whole(disk, paths.properties)
    if data is None:
        return _sizes_of_files(disk, paths)
    values = read_properties(data.decode("utf-8", "replace"))
    found: dict[str, int] = {}
    for ours, theirs in _NAMES.items():
        text = values.get(theirs)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit()):
            raise NotAStoreError(f"{paths.properties}: {theirs} is {text!r}, expected a number")
        found[ours] = int(text)
    if values.get(_CHECKSUM, _checksum(values)) != _checksum(values):
        reason = "the values do not match their checksum"
        raise CorruptionError(paths.properties, position=0, reason=reason)
    if len(found) == len(_NAMES):
        return FileSizes(**found).check()
    return FileSizes(**{**_as_dict(_sizes_of_files(disk, paths)), **found}).check()


def requires_checksums(disk: Disk, paths: StorePaths) -> bool:
    """Say whether a record without a checksum of its own is damaged. `stored_sizes` has made sure
    that the answer is what was written down."""
    data = read_whole(disk, paths.properties)
    values = {} if data is None else read_properties(data.decode("utf-8", "replace"))
    return values.get(_STRICT) == "true"


def _sizes_of_files(disk: Disk, paths: StorePaths) -> FileSizes:
    """Return the sizes that the files have; a queue file that a crash left short says nothing."""
    found = _as_dict(ROCKETMQ_SIZES)
    for field, size, unit_size in (
        ("commit_log_file_size", _first_size(disk, paths.commit_log), 1),
        ("consume_queue_file_size", _first_queue_size(disk, paths.consume_queue), QUEUE_UNIT.size),
        ("batch_queue_file_size", _first_queue_size(disk, paths.batch_queue), BATCH_UNIT.size),
    ):
        if size and size % unit_size == 0:
            found[field] = size
    return FileSizes(**found).check()


def _first_queue_size(disk: Disk, root: str) -> int:
    for topic in disk.list(root):
        for queue in disk.list(f"{root}/{topic}"):
            size = _first_size(disk, f"{root}/{topic}/{queue}")
            if size:
                return size
    return 0


def _first_size(disk: Disk, directory: str) -> int:
    for name in disk.list(directory):
        if is_file_name(name):
            file = disk.open(f"{directory}/{name}", writable=False)
            size = file.size()
            file.close()
            return size
    return 0


def save_sizes(disk: Disk, paths: StorePaths, sizes: FileSizes, *, strict: bool) -> None:
    values = {theirs: str(getattr(sizes, ours)) for ours, theirs in _NAMES.items()}
    if strict:
        values[_STRICT] = "true"
    values[_CHECKSUM] = _checksum(values)
    disk.replace(paths.properties, write_properties(values).encode())


def _checksum(values: Mapping[str, str]) -> str:
    names = (*_NAMES.values(), _STRICT)
    known = ",".join(f"{name}={values[name]}" for name in names if name in values)
    return f"{zlib.crc32(known.encode('utf-8', 'replace')):08x}"


def agree(paths: StorePaths, stored: FileSizes, wanted: FileSizes | None) -> FileSizes:
    """Return the stored sizes; refuse other ones that were asked for by name."""
    if wanted is None or wanted.check() == stored:
        return stored
    for field in _NAMES:
        ours, theirs = getattr(wanted.check(), field), getattr(stored, field)
        if ours != theirs:
            raise SettingsError(
                f"{paths.root} was created with {field} = {theirs}, the settings say {ours}; "
                "sizes are fixed when a store is created: leave the setting out"
            )
    return stored


def _as_dict(sizes: FileSizes) -> dict[str, int]:
    return {field: getattr(sizes, field) for field in _NAMES}
