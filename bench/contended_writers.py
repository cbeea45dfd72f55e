"""What do writers cost that append to one log at the same time?

    python -m bench.contended_writers DIR
    python -m bench.contended_writers DIR --rounds 3 --threads 1 8 64

Each case writes a fixed number of messages to a fresh store in DIR; the rounds are interleaved.
Prints medians: messages/s by the clock, CPU time of the writing threads per message, and context
switches per call. On a loaded machine, compare the CPU times. A memory file system leaves the
device out.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId

SHARDS: Final = [ShardId("T", number) for number in range(8)]
SETTINGS: Final = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=512 << 20,
        consume_queue_file_size=300_000 * 20,
        index_slots=500_000,
        index_entries_max=2_000_000,
    )
)


class Case(NamedTuple):
    name: str
    records: int
    size: int
    calls: int


CASES: Final = [
    Case("1 x 100 B", 1, 100, 192_000),
    Case("1 x 16 KiB", 1, 16 << 10, 6_400),
    Case("100 x 100 B", 100, 100, 3_200),
    Case("100 x 1 KiB", 100, 1 << 10, 1_280),
]


class Sample(NamedTuple):
    rate: float
    cpu_us: float
    switches: float


def run(path: Path, case: Case, threads: int) -> Sample:
    shutil.rmtree(path, ignore_errors=True)
    records = [Record(random.Random(case.size).randbytes(case.size))] * case.records
    with SegmentStore.open(str(path), SETTINGS) as store:
        for shard in SHARDS:
            store.create_shard(shard)

        def writer(number: int) -> Callable[[], object]:
            shard = SHARDS[number % len(SHARDS)]
            if case.records == 1:
                return lambda: store.append(shard, records[0])
            return lambda: store.append_many(shard, records)

        start = threading.Barrier(threads + 1)
        cpu: list[float] = []
        switches: list[int] = []

        def write(number: int) -> None:
            append = writer(number)
            start.wait()
            before, began = _switches(), time.thread_time()
            for _ in range(case.calls // threads):
                append()
            cpu.append(time.thread_time() - began)
            switches.append(_switches() - before)

        writer(0)()  # the first files exist
        members = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
        for member in members:
            member.start()
        start.wait()
        started = time.perf_counter()
        for member in members:
            member.join()
        elapsed = time.perf_counter() - started
    shutil.rmtree(path)
    calls = case.calls // threads * threads
    messages = calls * case.records
    return Sample(messages / elapsed, sum(cpu) / messages * 1e6, sum(switches) / calls)


def _switches() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw + usage.ru_nivcsw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    samples: dict[tuple[Case, int], list[Sample]] = {}
    for _ in range(options.rounds):
        for case in CASES:
            for threads in options.threads:
                sample = run(options.path / "store", case, threads)
                samples.setdefault((case, threads), []).append(sample)
    print(f"{'append':<12} {'threads':>7} {'k messages/s':>13} {'CPU us':>8} {'switches':>9}")
    for (case, threads), rounds in samples.items():
        rate, cpu, switches = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{case.name:<12} {threads:>7} {rate / 1e3:>13.0f} {cpu:>8.3f} {switches:>9.2f}")


if __name__ == "__main__":
    main()
