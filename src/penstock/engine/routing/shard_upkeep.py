"""What a node does for its shards by itself: segments roll and are forgotten, old records go.

    roll        a segment ends when it holds `roll_size` bytes or is `roll_age_ms` old. One command
                seals it and opens the next at the same offset. Writers are not stopped: the offset
                is one that is not given out yet, so whatever they write belongs to the next
    trim        segments that lie wholly before a shard's earliest offset: pre-delete, deleting,
                forgotten
    retention   age, size and number of records, for engines that do not look after that themselves
    compaction  shards that are compacted: what was written to since the last time, or has
                tombstones that are old enough; and the room of expired records. Less often, for
                both read a lot; when it is due, before retention

Rolling concerns durable engines only: what a start loses has no past to describe.

How a size limit is watched at the price of one subtraction a write: an entry has `room`, the number
of records that may come before it is looked at. When it is used up, the shard is measured and gets
new room for half of what is left at its mean record size; so looks get denser towards the limit.
A round every `interval_ms` looks at every shard that was written to, whatever its room says:
records may have grown since.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from penstock.engine.contract import Compacted, ShardConfig, StorageEngine
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.segment_status import SegmentStatus
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import ClosedError, RequestError
from penstock.meta import MetadataClient, Segment
from penstock.platform.log import get_logger
from penstock.record import Offset, ShardId

_log: Final = get_logger(__name__)
_FIRST_QUOTA_CHECK: Final = 64
_QUOTA_CHECK_MAX: Final = 1 << 20
_JOIN_S: Final = 60.0


class UpkeepLimits(Struct, frozen=True, kw_only=True):
    roll_size: int = 1 << 30
    roll_age_ms: int = 24 * 3_600_000
    interval_ms: int = 10_000
    compact_interval_ms: int = 60_000


@runtime_checkable
class KeptFromOutside(Protocol):
    """An engine that removes what is too old, or expired, only on request."""

    def apply_retention(self, shard: ShardId) -> Offset: ...

    def remove_expired(self, shard: ShardId) -> Compacted: ...


class UpkeepReport(Struct):
    """What one round did."""

    rolled: int = 0
    trimmed: int = 0
    compacted: int = 0
    failed: int = 0


class ShardUpkeep:
    """`run_once` does a round; `start` does them in a thread of its own."""

    def __init__(
        self,
        handler: StorageEngineHandler,
        meta: MetadataClient,
        limits: UpkeepLimits | None = None,
        *,
        chores: Sequence[Callable[[], object]] = (),
        rounds: Callable[[], object] | None = None,
    ) -> None:
        """`chores` are done with every compaction, `rounds` with every round, for components that
        have no thread of their own."""
        self._handler: Final = handler
        self._meta: Final = meta
        self._clock: Final = handler.clock
        self._limits: Final = limits if limits is not None else UpkeepLimits()
        self._chores: Final = tuple(chores)
        self._rounds: Final = () if rounds is None else (rounds,)
        self._wanted: deque[ShardEntry] = deque()
        self._wake: Final = threading.Event()
        self._working: Final = threading.Lock()
        self._stopping: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[str, int] = {}
        self._next_compaction = self._clock.monotonic()
        handler.on_quota_used = self.want

    def start(self) -> None:
        assert self._thread is None, "started once"
        self._thread = threading.Thread(target=self._run, name="penstock-shards", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it does at the moment is finished."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def want(self, entry: ShardEntry) -> None:
        """Look at this shard's segment soon; each waits at most once (`check_requested`)."""
        self._wanted.append(entry)
        self._wake.set()

    def run_once(self, *, thorough: bool = False) -> UpkeepReport:
        """Do everything that is due, with `thorough` compaction in any case; an error of one shard
        does not keep the others from it."""
        with self._working:
            report = UpkeepReport()
            self._do(self._rounds, report)
            self._pop_requested()  # all of them were written to, so they are looked at here
            for entry in self._written_since():
                self._try(entry, report, self._roll_if_due)
            is_thorough = thorough or self._clock.monotonic() >= self._next_compaction
            for entry in self._handler.cache.entries():
                if is_thorough or self._compacts_often(entry):
                    self._try(entry, report, self._compact)
                # After compaction: what that removed is nothing that a shard may begin with.
                self._try(entry, report, self._remove_old)
                if len(entry.segments) > 1:
                    self._try(entry, report, self._trim)
            if is_thorough:
                self._do(self._chores, report)
                pause_s = self._limits.compact_interval_ms / 1000
                self._next_compaction = self._clock.monotonic() + pause_s
            return report

    def _run(self) -> None:
        next_round = self._clock.monotonic() + self._limits.interval_ms / 1000
        while not self._stopping.is_set():
            self._clock.wait(self._wake, max(0.0, next_round - self._clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set():
                return
            if self._clock.monotonic() >= next_round:
                next_round = self._clock.monotonic() + self._limits.interval_ms / 1000
                self.run_once()
            else:
                with self._working:
                    for entry in self._pop_requested():
                        self._try(entry, UpkeepReport(), self._roll_if_due)

    def _pop_requested(self) -> list[ShardEntry]:
        requested = [self._wanted.popleft() for _ in range(len(self._wanted))]
        for entry in requested:
            entry.check_requested = False
        return requested

    def _try(self, entry: ShardEntry, report: UpkeepReport, step: _Step) -> None:
        try:
            step(entry, report)
        except ClosedError:
            self._stopping.set()
        except RequestError as error:
            # Deleted or rolled meanwhile: the next round checks again.
            _log.debug("upkeep_overtaken", shard=entry.name, reason=str(error))
        except Exception as error:  # noqa: BLE001 - an error in one shard must not stop the others
            report.failed += 1
            _log.error("upkeep_failed", cause=error, shard=entry.name)

    def _do(self, chores: Iterable[Callable[[], object]], report: UpkeepReport) -> None:
        for chore in chores:
            try:
                chore()
            except Exception as error:  # noqa: BLE001 - nor must a task stop the others
                report.failed += 1
                _log.error("chore_failed", cause=error)

    # Rolling

    def _written_since(self) -> list[ShardEntry]:
        """Return the shards that were written to since the last round."""
        written = []
        seen: dict[str, int] = {}
        for entry in self._handler.cache.entries():
            if entry.records_written:
                seen[entry.name] = entry.records_written
                is_new = self._seen.get(entry.name) != entry.records_written
                if is_new or self._is_old(entry):
                    written.append(entry)
        self._seen = seen
        return written

    def _is_old(self, entry: ShardEntry) -> bool:
        segment = entry.active
        if segment is None or segment.status != SegmentStatus.WRITE.value:
            return False
        age_ms = entry.topic.topic.config.segment_age_ms or self._limits.roll_age_ms
        return self._clock.now_ms() - segment.created_at_ms >= age_ms

    def _roll_if_due(self, entry: ShardEntry, report: UpkeepReport) -> None:
        engine, active = self._led_here(entry), entry.active
        if engine is None or active is None or not engine.capabilities.durable:
            entry.quota_left = _QUOTA_CHECK_MAX
            return
        # Should what follows fail, it is tried again soon, and not with every write.
        entry.quota_left = _FIRST_QUOTA_CHECK
        info = engine.shard_info(entry.id)
        # At the commit offset: a later leader may have fewer records after it, and could not roll.
        count = info.commit - active.start_offset
        record_size = max(1, info.size // max(1, info.commit - info.earliest))
        size = count * record_size
        roll_size = entry.topic.topic.config.segment_size or self._limits.roll_size
        if count > 0 and (size >= roll_size or self._is_old(entry)):
            assert entry.meta is not None
            self._meta.next_segment(
                entry.id, active.number, info.commit, epoch=entry.meta.leader_epoch
            )
            report.rolled += 1
            size = 0
            _log.info("segment_rolled", shard=entry.name, number=active.number, end=info.commit)
        left = max(0, roll_size - size) // record_size
        entry.quota_left = max(1, min(_QUOTA_CHECK_MAX, left // 2))

    def _led_here(self, entry: ShardEntry) -> StorageEngine | None:
        meta = entry.meta
        if meta is None or meta.leader != self._handler.node_id or not entry.is_open:
            return None
        return self._handler.engines.get(entry.topic.storage_type)

    # Removing

    def _trim(self, entry: ShardEntry, report: UpkeepReport) -> None:
        engine = self._led_here(entry)
        if engine is None or len(entry.segments) < 2:
            return
        earliest = engine.shard_info(entry.id).earliest
        past = list(_wholly_before(entry.segments[:-1], earliest))
        if not past:
            return
        for segment in past:
            for status in (SegmentStatus.PRE_DELETE, SegmentStatus.DELETING):
                if segment.status != SegmentStatus.DELETING.value:
                    self._meta.set_segment_status(entry.id, segment.number, status.value)
        self._meta.delete_segments(entry.id, past[-1].number + 1)
        report.trimmed += len(past)

    def _remove_old(self, entry: ShardEntry, _: UpkeepReport) -> None:
        config = entry.topic.config
        limits = (config.retention_ms, config.retention_bytes, config.retention_records)
        if all(limit is None for limit in limits):
            return
        engine = self._led_here(entry)
        if engine is not None and (kept := _kept_from_outside(engine)) is not None:
            kept.apply_retention(entry.id)

    def _compact(self, entry: ShardEntry, report: UpkeepReport) -> None:
        engine = self._led_here(entry)
        if engine is None:
            return
        if (kept := _kept_from_outside(engine)) is not None:
            kept.remove_expired(entry.id)
        written = entry.records_written + entry.released
        config = entry.topic.config
        if config.cleanup.compacts and self._may_compact(entry, written, config):
            try:
                done = engine.compact(entry.id)
            finally:
                entry.removals += 1
            report.compacted += done.records
            entry.compacted = (written, config, done.again_ms)

    def _compacts_often(self, entry: ShardEntry) -> bool:
        """Say whether a superseded record may not stay until the next thorough round."""
        lag_max_ms = entry.topic.config.compaction_lag_max_ms
        return lag_max_ms is not None and lag_max_ms < self._limits.compact_interval_ms

    def _may_compact(self, entry: ShardEntry, written: int, config: ShardConfig) -> bool:
        """Say whether a compaction could remove something that the last one did not."""
        if entry.compacted is None or entry.compacted[:2] != (written, config):
            return True
        again_ms = entry.compacted[2]
        return again_ms is not None and self._clock.expiry_ms() >= again_ms


@lru_cache(16)
def _is_kept_from_outside(engine_type: type[StorageEngine]) -> bool:
    """A check for a Protocol looks at every method; here it is made for every shard."""
    return issubclass(engine_type, KeptFromOutside)


def _kept_from_outside(engine: StorageEngine) -> KeptFromOutside | None:
    if not _is_kept_from_outside(type(engine)):
        return None
    assert isinstance(engine, KeptFromOutside)
    return engine


class _Step(Protocol):
    def __call__(self, entry: ShardEntry, report: UpkeepReport, /) -> None: ...


def _wholly_before(segments: Iterable[Segment], offset: int) -> Iterable[Segment]:
    for segment in segments:
        if segment.end_offset is None or segment.end_offset > offset:
            return
        yield segment
