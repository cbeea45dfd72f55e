"""One case of the segment store's benchmark, in a process of its own: prints `name value` lines.

    python -m bench.store_cases put DIR --records 1000000

`bench/store.py` runs these; alone they are for profiling.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock import aio
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Flush, Record, ShardId

QUEUES: Final = [ShardId("T", number) for number in range(4)]
SETTINGS: Final = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=1 << 30,
        consume_queue_file_size=300_000 * 20,
        index_slots=5_000_000,
        index_entries_max=20_000_000,
    )
)
"""RocketMQ's own default sizes."""
SYNC_SECONDS: Final = 4.0
Case = Callable[[str, int], None]


def emit(name: str, value: float) -> None:
    print(f"{name}\t{value:.3f}", flush=True)


def fresh(path: str, flush: Flush = Flush.ASYNC) -> SegmentStore:
    shutil.rmtree(path, ignore_errors=True)
    store = SegmentStore.open(path, SETTINGS)
    for queue in QUEUES:
        store.create_shard(queue, flush=flush)
    return store


def body_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def put(path: str, records: int) -> None:
    """One message at a time, key and tag indexed; readable when the call returns."""
    body = body_of(100)
    with fresh(path) as store:
        for number in range(records // 4):
            store.append(QUEUES[number & 3], Record(body, b"k%d" % number, ("TagA",)))
        clock = time.perf_counter
        started = clock()
        for number in range(records):
            store.append(QUEUES[number & 3], Record(body, b"k%d" % number, ("TagA",)))
        emit("put", records / (clock() - started))
        times = []
        for number in range(records // 4):
            begun = clock()
            store.append(QUEUES[number & 3], Record(body, b"k%d" % number, ("TagA",)))
            times.append(clock() - begun)
        times.sort()
        emit("put p50 us", percentile(times, 0.5) * 1e6)
        emit("put p99 us", percentile(times, 0.99) * 1e6)
        _put_threads(store, records, body)


def _put_threads(store: SegmentStore, records: int, body: bytes) -> None:
    times: list[float] = []

    def write(thread: int) -> None:
        mine = []
        for number in range(records // 4):
            begun = time.perf_counter()
            store.append(QUEUES[thread], Record(body, b"k%d" % number, ("TagA",)))
            mine.append(time.perf_counter() - begun)
        times.extend(mine)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit("put 4 threads", records / (time.perf_counter() - started))
    times.sort()
    emit("put 4 threads p99 us", percentile(times, 0.99) * 1e6)


def batch(path: str, records: int) -> None:
    """Lists of records, and Arrow columns."""
    body = body_of(100)
    with fresh(path) as store:
        for size in (100, 1000):
            group = [Record(body, b"k%d" % number, ("TagA",)) for number in range(size)]
            for _ in range(20_000 // size):
                store.append_many(QUEUES[0], group)
            times = []
            started = time.perf_counter()
            for number in range(records // size):
                begun = time.perf_counter()
                store.append_many(QUEUES[number & 3], group)
                times.append(time.perf_counter() - begun)
            emit(f"batch {size}", records / (time.perf_counter() - started))
            times.sort()
            emit(f"batch {size} p99 us", percentile(times, 0.99) * 1e6)
        rows = 10_000
        values = pa.array([body] * rows, pa.binary())
        keys = pa.array([b"k%d" % number for number in range(rows)], pa.binary())
        tags = pa.array(["TagA"] * rows)
        store.append_columns(QUEUES[0], values, keys=keys, tags=tags)
        started = time.perf_counter()
        for number in range(records // rows):
            store.append_columns(QUEUES[number & 3], values, keys=keys, tags=tags)
        emit("columns 10000", records / (time.perf_counter() - started))


def sync(path: str, _: int) -> None:
    """Acknowledged after the device has it, 1 KB."""
    for writers in (1, 8, 32):
        emit(f"sync {writers}", _synced_writes(path, writers))


def _synced_writes(path: str, writers: int) -> float:
    body = body_of(1024)
    with fresh(path, Flush.SYNC) as store:
        counts = [0] * writers
        deadline = time.perf_counter() + SYNC_SECONDS
        threads = [
            threading.Thread(target=_write_until, args=(store, counts, number, deadline, body))
            for number in range(writers)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - started)


def _write_until(
    store: SegmentStore, counts: list[int], writer: int, deadline: float, body: bytes
) -> None:
    while time.perf_counter() < deadline:
        record = Record(body, b"k%d" % counts[writer], ("TagA",))
        store.append(QUEUES[writer & 3], record)
        counts[writer] += 1


def sync_tasks(path: str, _: int) -> None:
    """The same, by coroutines of an asyncio program through the public API."""
    asyncio.run(_sync_tasks(path, 32))


async def _sync_tasks(path: str, writers: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    body = body_of(1024)
    sizes = {"broker__commit_log_file_size": SETTINGS.sizes.commit_log_file_size}
    async with await aio.open(path, **sizes) as store:
        topic = await store.create_topic("T", flush="sync")
        counts = [0] * writers
        deadline = time.perf_counter() + SYNC_SECONDS

        async def write(writer: int) -> None:
            while time.perf_counter() < deadline:
                await topic.write(Record(body, b"k%d" % counts[writer], ("TagA",)))
                counts[writer] += 1

        started = time.perf_counter()
        await asyncio.gather(*(write(writer) for writer in range(writers)))
        emit(f"sync {writers} tasks", sum(counts) / (time.perf_counter() - started))


def read(path: str, records: int) -> None:
    """Everything that was written, in order; at random; by key."""
    body = body_of(100)
    with fresh(path) as store:
        for first in range(0, records, 400):
            for index, queue in enumerate(QUEUES):
                numbers = range(first + index * 100, first + index * 100 + 100)
                store.append_many(queue, [Record(body, b"k%d" % n, ("TagA",)) for n in numbers])
        store.checkpoint()
        _read_objects(store)
        emit("read objects", _read_objects(store))
        _read_arrow(store)
        emit("read arrow", _read_arrow(store))
        choose = random.Random(7)
        end = store.bounds(QUEUES[0]).next
        count = 20_000
        started = time.perf_counter()
        for number in range(count):
            assert store.read(QUEUES[number & 3], choose.randrange(end), max_records=1)
        emit("read random", count / (time.perf_counter() - started))
        started = time.perf_counter()
        for _ in range(count):
            number = choose.randrange(records)
            queue = QUEUES[number // 100 % 4]
            assert store.newest_by_key(queue, b"k%d" % number) is not None
        emit("query key", count / (time.perf_counter() - started))
        emit("memory MB", _memory_peak_mb())


def _memory_peak_mb() -> float:
    """Of this program: `getrusage` counts what the process was before, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _read_objects(store: SegmentStore) -> float:
    started = time.perf_counter()
    seen = 0
    for queue in QUEUES:
        offset = 0
        while page := store.read(queue, offset):
            seen += len(page)
            offset = page[-1].offset + 1
    return seen / (time.perf_counter() - started)


def _read_arrow(store: SegmentStore) -> float:
    started = time.perf_counter()
    seen = sum(found.num_rows for queue in QUEUES for found in store.read_arrow(queue))
    return seen / (time.perf_counter() - started)


def recover_write(path: str, records: int) -> None:
    """Write 1 KB records and kill this process."""
    body = body_of(1024)
    store = fresh(path)
    for number in range(records // 100):
        group = [Record(body, b"k%d" % (number * 100 + n), ("TagA",)) for n in range(100)]
        store.append_many(QUEUES[number & 3], group)
    emit("written MiB", store.bounds(QUEUES[0]).end_position / (1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)


def recover_open(path: str, records: int) -> None:
    killed = Path(path, "abort").exists()
    started = time.perf_counter()
    store = SegmentStore.open(path, SETTINGS)
    elapsed = time.perf_counter() - started
    total = sum(store.bounds(queue).next for queue in QUEUES)
    assert total == records // 100 * 100, f"{total} of {records} records"
    emit("recovery after kill ms" if killed else "start after clean stop ms", elapsed * 1e3)
    store.close()


CASES: Final[dict[str, Case]] = {
    "put": put,
    "batch": batch,
    "sync": sync,
    "sync-tasks": sync_tasks,
    "read": read,
    "recover-write": recover_write,
    "recover-open": recover_open,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("path")
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    CASES[arguments.case](arguments.path, arguments.records)


if __name__ == "__main__":
    main()
