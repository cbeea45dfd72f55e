"""How fast is the segment store, beside RocketMQ's DefaultMessageStore on the same machine?

Sketch first: a 100-byte record is about 230 bytes in the log. One copy of them, two checksums, one
queue unit and two index entries are some 0.3 µs of native work; a Python call and a `Record` are as
much again: 1 to 1.5 M records/s one by one, 3 to 5 M in batches. A sync is one device round trip
(0.3 ms here), shared by all who wait. A result far from that is a bug or a finding.

    python -m bench.store           three rounds, RocketMQ beside us if Maven and Java are there
    python -m bench.store --rounds 1 --records 200000 --no-rocketmq

Both run in turns, in processes of their own, on the same disk, with memory that the machine has in
hand (`bench/quiet.py`). Prints medians and ranges.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from bench.quiet import settle
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.oracle.rocketmq import RocketMQ, is_available

CASE_TIMEOUT_S: Final = 900


class Row(NamedTuple):
    """A line of the table: our figure, RocketMQ's, and the ratio to reach."""

    name: str
    ours: str
    theirs: str | None = None
    aim: float | None = None
    less_is_better: bool = False


ROWS: Final = [
    Row("one message, 100 B, key + tag, records/s", "put", "put 1 thread 100B incl. dispatch", 3),
    Row("  p50, µs", "put p50 us", "put 1 thread 100B p50", None, True),
    Row("  p99, µs", "put p99 us", "put 1 thread 100B p99", None, True),
    Row("one message, 4 threads, records/s", "put 4 threads", "put 4 threads 100B"),
    Row("  p99, µs", "put 4 threads p99 us", None, None, True),
    Row("batches of 100, records/s", "batch 100", "put batch 100 100B incl. dispatch", 5),
    Row("batches of 1000, records/s", "batch 1000", "put batch 100 100B incl. dispatch"),
    Row("  p99 of a batch of 1000, µs", "batch 1000 p99 us", None, None, True),
    Row("Arrow columns of 10,000 rows, records/s", "columns 10000"),
    Row("sync flush, 1 writer, 1 KB, records/s", "sync 1", "put SYNC_FLUSH 1 threads 1KB"),
    Row("sync flush, 8 writers, records/s", "sync 8", "put SYNC_FLUSH 8 threads 1KB"),
    Row("sync flush, 32 writers, records/s", "sync 32", "put SYNC_FLUSH 32 threads 1KB", 1.5),
    Row("  32 coroutines, records/s", "sync 32 tasks", "put SYNC_FLUSH 32 threads 1KB", 1.5),
    Row(
        "read in order, objects, records/s", "read objects", "get sequential x32 100B + decode", 0.5
    ),
    Row("read in order, Arrow, records/s", "read arrow", "get sequential x32 100B + decode", 2),
    Row("read one at random, reads/s", "read random", "get random x1 100B"),
    Row("newest by key, queries/s", "query key", "queryMessage by key 100B"),
    Row("memory after reading, MB", "memory MB"),
    Row("recovery of 1.4 GB after SIGKILL, ms", "recovery after kill ms", "recovery kill", 3, True),
    Row("start after a clean stop, ms", "start after clean stop ms", "recovery clean", None, True),
]

Figures = dict[str, list[float]]


def note(figures: Figures, output: str) -> None:
    for line in output.splitlines():
        parts = line.rstrip().split("\t")
        if len(parts) in (2, 3):
            figures.setdefault(parts[0], []).append(float(parts[-1]))


def run_ours(figures: Figures, case: str, path: str, records: int, *, pure: bool = False) -> None:
    settle()
    environment = {**os.environ, "PENSTOCK_PURE": "1"} if pure else dict(os.environ)
    command = [sys.executable, "-m", "bench.store_cases", case, path, "--records", str(records)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=CASE_TIMEOUT_S,
        env=environment,
        check=False,
    )
    if done.returncode and case != "recover-write":
        sys.exit(f"{case} failed:\n{done.stderr}")
    note(figures, done.stdout)


def run_theirs(figures: Figures, oracle: RocketMQ, case: str, path: str) -> None:
    settle()
    command = oracle.command("Bench", case, path, heap="2g")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CASE_TIMEOUT_S, check=False
    )
    note(figures, done.stdout)


def recover_theirs(figures: Figures, oracle: RocketMQ, path: str, records: int) -> None:
    """Let RocketMQ write as much, kill it, and open it twice."""
    command = oracle.command("Bench", "recover-write", path, str(records), heap="2g")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if b"WROTE" in line:
                break
        writer.kill()
    for _ in range(2):
        run_theirs(figures, oracle, "recover-open", path)
    for name in list(figures):
        if name.endswith("load()+start()"):
            kind = "recovery kill" if "kill" in name else "recovery clean"
            figures.setdefault(kind, []).extend(figures.pop(name))


def one_round(
    ours: Figures, theirs: Figures, oracle: RocketMQ | None, records: int, progress: Progress
) -> None:
    cases = ("put", "batch", "sync", "read")
    task = progress.add_task("round", total=2 * len(cases) + 2)
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root:
        for case in cases:
            run_ours(ours, case, f"{root}/ours", records)
            if case == "sync":
                run_ours(ours, "sync-tasks", f"{root}/ours", records)
            progress.advance(task)
            if oracle is not None:
                run_theirs(
                    theirs, oracle, "put100" if case in ("put", "batch") else case, f"{root}/r"
                )
            progress.advance(task)
        written = records * 13 // 10
        run_ours(ours, "recover-write", f"{root}/recover", written)
        for _ in range(2):
            run_ours(ours, "recover-open", f"{root}/recover", written)
        progress.advance(task)
        if oracle is not None:
            recover_theirs(theirs, oracle, f"{root}/theirs", written)
        progress.advance(task)


def spread(values: list[float] | None) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} … {max(values):,.0f})"


def ratio_of(row: Row, ours: Figures, theirs: Figures) -> str:
    mine, other = ours.get(row.ours), theirs.get(row.theirs or "")
    if not mine or not other:
        return "–"
    ratio = statistics.median(mine) / statistics.median(other)
    return f"{1 / ratio if row.less_is_better else ratio:.2f} ×"


def print_table(ours: Figures, theirs: Figures, pure: Figures) -> None:
    table = Table(title=f"Segment store, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores")
    for heading in ("case", "Penstock", "RocketMQ 5.5.0", "ratio", "aim", "pure Python"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in ROWS:
        table.add_row(
            row.name,
            spread(ours.get(row.ours)),
            spread(theirs.get(row.theirs or "")),
            ratio_of(row, ours, theirs),
            f"{row.aim:g} ×" if row.aim else "",
            spread(pure.get(row.ours)),
        )
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--no-rocketmq", action="store_true")
    parser.add_argument("--no-pure", action="store_true")
    arguments = parser.parse_args()
    oracle = None
    if is_available() and not arguments.no_rocketmq:
        oracle = RocketMQ()
        oracle.build()
    ours: Figures = {}
    theirs: Figures = {}
    pure: Figures = {}
    with Progress(console=Console(stderr=True)) as progress:
        for _ in range(arguments.rounds):
            one_round(ours, theirs, oracle, arguments.records, progress)
        if not arguments.no_pure:
            with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as root:
                for case in ("put", "batch", "read"):
                    few = max(20_000, arguments.records // 20)
                    run_ours(pure, case, str(Path(root, "pure")), few, pure=True)
    print_table(ours, theirs, pure)


if __name__ == "__main__":
    main()
