"""Which file sizes a store directory has: by its `store.properties`, or by its files.

The file has a copy in `penstock/`: without it, sizes would have to be guessed, and everything that
is derived be built anew with others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.codec.format import BATCH_UNIT, QUEUE_UNIT
from penstock.engine.segment.log.disk_errors import is_full, opening_errors
from penstock.engine.segment.log.log_files import is_file_name
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.engine.segment.rocketmq.java_properties import read_properties, write_properties
from penstock.engine.segment.settings import MIB, FileSizes, SegmentSettings
from penstock.errors import CorruptionError, NotAStoreError, SettingsError
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger

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

_STORE_ID: Final = "penstockStoreId"
"""Of stores with directories elsewhere: see `directory_owners`."""

_WRONG_CHECKSUM: Final = "the values do not match their checksum"

ROCKETMQ_SIZES: Final = FileSizes(
    commit_log_file_size=1024 * MIB,
    consume_queue_file_size=300_000 * 20,
    batch_queue_file_size=300_000 * 46,
    index_slots=5_000_000,
    index_entries_max=20_000_000,
)
"""RocketMQ's defaults, for a directory that does not say."""


_FILES_THAT_FIT: Final = 8
_FITTED_SIZE_MIN: Final = 1 * MIB

_log: Final = get_logger(__name__)


class StoreProperties(Struct, frozen=True):
    """What `store.properties` says."""

    sizes: FileSizes
    strict: bool = False
    """A record without a checksum of its own is damaged."""
    store_id: str = ""
    from_copy: bool = False
    """The file itself is gone or damaged."""


def is_store(disk: Disk, paths: StorePaths) -> bool:
    """Say whether a directory holds a store, ours or RocketMQ's."""
    return disk.exists(paths.properties) or any(
        is_file_name(name) for name in disk.list(paths.commit_log)
    )


def holds_store(disk: Disk, root: str) -> bool:
    """The same of a directory that has everything in it."""
    with opening_errors(root):
        return is_store(disk, StorePaths(root, SegmentSettings()))


def check_is_store(disk: Disk, paths: StorePaths) -> None:
    """Reject a path that is not a store, with the reason."""
    exists = disk.exists(paths.root)
    if exists and not disk.is_directory(paths.root):
        raise NotAStoreError(f"{paths.root} is not a store: it is not a directory")
    if not is_store(disk, paths):
        missing = "it has no commitlog/ and no store.properties"
        reason = missing if exists else "there is no such directory"
        raise NotAStoreError(f"{paths.root} is not a store: {reason}")


def check_directory(disk: Disk, paths: StorePaths) -> bool:
    """Return whether a store is there; refuse a directory that holds something else."""
    if is_store(disk, paths):
        return True
    others = [name for name in disk.list(paths.root) if not _may_be_ours(disk, paths.root, name)]
    if others:
        raise NotAStoreError(
            f"{paths.root} is not a store: it has no commitlog/ and no store.properties, "
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


def stored_properties(disk: Disk, paths: StorePaths) -> StoreProperties:
    """Return what an existing store says of itself."""
    values = _values_in(disk, paths.properties)
    problem = _problem_of(values)
    if values is None or problem is not None:
        copied = _good_copy(disk, paths)
        if copied is not None:
            return copied
    if values is None:
        return StoreProperties(_sizes_of_files(disk, paths))
    sizes = _numbers_of(paths.properties, values)
    if _checksum(values) != values.get(_CHECKSUM, _checksum(values)):
        raise CorruptionError(paths.properties, position=0, reason=_WRONG_CHECKSUM)
    if len(sizes) < len(_NAMES):
        sizes = {**_as_dict(_sizes_of_files(disk, paths)), **sizes}
    return StoreProperties(
        FileSizes(**sizes).check(),
        strict=values.get(_STRICT) == "true",
        store_id=values.get(_STORE_ID, ""),
    )


def stored_id(disk: Disk, paths: StorePaths) -> str:
    """Return the id of a store, or nothing when it has none; whatever else is wrong."""
    for path in (paths.properties, paths.properties_copy):
        values = _values_in(disk, path)
        if values is not None and _problem_of(values) is None:
            return values.get(_STORE_ID, "")
    return ""


def _good_copy(disk: Disk, paths: StorePaths) -> StoreProperties | None:
    values = _values_in(disk, paths.properties_copy)
    if values is None or _problem_of(values) is not None or _CHECKSUM not in values:
        return None
    return StoreProperties(
        FileSizes(**_numbers_of(paths.properties_copy, values)).check(),
        strict=values.get(_STRICT) == "true",
        store_id=values.get(_STORE_ID, ""),
        from_copy=True,
    )


def properties_problems(disk: Disk, paths: StorePaths) -> Iterator[tuple[str, str]]:
    """Yield the files that should say what the store is like and do not, with the reason."""
    values, copied = (_values_in(disk, path) for path in (paths.properties, paths.properties_copy))
    if copied is not None:
        problem = "this file is missing" if values is None else _problem_of(values)
        if problem is not None and _good_copy(disk, paths) is not None:
            yield paths.properties, f"{problem}; opening the store restores it from its copy"
        problem = _problem_of(copied)
        if problem is None and _CHECKSUM not in copied:
            problem = "the checksum is missing"
        if problem is not None:
            yield paths.properties_copy, f"{problem}; opening the store writes it anew"


def _values_in(disk: Disk, path: str) -> dict[str, str] | None:
    data = read_whole(disk, path)
    return None if data is None else read_properties(data.decode("utf-8", "replace"))


def _problem_of(values: Mapping[str, str] | None) -> str | None:
    """Say what is wrong with a file that lacks something, or is not as it was written. One without
    a checksum belongs to another program, and may hold anything."""
    if values is None:
        return None
    if values.get(_CHECKSUM, _checksum(values)) != _checksum(values):
        return _WRONG_CHECKSUM
    if any(name not in values for name in _NAMES.values()):
        return "not all sizes are in it"
    return None


def _numbers_of(path: str, values: Mapping[str, str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for ours, theirs in _NAMES.items():
        text = values.get(theirs)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit()):
            raise NotAStoreError(f"{path}: {theirs} is {text!r}, expected a number")
        numbers[ours] = int(text)
    return numbers


def _sizes_of_files(disk: Disk, paths: StorePaths) -> FileSizes:
    """Return the sizes that the files have; a queue file that a crash left short says nothing."""
    sizes = _as_dict(ROCKETMQ_SIZES)
    for field, size, unit_size in (
        ("commit_log_file_size", _first_size(disk, paths.commit_log), 1),
        ("consume_queue_file_size", _first_queue_size(disk, paths.consume_queue), QUEUE_UNIT.size),
        ("batch_queue_file_size", _first_queue_size(disk, paths.batch_queue), BATCH_UNIT.size),
    ):
        if size and size % unit_size == 0:
            sizes[field] = size
    return FileSizes(**sizes).check()


def _first_queue_size(disk: Disk, root: str) -> int:
    for topic in disk.list(root):
        for queue in disk.list(f"{root}/{topic}"):
            if queue.isascii() and queue.isdigit():
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


def keep_properties(disk: Disk, paths: StorePaths, stored: StoreProperties) -> None:
    """Write down what the store is like, where that is not written yet: in `store.properties`, and
    a second time, in case that file is lost. What others wrote into it stays."""
    values = {theirs: str(getattr(stored.sizes, ours)) for ours, theirs in _NAMES.items()}
    if stored.strict:
        values[_STRICT] = "true"
    if stored.store_id:
        values[_STORE_ID] = stored.store_id
    values[_CHECKSUM] = _checksum(values)
    copied = write_properties(values).encode()
    there = None if stored.from_copy else _values_in(disk, paths.properties)
    if there is None or there.get(_STORE_ID, "") != stored.store_id:
        data = write_properties({**(there or {}), **values}).encode()
        disk.replace_together([(paths.properties, data), (paths.properties_copy, copied)])
    elif read_whole(disk, paths.properties_copy) != copied:
        try:
            disk.replace(paths.properties_copy, copied)
        except OSError as error:
            if not is_full(error):
                raise
            # The store opens on a full disk, too: the next start writes it.
            _log.warning("properties_not_copied", path=paths.properties_copy)


def fitted(disk: Disk, directory: str, sizes: FileSizes) -> FileSizes:
    """Return sizes for a new store that its disk has room for: a file of the log takes at most an
    eighth of what is free."""
    usage = disk.usage(directory)
    room = max(_FITTED_SIZE_MIN, (usage.total - usage.used) // _FILES_THAT_FIT)
    log_size = sizes.commit_log_file_size
    if log_size > room:
        log_size = 1 << (room.bit_length() - 1)
        _log.warning(
            "log_file_size_fitted",
            path=directory,
            wanted=sizes.commit_log_file_size,
            chosen=log_size,
            free=usage.total - usage.used,
        )
    return replace(sizes, commit_log_file_size=log_size).with_small_index()


def _checksum(values: Mapping[str, str]) -> str:
    names = (*_NAMES.values(), _STRICT, _STORE_ID)
    known = ",".join(f"{name}={values[name]}" for name in names if name in values)
    return f"{zlib.crc32(known.encode('utf-8', 'replace')):08x}"


def agree(paths: StorePaths, stored: FileSizes, settings: SegmentSettings) -> FileSizes:
    """Return the stored sizes; refuse other ones that were asked for by name."""
    requested = settings.sizes
    if requested is None or settings.fit_sizes or requested.check() == stored:
        return stored
    for field in _NAMES:
        ours, theirs = getattr(requested.check(), field), getattr(stored, field)
        if ours != theirs:
            raise SettingsError(
                f"{paths.root} was created with {field} = {theirs}, the settings say {ours}; "
                "sizes are fixed when a store is created: leave the setting out"
            )
    return stored


def _as_dict(sizes: FileSizes) -> dict[str, int]:
    return {field: getattr(sizes, field) for field in _NAMES}
