"""A process that writes to a store and says what was acknowledged, until it is killed.

    python writer_to_kill.py DIRECTORY SEED [CALL]

Lines on its output: `shard first count`, each after the append has returned. With CALL it kills
itself at that call of the disk: the moments between two steps of a roll, a flush or a checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Sequence

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.platform.local_file import LocalFile
from penstock.record import Flush, Record, ShardId

SETTINGS = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=1 << 16,
        consume_queue_file_size=2_000,
        batch_queue_file_size=4_600,
        index_slots=50,
        index_entries_max=300,
    ),
    flush_interval_ms=20,
    derived_interval_ms=50,
    publish_interval_ms=30,
)
SHARDS = {ShardId("quick", 0): Flush.ASYNC, ShardId("safe", 0): Flush.SYNC}


def value_of(shard: ShardId, offset: int) -> bytes:
    """What the record of an offset holds: a reader knows it without being told."""
    return f"{shard.name}:{offset}:".encode() + b"x" * (offset % 300)


class SuicidalDisk(LocalDisk):
    """The machine's disk, at whose n-th changing call the process dies."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> LocalFile:
        if create:
            self._count()
        return super().open(path, create=create, writable=writable)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._count()
        super().replace(path, data, durable=durable)
        self._count()

    def replace_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        # One by one: a process that dies between two of them leaves what the real one would.
        for path, data in files:
            self.replace(path, data)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._count()


def main() -> None:
    path, seed = sys.argv[1], int(sys.argv[2])
    disk: Disk = SuicidalDisk(int(sys.argv[3])) if len(sys.argv) > 3 else LocalDisk()
    choose = random.Random(seed)
    store = SegmentStore.open(path, SETTINGS, disk=disk)
    for shard, flush in SHARDS.items():
        store.create_shard(shard, flush=flush)
        store.set_flush(shard, flush)
    while True:
        shard = choose.choice(list(SHARDS))
        first = store.bounds(shard).next
        count = choose.choice((1, 1, 1, 2, 20))
        group = [
            Record(value_of(shard, first + n), key=b"k%d" % (n % 5), tags=("t",))
            for n in range(count)
        ]
        assert store.append_many(shard, group) == first
        sys.stdout.write(f"{shard.name} {first} {count}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
