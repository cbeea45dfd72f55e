"""`Scrubber`: reads what no client reads, and verifies its checksums.

A pass verifies every record that the engines of this node have on the disk, leader or not, in
slices with pauses between them; it takes half of the interval, so that what is written after its
shard was read is verified within one, or longer when the rate is not enough. A start begins a new
pass with another shard, so that all are verified in the end although a node starts often.

Damage is reported once: in the log, by metrics, as a warning of `/health`. For a replicated shard
the same follows as for damage that a reader found: a follower copies the record again, a leader
resigns first. Damage that can be read again, or is deleted, is not reported any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.engine.contract import VerifiedEngine
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import ClosedError, CorruptionError, StoreError
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)
_DAY_S: Final = 24 * 3_600.0
_SLICE_SIZE: Final = 256 << 10
_RATE_MIN: Final = 64 << 10
"""Bytes per second of a small store: its pass need not last for days."""
_STEP_S: Final = 10.0
"""Between two looks at damage that may have been repaired, and of an idle scrubber at the time."""
_JOIN_S: Final = 60.0
_DAMAGED_MAX: Final = 1_000
"""Damaged shards that are remembered, for repairs and reports; what is beyond is in the log."""


class ScrubLimits(Struct, frozen=True, kw_only=True):
    interval_s: float = 14 * _DAY_S
    """0: nothing is verified."""
    rate: int = 4 << 20
    """Bytes per second."""


class ScrubMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.size = Counter(
            "penstock_scrub_bytes", "bytes of stored records verified", registry=registry
        )
        self.passes = Counter(
            "penstock_scrub_passes", "times that all records were verified", registry=registry
        )
        self.found = Counter(
            "penstock_scrub_damage_found",
            "damaged records that the scrubber was the first to read",
            registry=registry,
        )
        self.damaged_shards = Gauge(
            "penstock_scrub_damaged_shards",
            "shards with damage that the scrubber found and that is not repaired",
            registry=registry,
        )


class Scrubber:
    """`run_once` does a whole pass; `start` does them in a thread of its own; `stop` at the end."""

    def __init__(
        self, handler: StorageEngineHandler, limits: ScrubLimits, registry: CollectorRegistry
    ) -> None:
        self._handler: Final = handler
        self._clock: Final = handler.clock
        self._limits: Final = limits
        self._metrics: Final = ScrubMetrics(registry)
        self._damage: dict[str, int] = {}
        """For each damaged shard the first such offset that is known."""
        self._reported: set[tuple[str, int]] = set()
        self._looked_at = self._clock.monotonic()
        self._stopping: Final = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        assert self._thread is None, "started once"
        if self._limits.interval_s > 0:
            self._thread = threading.Thread(target=self._run, name="penstock-scrub", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def damaged(self) -> list[tuple[str, int]]:
        """Return the shards with damage that was found and not repaired, and where it is."""
        return sorted(self._damage.copy().items())

    def run_once(self) -> None:
        """Verify everything now, without a pause."""
        for entry in self._entries():
            for _ in self._verify(entry):
                pass
        self.look_again()
        self._metrics.passes.inc()

    def look_again(self) -> None:
        """Forget damage that was repaired or deleted."""
        for name, offset in self.damaged():
            entry = self._handler.cache.shards.get(name)
            engine = None if entry is None else self._engine_of(entry)
            try:
                if entry is not None and engine is not None:
                    engine.verify_records(entry.id, offset, 1)
            except CorruptionError:
                continue
            except StoreError:
                pass  # deleted meanwhile
            del self._damage[name]
            self._reported = {known for known in self._reported if known[0] != name}
            _log.info("damage_is_gone", shard=name, offset=offset)
        self._metrics.damaged_shards.set(len(self._damage))
        self._looked_at = self._clock.monotonic()

    def _run(self) -> None:
        turn = self._clock.now_ms()
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            entries = self._entries()
            first = turn % max(1, len(entries))
            turn = 0
            rate = self._rate(entries)
            for entry in entries[first:] + entries[:first]:
                self._verify_slowly(entry, rate)
            if self._stopping.is_set():
                return
            self._metrics.passes.inc()
            while self._clock.monotonic() - began < self._limits.interval_s / 2:
                if self._pause(_STEP_S):
                    return

    def _rate(self, entries: list[ShardEntry]) -> float:
        total = 0
        for entry in entries:
            if self._engine_of(entry) is not None:
                with suppress(StoreError):  # deleted meanwhile
                    engine = self._handler.engines.get(entry.topic.storage_type)
                    total += engine.shard_info(entry.id).size
        return min(self._limits.rate, max(_RATE_MIN, 2 * total / self._limits.interval_s))

    def _verify_slowly(self, entry: ShardEntry, rate: float) -> None:
        try:
            for size in self._verify(entry):
                if self._pause(size / rate):
                    return
        except Exception as error:  # noqa: BLE001 - an error in one shard must not stop the others
            _log.error("scrub_failed", cause=error, shard=entry.name)

    def _pause(self, seconds: float) -> bool:
        """Return whether the scrubber is to stop."""
        if self._clock.wait(self._stopping, seconds):
            return True
        if self._damage and self._clock.monotonic() - self._looked_at >= _STEP_S:
            self.look_again()
        return False

    def _entries(self) -> list[ShardEntry]:
        return [entry for entry in self._handler.cache.entries() if entry.is_open]

    def _engine_of(self, entry: ShardEntry) -> VerifiedEngine | None:
        if not entry.is_open:
            return None
        try:
            engine: object = self._handler.engines.get(entry.topic.storage_type)
        except StoreError:
            return None  # its package is missing, or its directory: the start has reported it
        return engine if isinstance(engine, VerifiedEngine) else None

    def _verify(self, entry: ShardEntry) -> Iterator[int]:
        """Verify a shard slice by slice; yield the size of each."""
        engine = self._engine_of(entry)
        if engine is None:
            return
        offset, skipped = 0, 1
        while not self._stopping.is_set():
            size = 0
            try:
                after, size = engine.verify_records(entry.id, offset, _SLICE_SIZE)
                skipped = 1
            except CorruptionError as error:
                self._report(entry, offset, error)
                # What follows may be of the same batch, or in the same lost file.
                after, skipped = offset + skipped, 2 * skipped
            except ClosedError:
                self._stopping.set()
                return
            except StoreError:
                return  # deleted meanwhile, or taken away
            if after <= offset:
                return
            offset = after
            self._metrics.size.inc(size)
            yield size

    def _report(self, entry: ShardEntry, offset: int, error: CorruptionError) -> None:
        if len(self._damage) < _DAMAGED_MAX:
            self._damage.setdefault(entry.name, offset)
            self._metrics.damaged_shards.set(len(self._damage))
        place = entry.name, offset
        if place not in self._reported:
            if len(self._reported) < _DAMAGED_MAX:
                self._reported.add(place)
            self._metrics.found.inc()
            _log.error("scrub_found_damage", shard=entry.name, offset=offset, error=str(error))
        replica = entry.replica
        if replica is not None:
            replica.report_damage(offset)
