"""How fast are the engines through the public API, embedded and over gRPC, and what do topics cost?

Sketch first: a batch of 100 records of 100 B is some 30 µs of native work in the segment engine and
10 µs of Python around it: 2 M records/s and more. The memory engine makes objects of them: 1 M.
RocksDB writes three rows per record: 60 to 120 k. gRPC encodes every record twice: 100 k. A
topic is one synced metadata entry: 1,000 a second and more with one sync for several.

    python -m bench.engines [--rounds 3] [--topics 10000]

Prints one table: medians and ranges.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.table import Table

import penstock
from penstock import Record, Store
from penstock.remote.server import Server
from penstock.settings import EMBEDDED, merge_settings

ENGINES: Final = ("memory", "rocksdb", "segment")
SECONDS: Final = 2.0
BODY: Final = bytes(range(100))
AIMS: Final = {
    "segment, batches of 100": "2,000,000",
    "memory, batches of 100": "1,000,000",
    "rocksdb, batches of 100, key + tag": "60,000",
    "topics created, seconds": "10",
    "memory per idle topic, bytes": "4,096",
    "start with all topics, seconds": "2",
}

Figures = dict[str, list[float]]


@contextmanager
def embedded() -> Iterator[Store]:
    with (
        tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root,
        penstock.open(f"{root}/data") as store,
    ):
        yield store


@contextmanager
def remote() -> Iterator[Store]:
    settings = merge_settings(EMBEDDED, {"server": {"port": 0, "http_port": 0}})
    with (
        tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root,
        Server(f"{root}/data", settings) as server,
        penstock.connect(f"127.0.0.1:{server.port}") as store,
    ):
        yield store


def rate(step: Callable[[], int]) -> float:
    """Repeat `step`, which says how much it did, for some seconds; return the rate."""
    step()
    done = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        done += step()
    return done / elapsed


def measure_engine(store: Store, engine: str, where: str, figures: Figures) -> None:
    def note(name: str, value: float) -> None:
        figures.setdefault(f"{engine}, {name}{where}", []).append(value)

    topic = store.create_topic(f"{engine}-plain", storage=engine)
    plain = [Record(BODY) for _ in range(100)]
    note("one by one", rate(lambda: len([topic.write(BODY) for _ in range(100)])))
    note("batches of 100", rate(lambda: len(topic.write_many(plain))))
    keyed = store.create_topic(f"{engine}-keyed", storage=engine)
    rich = [Record(BODY, b"k%d" % number, ("tag",)) for number in range(100)]
    note("batches of 100, key + tag", rate(lambda: len(keyed.write_many(rich))))
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


def resident_size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measure_topics(count: int, figures: Figures) -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root:
        with penstock.open(f"{root}/data") as store:
            store.create_topic("first").write(b"opens the engine")
            gc.collect()
            before = resident_size()
            started = time.perf_counter()
            for number in range(count):
                store.create_topic(f"topic-{number}")
            elapsed = time.perf_counter() - started
            figures.setdefault("topics created, seconds", []).append(elapsed)
            gc.collect()
            size = (resident_size() - before) / count
            figures.setdefault("memory per idle topic, bytes", []).append(size)
        started = time.perf_counter()
        with penstock.open(f"{root}/data") as store:
            elapsed = time.perf_counter() - started
            figures.setdefault("start with all topics, seconds", []).append(elapsed)
            assert len(store.topics()) == count + 1


def print_table(figures: Figures, topics: int) -> None:
    title = f"Engines, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {topics} topics"
    table = Table(title=title)
    for heading in ("case", "median", "range", "aim"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for name, values in figures.items():
        digits = 2 if name.endswith("seconds") else 0
        table.add_row(
            name,
            f"{statistics.median(values):,.{digits}f}",
            f"{min(values):,.{digits}f} … {max(values):,.{digits}f}",
            AIMS.get(name, ""),
        )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000)
    arguments = parser.parse_args()
    figures: Figures = {}
    console = Console(stderr=True)
    for number in range(arguments.rounds):
        console.print(f"round {number + 1} of {arguments.rounds}")
        for opened, where in ((embedded, ""), (remote, ", gRPC")):
            with opened() as store:
                for engine in ENGINES:
                    measure_engine(store, engine, where, figures)
        measure_offsets(figures)
        measure_topics(arguments.topics, figures)
    print_table(figures, arguments.topics)


if __name__ == "__main__":
    main()
