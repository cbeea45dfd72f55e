"""What do offset commits and metadata commands cost on a single node?

Sketch first: a cached commit is one unsynced RocksDB write, about 3 µs with its system call, and a
microsecond of Python: 200 k/s on a core of one's own. A direct commit is two switches of thread and
one sync: with 0.3 ms for it, 2 to 3 k/s alone, and many times that when callers share syncs. A save
of 1,000 offsets costs about 8 µs an offset: decode, read the old pair, write the row.

    python bench/meta_solo.py [--million]

Prints one JSON line per case: median and range of 3 runs, operations per second; `cpu_us` is the
caller's own CPU time per operation, which a busy machine disturbs less. `--million` adds the time
to save a million offsets, the memory it takes, and the time of a start with them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from penstock.meta.client import GroupName, GroupOffsets, OffsetEntry
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId

SHARDS = [ShardId("orders-01JCQ0000000000000000000", number) for number in range(100)]
BATCH = {shard: OffsetCommit(Offset(5)) for shard in SHARDS}
RUNS = 3


def report(case: str, operations: int, work: Callable[[], object], *, is_own: bool = True) -> None:
    """Run `work`, which does `operations`, three times and print what it reached. Without
    `is_own` the work is done by other threads, and this one's CPU time says nothing."""
    rates, cpu = [], []
    for _ in range(RUNS):
        started, used = time.perf_counter(), time.thread_time()
        work()
        cpu.append((time.thread_time() - used) / operations * 1e6)
        rates.append(operations / (time.perf_counter() - started))
    line = {
        "case": case,
        "per_second": round(statistics.median(rates)),
        "range": [round(min(rates)), round(max(rates))],
        "cpu_us": round(statistics.median(cpu), 2) if is_own else None,
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(line), flush=True)


def commit(manager: OffsetManager, count: int, shards: int) -> None:
    for number in range(count):
        manager.commit_offset("g", SHARDS[number % shards], number)


def commit_batches(manager: OffsetManager, count: int) -> None:
    for _ in range(count):
        manager.commit_offsets("g", BATCH)


def commit_directly(manager: OffsetManager, count: int, threads: int) -> None:
    def run(shard: ShardId) -> None:
        for number in range(count // threads):
            manager.commit_offset("g", shard, number, enable_cache=False)

    workers = [threading.Thread(target=run, args=(SHARDS[number],)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class Saver:
    """Saves batches of offsets straight to the meta service."""

    def __init__(self, meta: StandaloneMetaClient) -> None:
        self._meta = meta
        self._epoch = meta.claim_groups([GroupName("default", "saver")])[0].epoch
        self._sequence = 0

    def save(self, batches: int, size: int, prefix: str = "s") -> None:
        for batch in range(batches):
            entries = []
            for number in range(size):
                self._sequence += 1
                entries.append(
                    OffsetEntry(
                        f"orders-{prefix}{batch}_{number}",
                        self._sequence,
                        self._epoch,
                        self._sequence,
                        1_000,
                    )
                )
            self._meta.save_offsets([GroupOffsets("default", "saver", tuple(entries))])


def create_topics(meta: StandaloneMetaClient, names: Iterator[int], count: int) -> None:
    for _ in range(count):
        meta.create_topic(f"topic-{next(names)}")


def million(directory: Path) -> None:
    path = str(directory / "million")
    with StandaloneMetaClient.open(path) as meta:
        started = time.perf_counter()
        Saver(meta).save(1_000, 1_000, "m")
        saved = time.perf_counter() - started
    size = sum(file.stat().st_size for file in Path(path).iterdir())
    started = time.perf_counter()
    with StandaloneMetaClient.open(path) as meta:
        opened = time.perf_counter() - started
        meta.get_offset("default", "saver", "orders-m1_1")
    line = {
        "case": "a million offsets",
        "save_seconds": round(saved, 1),
        "disk_mb": size >> 20,
        "open_seconds": round(opened, 2),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps({"machine": platform.machine(), "cores": os.cpu_count()}))
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root)
        with (
            StandaloneMetaClient.open(f"{root}/meta") as meta,
            OffsetManager.open(f"{root}/offsets", meta) as manager,
        ):
            saver, names = Saver(meta), itertools.count()
            report("cached commit, one shard", 100_000, lambda: commit(manager, 100_000, 1))
            report("cached commit, 100 shards", 100_000, lambda: commit(manager, 100_000, 100))
            report("cached commit of 100 offsets", 50_000, lambda: commit_batches(manager, 500))
            for threads, count in ((1, 500), (16, 4_000)):
                report(
                    f"direct commit, {threads} threads",
                    count,
                    partial(commit_directly, manager, count, threads),
                    is_own=False,
                )
            report("save of 1 offset", 500, lambda: saver.save(500, 1))
            report("save of 100 offsets", 20_000, lambda: saver.save(200, 100))
            report("save of 1000 offsets", 40_000, lambda: saver.save(40, 1_000))
            report("topic created", 500, lambda: create_topics(meta, names, 500))
        if arguments.million:
            million(directory)


if __name__ == "__main__":
    main()
