"""Are queue and index files read faster through a mapping, or with pread?

    python -m bench.mapped_queues DIR
    python -m bench.mapped_queues DIR --rounds 3 --threads 1 8

The files are in the page cache. Both ways go through `Disk` and return `bytes`, as the readers of
queues need them; "mapped, kept" holds one view of the whole file, as the look-ups of an index do.
"first touch" maps or opens a file, reads one entry and closes it. Prints medians of the CPU time
of the reading threads per read; the rounds are interleaved.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from penstock.platform.disk import Mapping
from penstock.platform.local_disk import LocalDisk

QUEUE_SIZE: Final = 300_000 * 20
INDEX_SIZE: Final = 40 + 500_000 * 4 + 2_000_000 * 20
READS: Final = 40_000
Read = Callable[[int, int], object]


class Case(NamedTuple):
    name: str
    file_size: int
    sizes: Sequence[int]
    is_sequential: bool


CASES: Final = [
    Case("queue, 1 entry, random", QUEUE_SIZE, (20,), False),
    Case("queue, 32 entries, random", QUEUE_SIZE, (640,), False),
    Case("queue, 32 entries, in order", QUEUE_SIZE, (640,), True),
    Case("queue, 1,000 entries, in order", QUEUE_SIZE, (20_000,), True),
    Case("index, slot and 3 entries, random", INDEX_SIZE, (4, 20, 20, 20), False),
]


def positions(case: Case, seed: int) -> list[int]:
    span = case.file_size - max(case.sizes)
    if case.is_sequential:
        return [number * case.sizes[0] % span for number in range(READS)]
    chosen = random.Random(seed)
    return [chosen.randrange(span) for _ in range(READS * len(case.sizes))]


def measure(case: Case, read: Read, threads: int) -> float:
    cpu: list[float] = []
    start = threading.Barrier(threads)

    def work(seed: int) -> None:
        sizes = list(case.sizes) * (READS // threads)
        plan = list(zip(positions(case, seed), sizes, strict=False))
        start.wait()
        began = time.thread_time()
        for position, size in plan:
            read(position, size)
        cpu.append(time.thread_time() - began)

    members = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    return sum(cpu) / (READS // threads * threads) * 1e6


def first_touch(disk: LocalDisk, path: str, *, mapped: bool) -> float:
    began = time.thread_time()
    for _ in range(2_000):
        with closing(disk.open(path, writable=False)) as file:
            if mapped:
                mapping = file.map(writable=False)
                bytes(mapping.buffer[:20])
                mapping.release()
            else:
                file.read_at(0, 20)
    return (time.thread_time() - began) / 2_000 * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    disk = LocalDisk()
    figures: dict[tuple[str, str, int], list[float]] = {}
    for case in CASES * options.rounds:
        path = options.path / f"mapped-{case.file_size}"
        if not path.exists():
            path.write_bytes(random.Random(1).randbytes(case.file_size))
        with closing(disk.open(str(path), writable=False)) as file:
            mapping = file.map(writable=False)

            def read_mapped(position: int, size: int, mapping: Mapping = mapping) -> bytes:
                return bytes(mapping.buffer[position : position + size])

            with mapping.buffer as view:

                def read_kept(position: int, size: int, view: memoryview = view) -> bytes:
                    return bytes(view[position : position + size])

                ways = {"pread": file.read_at, "mapped": read_mapped, "mapped, kept": read_kept}
                for threads in options.threads:
                    for way, read in ways.items():
                        cpu = measure(case, read, threads)
                        figures.setdefault((case.name, way, threads), []).append(cpu)
            mapping.release()
        for way, is_mapped in (("pread", False), ("mapped", True)):
            cpu = first_touch(disk, str(path), mapped=is_mapped)
            name = f"first touch of {case.file_size >> 20} MiB"
            figures.setdefault((name, way, 1), []).append(cpu)
    for (name, way, threads), values in sorted(figures.items()):
        print(f"{name:<36} {way:<13} {threads:>3} {statistics.median(values):>8.2f} us")
    for size in {case.file_size for case in CASES}:
        (options.path / f"mapped-{size}").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
