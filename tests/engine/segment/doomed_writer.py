"""A process that writes to a store until it is killed, and tells what was acknowledged.

    python doomed_writer.py DIRECTORY ROUND [OPERATION CALL before|after]

With an operation, the process kills itself at that call of it: no handler runs, no buffer is
flushed, nothing is closed. Each line of output is one acknowledgement.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.platform.disk import File, Mapping
from penstock.platform.local_disk import LocalDisk
from penstock.record import Flush, Producer, Record, ShardId

SETTINGS: Final = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=32_768,
        consume_queue_file_size=2_000,
        batch_queue_file_size=920,
        index_slots=50,
        index_entries_max=300,
    ),
    flush_interval_ms=20,
    derived_interval_ms=30,
    publish_interval_ms=20,
)
SHARDS: Final = {ShardId("safe", 0): Flush.SYNC, ShardId("quick", 0): Flush.ASYNC}
GROUP_MAX: Final = 4


class Trap:
    """Kills the process at one call of one operation."""

    def __init__(self, operation: str = "", call: int = 0, when: str = "before") -> None:
        self._operation = operation
        self._left = call
        self._when = when
        self._lock = threading.Lock()

    def step(self, operation: str, when: str) -> None:
        if (operation, when) != (self._operation, self._when):
            return
        with self._lock:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class TrappedFile:
    def __init__(self, file: File, trap: Trap) -> None:
        self._file = file
        self._trap = trap

    @property
    def path(self) -> str:
        return self._file.path

    def read_at(self, position: int, size: int) -> bytes:
        return self._file.read_at(position, size)

    def read_into(self, position: int, buffer: memoryview) -> int:
        return self._file.read_into(position, buffer)

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        self._trap.step("write", "before")
        self._file.write_at(position, data)
        self._trap.step("write", "after")

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._trap.step("truncate", "before")
        self._file.truncate(size)
        self._trap.step("truncate", "after")

    def allocate(self, size: int) -> None:
        self._trap.step("allocate", "before")
        self._file.allocate(size)
        self._trap.step("allocate", "after")

    def written_ranges(self, start: int) -> list[tuple[int, int]]:
        return self._file.written_ranges(start)

    def map(self, *, writable: bool) -> Mapping:
        self._trap.step("map", "before")
        return self._file.map(writable=writable)

    def descriptor(self) -> None:
        """None: every sync must come past the trap."""

    def sync(self) -> None:
        self._trap.step("sync", "before")
        self._file.sync()
        self._trap.step("sync", "after")

    def close(self) -> None:
        self._file.close()


class TrappedDisk(LocalDisk):
    def __init__(self, trap: Trap) -> None:
        self._trap = trap

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> TrappedFile:  # type: ignore[override]  # a File, as the contract of Disk says
        self._trap.step("open", "before")
        return TrappedFile(super().open(path, create=create, writable=writable), self._trap)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._trap.step("replace", "before")
        LocalDisk().replace(path, data, durable=durable)
        self._trap.step("replace", "after")

    def replace_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        # One by one: a process that dies between two of them leaves what the real one would.
        for path, data in files:
            self.replace(path, data)

    def remove(self, path: str) -> None:
        self._trap.step("remove", "before")
        super().remove(path)
        self._trap.step("remove", "after")

    def sync_directory(self, path: str) -> None:
        self._trap.step("sync_directory", "before")
        super().sync_directory(path)
        self._trap.step("sync_directory", "after")


class Writer:
    """One thread's work on one shard."""

    def __init__(self, store: SegmentStore, shard: ShardId, turn: int) -> None:
        self._store = store
        self._shard = shard
        self._turn = turn
        self._choose = random.Random(f"{turn} {shard.name}")
        self._sequence = 0

    def run(self) -> None:
        number = 0
        while True:
            count = self._choose.choice((1, 1, 1, 2, GROUP_MAX))
            size = self._choose.choice((0, 20, 500, 3_000))
            values = [
                f"{self._shard.topic}/{self._turn}/{number + n}/".encode() + b"x" * size
                for n in range(count)
            ]
            number += count
            self._say("A", self._append(values), values)
            if self._choose.random() < 0.03:
                self._delete()

    def _append(self, values: list[bytes]) -> int:
        records = [Record(value, key=value.rsplit(b"/", 1)[0], tags=("t",)) for value in values]
        if len(records) == 1:
            return self._store.append(self._shard, records[0])
        producer = Producer(self._turn + 1, 0, self._sequence)
        self._sequence += len(records)
        return self._store.append_many(self._shard, records, producer)

    def _delete(self) -> None:
        offset = self._choose.randrange(max(1, self._store.bounds(self._shard).next))
        self._store.delete_offsets(self._shard, [offset])
        self._say("D", offset, [b""])

    def _say(self, what: str, offset: int, values: list[bytes]) -> None:
        names = ",".join(value.rsplit(b"/", 1)[0].decode() for value in values)
        os.write(1, f"{what} {self._shard.name} {offset} {names}\n".encode())


def main(arguments: list[str]) -> None:
    directory, turn, *trap = arguments
    armed = Trap(trap[0], int(trap[1]), trap[2]) if trap else Trap()
    store = SegmentStore.open(directory, SETTINGS, disk=TrappedDisk(armed))
    for shard, flush in SHARDS.items():
        store.create_shard(shard, flush=flush)
        store.set_flush(shard, flush)
    os.write(1, b"R\n")
    for shard in SHARDS:
        writer = Writer(store, shard, int(turn))
        threading.Thread(target=writer.run, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
