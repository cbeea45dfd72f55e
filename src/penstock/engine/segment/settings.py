"""Sizes and limits of one segment store.

The sizes of files are fixed when a store is created and kept in its `store.properties` under
RocketMQ's names; opening a store with other sizes is refused, because every position in it
depends on them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.codec.format import BATCH_UNIT, INDEX_ENTRY, INDEX_HEADER, QUEUE_UNIT
from penstock.errors import SettingsError

MIB: Final = 1 << 20
COMMIT_LOG_FILE_SIZE_MIN: Final = 4096
FILE_SIZE_MAX: Final = (1 << 31) - 1
"""RocketMQ counts the bytes of a file in 31 bits, and so do numbers in the files."""
_INDEX_SLOTS_MIN: Final = 1_000


class FileSizes(Struct, frozen=True):
    """The sizes of a store's files, as `store.properties` says them."""

    commit_log_file_size: int = 64 * MIB
    consume_queue_file_size: int = 20_000 * 20
    batch_queue_file_size: int = 20_000 * 46
    index_slots: int = 250_000
    index_entries_max: int = 1_000_000

    @property
    def index_file_size(self) -> int:
        return INDEX_HEADER.size + 4 * self.index_slots + INDEX_ENTRY.size * self.index_entries_max

    def with_small_index(self) -> FileSizes:
        """Return sizes whose index file takes no more room than a file of the log: each is
        allocated as a whole, and one more ahead of the writer."""
        shrink = -(-self.index_file_size // self.commit_log_file_size)
        return replace(
            self,
            index_slots=max(_INDEX_SLOTS_MIN, self.index_slots // shrink),
            index_entries_max=max(_INDEX_SLOTS_MIN, self.index_entries_max // shrink),
        )

    def check(self) -> FileSizes:
        """Return sizes rounded to whole units as RocketMQ does; refuse impossible ones."""
        if self.commit_log_file_size < COMMIT_LOG_FILE_SIZE_MIN:
            raise SettingsError(
                f"commit_log_file_size is {self.commit_log_file_size}; "
                f"it must be at least {COMMIT_LOG_FILE_SIZE_MIN}"
            )
        if self.index_slots < 1 or self.index_entries_max < 2:
            raise SettingsError("index_slots must be at least 1 and index_entries_max at least 2")
        rounded = FileSizes(
            commit_log_file_size=self.commit_log_file_size,
            consume_queue_file_size=_whole_units(self.consume_queue_file_size, QUEUE_UNIT.size),
            batch_queue_file_size=_whole_units(self.batch_queue_file_size, BATCH_UNIT.size),
            index_slots=self.index_slots,
            index_entries_max=self.index_entries_max,
        )
        for name, size in (
            ("commit_log_file_size", rounded.commit_log_file_size),
            ("consume_queue_file_size", rounded.consume_queue_file_size),
            ("batch_queue_file_size", rounded.batch_queue_file_size),
            ("an index file with these index_slots and index_entries_max", rounded.index_file_size),
        ):
            if size > FILE_SIZE_MAX:
                raise SettingsError(f"{name} is {size}; it must be below 2 GiB, as in RocketMQ")
        return rounded


def _whole_units(size: int, unit_size: int) -> int:
    if size < unit_size:
        raise SettingsError(f"a queue file of {size} bytes cannot hold one unit of {unit_size}")
    return -(-size // unit_size) * unit_size


def hour_of(delete_when: str) -> int | None:
    """Return the hour at which expired files go; None: at any."""
    if delete_when == "DiskFull":
        return None
    if delete_when.isascii() and delete_when.isdigit() and int(delete_when) < 24:
        return int(delete_when)
    raise SettingsError(f'delete_when is {delete_when!r}; use "DiskFull" or an hour like "04"')


class SegmentSettings(Struct, frozen=True, kw_only=True):
    """How one store behaves. `sizes=None` takes the sizes of an existing store, or the small
    defaults of an embedded one."""

    sizes: FileSizes | None = None
    fit_sizes: bool = False
    """Take `sizes` of a new store for the most there may be: a small disk gets smaller files."""
    commit_log_path: str | None = None
    """Where the commit log is when not in `<store>/commitlog`; likewise the next two."""
    consume_queue_path: str | None = None
    index_path: str | None = None
    record_size_max: int = 4 * MIB
    """Of what users append; control records do not fall under it."""
    flush_interval_ms: int = 500
    """How long an ASYNC_FLUSH record may stay in the page cache only."""
    derived_interval_ms: int = 5_000
    """How often queues, indexes and shard states are put on the device, which bounds the work of
    a start after a crash."""
    derived_bytes_max: int = 256 * MIB
    """The same bound in bytes of log."""
    publish_interval_ms: int = 500
    """How often bounds are refreshed for readers in other processes."""
    unflushed_bytes_max: int = 512 * MIB
    """A writer that is this far ahead of the device waits for it."""
    mapped_bytes_max: int = 4096 * MIB
    open_files_max: int = 256
    prefault_size: int = 32 * MIB
    """How far ahead of the writer pages are faulted in, in the background."""
    file_reserved_time_h: float = 72
    delete_when: str = "DiskFull"
    """`DiskFull`, or the hour of the day (`04`) at which expired files go."""
    disk_max_used_space_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    """Address and port written into every record: 4 or 16 bytes of address, 4 of port."""
    background: bool = True
    """False starts no threads: flushing and upkeep then happen only when called for."""

    def check(self) -> None:
        """Refuse what no store can work with, before one is made or touched."""
        if self.sizes is not None:
            self.sizes.check()
        for name, smallest in _SMALLEST.items():
            if not getattr(self, name) >= smallest:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}; it must be at least {smallest}"
                )
        if self.record_size_max > FILE_SIZE_MAX:
            raise SettingsError(
                f"record_size_max is {self.record_size_max}; it must be below 2 GiB, as in RocketMQ"
            )
        if len(self.store_host) not in (8, 20):
            raise SettingsError(
                f"store_host has {len(self.store_host)} bytes; it must have 8 (an IPv4 address and "
                "4 bytes of port) or 20 (an IPv6 address and a port)"
            )
        hour_of(self.delete_when)


_SMALLEST: Final = {
    "record_size_max": 1,
    "flush_interval_ms": 0,
    "derived_interval_ms": 0,
    "derived_bytes_max": 0,
    "publish_interval_ms": 0,
    "unflushed_bytes_max": 0,
    "mapped_bytes_max": 0,
    "open_files_max": 1,
    "prefault_size": 0,
    "file_reserved_time_h": 0,
    "disk_max_used_space_ratio": 0,
    "disk_space_warning_level_ratio": 0,
}
