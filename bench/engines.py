"""How fast are the engines through the public API, embedded and over gRPC, and what do topics cost?

Sketch first: a batch of 100 records of 100 B is some 30 µs of native work in the segment engine and
10 µs of Python around it: 2 M records/s and more. The memory engine makes objects of them: 1 M.
RocksDB writes three rows per record: 60 to 120 k. gRPC encodes every record twice: 100 k. A
topic is one synced metadata entry: 1,000 a second and more with one sync for several.

    python -m bench.engines [--rounds 3] [--topics 10000] [--engines memory,rocksdb,segment]
                            [--cases embedded,grpc,offsets,topics,serve]

Each engine is measured in a store of its own: what one leaves behind (compactions of RocksDB, pages
to be written back) is over before the next begins. The server is a process of its own. Prints one
table: medians and ranges by the clock, and the median by CPU time of all threads of the caller,
which says more than the clock on a machine that others use, too. Where much is written, a row
begins with memory that the machine has in hand (`bench/quiet.py`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

from bench.quiet import settle
from bench.start_cases import first_line_of_serve, served
from rich.console import Console
from rich.table import Table

import penstock
from penstock import Record, Store

ENGINES: Final = ("memory", "rocksdb", "segment")
SECONDS: Final = 2.0
CREATORS: Final = 32
"""Threads that create topics: a sync of the metadata is shared by those who wait."""
BODY: Final = bytes(range(100))
AIMS: Final = {
    "segment, batches of 100": "2,000,000",
    "memory, batches of 100": "1,000,000",
    "rocksdb, batches of 100, key + tag": "60,000",
    "topics created, seconds": "10",
    "memory per idle shard, bytes": "4,096",
    "start with all topics, seconds": "2",
    "first line of `penstock serve`, seconds": "1",
    "offset commits, cached": "200,000",
}

CASES: Final = ("embedded", "grpc", "offsets", "topics", "serve")


class Figure(NamedTuple):
    by_clock: float
    by_cpu: float | None = None


Figures = dict[str, list[Figure]]


@contextmanager
def embedded() -> Iterator[Store]:
    with (
        tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root,
        penstock.open(f"{root}/data") as store,
    ):
        yield store


@contextmanager
def remote() -> Iterator[Store]:
    with (
        tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root,
        served(f"{root}/data") as address,
        penstock.connect(address) as store,
    ):
        yield store


def rate(step: Callable[[], int], *, fills_memory: bool = False) -> Figure:
    """Repeat `step`, which says how much it did, for some seconds; return the rates."""
    if fills_memory:
        settle()
    else:
        os.sync()  # What the row before wrote is its own affair.
    step()
    done = 0
    cpu = time.process_time()
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        done += step()
    return Figure(done / elapsed, done / (time.process_time() - cpu))


def measure_engine(store: Store, engine: str, where: str, figures: Figures) -> None:
    def note(name: str, value: Figure) -> None:
        figures.setdefault(f"{engine}, {name}{where}", []).append(value)

    topic = store.create_topic(f"{engine}-plain", storage=engine)
    plain = [Record(BODY) for _ in range(100)]
    fills = engine == "segment" and not where
    one_by_one = rate(lambda: len([topic.write(BODY) for _ in range(100)]), fills_memory=fills)
    note("one by one", one_by_one)
    note("batches of 100", rate(lambda: len(topic.write_many(plain)), fills_memory=fills))
    keyed = store.create_topic(f"{engine}-keyed", storage=engine)
    rich = [Record(BODY, b"k%d" % number, ("tag",)) for number in range(100)]
    with_both = rate(lambda: len(keyed.write_many(rich)), fills_memory=fills)
    note("batches of 100, key + tag", with_both)
    end = topic.describe().partitions[0].commit
    position = int(topic.describe().partitions[0].earliest)

    def read() -> int:
        nonlocal position
        page = topic.read(0, position)
        position = page[-1].offset + 1 if page else topic.describe().partitions[0].earliest
        return len(page)

    assert end > 0
    note("read in order", rate(read))
    note("newest by key", rate(lambda: int(keyed.read_by_key(b"k7") is not None)))


def measure_offsets(figures: Figures) -> None:
    for name, cached in (("cached", True), ("direct", False)):
        with (
            tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root,
            penstock.open(f"{root}/data", offsets__enable_cache=cached) as store,
        ):
            store.create_topic("t").write_many([BODY] * 100)
            consumer = store.consumer("g", ["t"])
            number = 0

            def commit(consumer: penstock.Consumer = consumer) -> int:
                nonlocal number
                number = (number + 1) % 100
                consumer.commit({("t", 0): number})
                return 1

            figures.setdefault(f"offset commits, {name}", []).append(rate(commit))


class Start(NamedTuple):
    figure: Figure
    memory: int


def start(path: str) -> Start:
    """Open a store in a fresh process."""
    command = [sys.executable, "-m", "bench.start_cases", path]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return Start(Figure(float(printed[0]), float(printed[1])), int(printed[2]))


def measure_topics(count: int, figures: Figures) -> None:
    def note(name: str, figure: Figure) -> None:
        figures.setdefault(name, []).append(figure)

    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root:
        with penstock.open(f"{root}/empty") as store:
            store.create_topic("first")
        with penstock.open(f"{root}/wide") as store:
            for number in range(max(1, count // 1_000)):
                store.create_topic(f"wide-{number}", partitions=1_000)
        with penstock.open(f"{root}/data") as store:
            store.create_topic("first").write(b"opens the engine")
            with Stopwatch() as creation, ThreadPoolExecutor(CREATORS) as pool:
                for _ in pool.map(lambda n: store.create_topic(f"topic-{n}"), range(count)):
                    pass
        note("topics created, seconds", creation.figure)
        empty, full, wide = (start(f"{root}/{name}") for name in ("empty", "data", "wide"))
        note("start with all topics, seconds", full.figure)
        note("memory per idle topic, bytes", Figure((full.memory - empty.memory) / count))
        shards = max(1, count // 1_000) * 1_000
        note("memory per idle shard, bytes", Figure((wide.memory - empty.memory) / shards))
        with (
            penstock.open(f"{root}/data") as store,
            Stopwatch() as deletion,
            ThreadPoolExecutor(CREATORS) as pool,
        ):
            for _ in pool.map(lambda n: store.topic(f"topic-{n}").delete(), range(count)):
                pass
        note("topics deleted, seconds", deletion.figure)


def measure_serve(figures: Figures) -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root:
        figure = Figure(*first_line_of_serve(f"{root}/data"))
    figures.setdefault("first line of `penstock serve`, seconds", []).append(figure)


class Stopwatch:
    def __enter__(self) -> Self:
        self._cpu = time.process_time()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed = time.perf_counter() - self._started
        self.figure = Figure(elapsed, time.process_time() - self._cpu)


def print_table(figures: Figures, topics: int) -> None:
    title = f"Engines, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {topics} topics"
    table = Table(title=title)
    for heading in ("case", "median", "range", "by CPU time", "aim"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for name, noted in figures.items():
        digits = 2 if name.endswith("seconds") else 0
        values = [figure.by_clock for figure in noted]
        by_cpu = [figure.by_cpu for figure in noted if figure.by_cpu is not None]
        table.add_row(
            name,
            f"{statistics.median(values):,.{digits}f}",
            f"{min(values):,.{digits}f} … {max(values):,.{digits}f}",
            f"{statistics.median(by_cpu):,.{digits}f}" if by_cpu else "",
            AIMS.get(name, ""),
        )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--engines", default=",".join(ENGINES))
    arguments = parser.parse_args()
    cases, engines = arguments.cases.split(","), arguments.engines.split(",")
    figures: Figures = {}
    console = Console(stderr=True)
    for number in range(arguments.rounds):
        console.print(f"round {number + 1} of {arguments.rounds}")
        for case, opened, where in (("embedded", embedded, ""), ("grpc", remote, ", gRPC")):
            if case in cases:
                for engine in engines:
                    with opened() as store:
                        measure_engine(store, engine, where, figures)
                    os.sync()
        if "offsets" in cases:
            measure_offsets(figures)
        if "topics" in cases:
            measure_topics(arguments.topics, figures)
        if "serve" in cases:
            measure_serve(figures)
    print_table(figures, arguments.topics)


if __name__ == "__main__":
    main()
