"""How fast is a tier filled, and how fast is it read when it is cold?

Sketch first: an upload is a read of the log, a pass to move records, one to check them, and a PUT:
with records of 1 KB some hundred MB/s of CPU work, then what the provider takes. A cold read in
order should be as fast as the same ranged GETs in any order, because eight of them are on their way
at any time and a checksum is cheaper than a copy; a reader that waits for each answer gets one part
per round trip: with 20 ms a request, 4 MB / (20 ms + transfer).

    python -m bench.tiered --mb 256 --latency-ms 0 --latency-ms 20
    python -m bench.tiered --url s3://bucket/prefix --set endpoint=…

Latency is added in the client, in front of every GET. The readers of one latency take turns; the
table has the median and the range of five runs. MB are 2^20 bytes. The memory of a stream is what
the resident set of a process grows by at most while it reads, once as fast as it can and once with
a reader that takes 30 ms for each chunk, so that everything asked for has come.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.providers import ObjectBytes, ObjectInfo, TierProvider
from penstock.tiered.providers.contract import Blocks, get_range_into, get_range_summed, path_of
from penstock.tiered.read.fetcher import Fetcher
from penstock.tiered.read.tier_query import TierQuery
from penstock.tiered.upload.dispatcher import upload_shard

MB = 1 << 20
RUNS = 5
SHARD = ShardId("bench", 0)
SLOW_READER_S = 0.03


class Slow:
    """A provider with a latency in front of each read."""

    def __init__(self, inner: TierProvider, latency_s: float) -> None:
        self.inner = inner
        self.latency_s = latency_s
        self.gets = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    def get_range(self, key: str, start: int, size: int) -> bytes:
        with self._lock:
            self.gets += 1
        if self.latency_s:
            time.sleep(self.latency_s)
        return self.inner.get_range(key, start, size)

    def get_range_into(
        self, key: str, start: int, size: int, take: Callable[[], memoryview]
    ) -> None:
        with self._lock:
            self.gets += 1
        if self.latency_s:
            time.sleep(self.latency_s)
        get_range_into(self.inner, key, start, size, take)

    def get_range_summed(
        self, key: str, start: int, size: int, take: Callable[[], memoryview], blocks: Blocks
    ) -> bytes:
        with self._lock:
            self.gets += 1
        if self.latency_s:
            time.sleep(self.latency_s)
        return get_range_summed(self.inner, key, start, size, take, blocks)

    def path_of(self, key: str) -> str | None:
        """Files have no latency; each that is read is counted by the fetcher."""
        return None if self.latency_s else path_of(self.inner, key)

    def get(self, key: str) -> ObjectBytes:
        if self.latency_s:
            time.sleep(self.latency_s)
        return self.inner.get(key)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.inner.put_if_absent(key, data)

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        return self.inner.compare_and_set(key, data, expected)

    def head(self, key: str) -> ObjectInfo | None:
        return self.inner.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def close(self) -> None:
        self.inner.close()


class Table:
    """Rows as they are measured on stderr, and all of them at the end."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = [("case", "median", "range", "unit", "aim", "")]

    def add(self, case: str, unit: str, runs: list[float], aim: tuple[str, float] | None) -> float:
        found = sorted(runs)
        median = statistics.median(found)
        spread = f"{found[0]:.4g} - {found[-1]:.4g}" if len(found) > 1 else ""
        wanted = verdict = ""
        if aim is not None:
            sign, limit = aim
            wanted = f"{sign} {limit:g}"
            met = median >= limit if sign == ">=" else median <= limit
            verdict = "met" if met else "MISSED"
        self._rows.append((case, f"{median:.4g}", spread, unit, wanted, verdict))
        print(*self._rows[-1], file=sys.stderr, flush=True)
        return median

    def print(self) -> None:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        for row in self._rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip(), flush=True)


def fill(directory: str, size_mb: int, record_size: int) -> SegmentStore:
    sizes = FileSizes(commit_log_file_size=256 * MB)
    store = SegmentStore.open(directory, SegmentSettings(sizes=sizes))
    store.create_shard(SHARD)
    value = bytes(range(256)) * (record_size // 256 + 1)
    for first in range(0, size_mb * MB // record_size, 500):
        store.append_many(
            SHARD,
            [Record(value[:record_size], key=b"k%d" % (first + n)) for n in range(500)],
        )
    return store


def timed(work: Callable[[], int]) -> float:
    """Return MB/s."""
    started = time.perf_counter()
    return work() / MB / (time.perf_counter() - started)


def read_ordered(config: TierConfig, provider: TierProvider, fetcher: Fetcher) -> int:
    flat = CompositeFlatFile(config, SHARD, provider=provider, fetcher=fetcher)
    return sum(len(chunk.data) for chunk in flat.reader.stream())


def read_pages(config: TierConfig, provider: TierProvider) -> int:
    """Every record as an object, by pages, as a consumer of the topic gets them."""
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    offset = size = 0
    while (page := flat.reader.read(TierQuery(offset))).records:
        offset = page.next_offset
        size += sum(len(one.value or b"") for one in page.records)
    flat.fetcher.close()
    return size


def read_unordered(config: TierConfig, provider: TierProvider, threads: int) -> int:
    """The same ranges, as many at a time, in whatever order they come."""
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    flat.refresh()
    fetcher = Fetcher(provider, config.fetch)
    jobs = [
        (flat.manifest.prefix + entry.name, span.begin, span.end - span.begin)
        for entry in flat.manifest.chunks_from(0)
        for span in fetcher.spans(entry)
    ]
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda job: len(provider.get_range(*job)), jobs))


def measure_latency(
    table: Table, config: TierConfig, inner: TierProvider, latency_ms: float
) -> None:
    slow = Slow(inner, latency_ms / 1000)
    fetcher = config.fetcher(slow)
    cases: dict[str, Callable[[], int]] = {
        "unordered GETs": lambda: read_unordered(config, slow, config.fetch.window),
        "ordered cold read": lambda: read_ordered(config, slow, fetcher),
        "stop and wait": lambda: read_unordered(config, slow, 1),
        "pages of records": lambda: read_pages(config, slow),
    }
    runs: dict[str, list[float]] = {name: [] for name in cases}
    gets: list[float] = []
    for number in range(-1, RUNS):
        for name, work in cases.items():
            fetcher.requests = 0
            speed = timed(work)
            if number >= 0:
                runs[name].append(speed)
            if name == "ordered cold read":
                gets.append(fetcher.requests / (work_size(config, inner) / MB))
    where = f"{latency_ms:g} ms"
    found = {name: table.add(f"{name}, {where}", "MB/s", runs[name], None) for name in cases}
    ordered = found["ordered cold read"]
    ratio = ordered / found["unordered GETs"]
    table.add(f"ordered / unordered, {where}", "x", [ratio], (">=", 0.9))
    if latency_ms:
        ratio = ordered / found["stop and wait"]
        table.add(f"ordered / stop and wait, {where}", "x", [ratio], (">=", 5.0))
    table.add(f"GETs of the ordered read, {where}", "per MB", [gets[-1]], ("<=", 0.25))
    fetcher.close()
    first_record(table, config, slow, where)


def work_size(config: TierConfig, provider: TierProvider) -> int:
    """Return the bytes of all objects that a whole read gets."""
    manifest = CompositeFlatFile(config, SHARD, provider=provider).refresh()
    return 0 if manifest is None else manifest.object_size


def first_record(table: Table, config: TierConfig, slow: Slow, where: str) -> None:
    runs: list[float] = []
    gets: list[int] = []
    flat = CompositeFlatFile(config, SHARD, provider=slow)
    for entry in list(flat.manifest.chunks_from(0, flat.current()))[:20]:
        flat.fetcher.footer(flat.manifest.prefix, entry)
        before = slow.gets
        started = time.perf_counter()
        page = flat.reader.read(TierQuery(entry.first_offset + entry.units // 2, max_records=1))
        runs.append((time.perf_counter() - started) * 1000)
        gets.append(slow.gets - before)
        assert len(page.records) == 1
    table.add(f"first record, index cached, {where}", "ms", runs, None)
    table.add(f"GETs of a first record, {where}", "", [float(max(gets))], ("<=", 1.0))
    flat.fetcher.close()


def resident(field: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def stream_once(url: str, options: dict[str, str], pause_s: float, latency_s: float) -> None:
    """Read a tier in this process and print by how many MB it grew at most."""
    config = TierConfig(url=url, options=options)
    flat = CompositeFlatFile(config, SHARD, provider=Slow(config.open(), latency_s))
    flat.refresh()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    for _ in flat.reader.stream():
        time.sleep(pause_s)
    print(resident("VmHWM") - before)


def memory_of_stream(table: Table, url: str, settings: list[str], latencies: list[float]) -> None:
    for latency_ms, (name, pause_s) in product(latencies, (("fast", 0.0), ("slow", SLOW_READER_S))):
        command = [sys.executable, "-m", "bench.tiered", "--url", url, "--stream", str(pause_s)]
        command += ["--latency-ms", str(latency_ms)]
        for each in settings:
            command += ["--set", each]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        case = f"memory of a stream, {name} reader, {latency_ms:g} ms"
        table.add(case, "MB", [float(done.stdout)], ("<=", 32.0))


def offload(table: Table, config: TierConfig, provider: TierProvider, store: SegmentStore) -> None:
    runs: list[float] = []
    by_processor: list[float] = []
    for _ in range(3):
        CompositeFlatFile(config, SHARD, provider=provider).destroy()
        flat = CompositeFlatFile(config, SHARD, provider=provider)
        flat.acquire()
        used = time.process_time()
        begun = time.perf_counter()
        size = upload_shard(store, flat) / MB
        runs.append(size / (time.perf_counter() - begun))
        by_processor.append(size / (time.process_time() - used))
    table.add("offload", "MB/s", runs, None)
    table.add("offload by processor time", "MB/s", by_processor, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--record-size", type=int, default=1024)
    parser.add_argument("--url", default="")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--latency-ms", type=float, action="append", default=[])
    parser.add_argument("--stream", type=float, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = dict(each.split("=", 1) for each in arguments.set)
    if arguments.stream is not None:
        stream_once(arguments.url, options, arguments.stream, sum(arguments.latency_ms) / 1000)
        return
    table = Table()
    with tempfile.TemporaryDirectory() as directory:
        url = arguments.url or f"file://{directory}/tier"
        config = TierConfig(url=url, options=options)
        provider = config.open()
        with fill(f"{directory}/store", arguments.mb, arguments.record_size) as store:
            offload(table, config, provider, store)
        latencies = arguments.latency_ms or [0.0, 20.0]
        for latency_ms in latencies:
            measure_latency(table, config, provider, latency_ms)
        memory_of_stream(table, url, arguments.set, latencies)
    table.print()


if __name__ == "__main__":
    main()
