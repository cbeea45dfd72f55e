"""How fast is a tier filled, and how fast is it read when it is cold?

Sketch first: an upload is a read of the log, a pass to move records, one to check them, and a PUT:
with records of 1 KB some hundred MB/s of CPU work, then what the provider takes. A cold read in
order should be as fast as the same ranged GETs in any order, because eight of them are on their way
at any time; a reader that waits for each answer gets one part per round trip: with 20 ms a request,
4 MB / (20 ms + transfer).

    python -m bench.tiered --mb 256 --latency-ms 0 --latency-ms 20
    python -m bench.tiered --url s3://bucket/prefix --set endpoint=…

Latency is added in the client, in front of every GET. Prints one JSON line per case: the median and
the range of three runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.dispatcher import upload_shard
from penstock.tiered.fetcher import Fetcher
from penstock.tiered.providers import ObjectBytes, ObjectInfo, TierProvider
from penstock.tiered.tier_config import TierConfig
from penstock.tiered.tier_reader import TierQuery

MB = 1 << 20
SHARD = ShardId("bench", 0)


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


def tell(case: str, unit: str, runs: list[float], **more: object) -> None:
    found = sorted(runs)
    line = {
        "case": case,
        "unit": unit,
        "median": round(statistics.median(found), 2),
        "range": [round(found[0], 2), round(found[-1], 2)],
        **more,
    }
    print(json.dumps(line), flush=True)


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


def read_ordered(config: TierConfig, provider: TierProvider) -> int:
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    size = sum(len(chunk.data) for chunk in flat.reader.stream())
    flat.fetcher.close()
    return size


def read_unordered(config: TierConfig, provider: TierProvider, threads: int) -> int:
    """The same ranges, eight at a time, in whatever order they come."""
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    flat.refresh()
    fetcher = Fetcher(provider, config.fetch)
    jobs = [
        (flat.manifest.prefix + entry.name, begin, end - begin)
        for entry in flat.manifest.chunks_from(0)
        for begin, end in fetcher._spans(entry)
    ]
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda job: len(provider.get_range(*job)), jobs))


def measure_latency(config: TierConfig, inner: TierProvider, latency_ms: float) -> None:
    slow = Slow(inner, latency_ms / 1000)
    cases: dict[str, Callable[[], int]] = {
        "unordered GETs": lambda: read_unordered(config, slow, config.fetch.window),
        "ordered cold read": lambda: read_ordered(config, slow),
        "stop and wait": lambda: read_unordered(config, slow, 1),
    }
    found: dict[str, float] = {}
    for name, work in cases.items():
        slow.gets = 0
        runs = [timed(work) for _ in range(3)]
        size = work() / MB
        tell(name, "MB/s", runs, latency_ms=latency_ms, gets_per_mb=round(slow.gets / size / 4, 3))
        found[name] = statistics.median(runs)
    print(
        json.dumps(
            {
                "case": "ratios",
                "latency_ms": latency_ms,
                "ordered_to_unordered": round(
                    found["ordered cold read"] / found["unordered GETs"], 2
                ),
                "ordered_to_stop_and_wait": round(
                    found["ordered cold read"] / found["stop and wait"], 2
                ),
            }
        ),
        flush=True,
    )
    first_record(config, slow, latency_ms)


def first_record(config: TierConfig, slow: Slow, latency_ms: float) -> None:
    runs: list[float] = []
    gets: list[int] = []
    flat = CompositeFlatFile(config, SHARD, provider=slow)
    for n in range(20):
        entry = next(flat.manifest.chunks_from(0, flat.current()))
        flat.fetcher.footer(flat.manifest.prefix, entry)
        before = slow.gets
        started = time.perf_counter()
        offset = entry.first_offset + n * 97 % max(1, entry.units)
        page = flat.reader.read(TierQuery(offset, max_records=1))
        runs.append((time.perf_counter() - started) * 1000)
        gets.append(slow.gets - before)
        assert len(page.records) == 1
    tell("first record, index cached", "ms", runs, latency_ms=latency_ms, gets_max=max(gets))
    flat.fetcher.close()


def memory_of_stream(config: TierConfig, provider: TierProvider) -> None:
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    flat.refresh()
    tracemalloc.start()
    for _ in flat.reader.stream():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    flat.fetcher.close()
    tell("memory of one stream", "MB", [peak / MB])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--record-size", type=int, default=1024)
    parser.add_argument("--url", default="")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--latency-ms", type=float, action="append", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = arguments.url or f"file://{directory}/tier"
        options = dict(each.split("=", 1) for each in arguments.set)
        config = TierConfig(url=url, options=options)
        provider = config.open()
        with fill(f"{directory}/store", arguments.mb, arguments.record_size) as store:
            runs = []
            for _ in range(3):
                flat = CompositeFlatFile(config, SHARD, provider=provider)
                flat.destroy()
                flat = CompositeFlatFile(config, SHARD, provider=provider)
                flat.acquire()
                cpu = time.process_time()
                runs.append(timed(lambda flat=flat: upload_shard(store, flat)))
                cpu = time.process_time() - cpu
            tell("offload", "MB/s", runs, cpu_mb_per_s=round(arguments.mb / cpu, 1))
        for latency_ms in arguments.latency_ms or [0.0, 20.0]:
            measure_latency(config, provider, latency_ms)
        memory_of_stream(config, provider)


if __name__ == "__main__":
    main()
