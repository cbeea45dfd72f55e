"""Drives one dispatcher over all shards, up to the commit offset.

    bounds ──▶ which shards lag ──▶ read a batch ──▶ dispatch ──▶ move the position ──▶ save

The order is the guarantee: a position moves only when the records before it were handed over, so a
crash at any point hands some records over again and never leaves one out.

Bounds: a batch has at most `RECORDS_MAX` records and about `SIZE_MAX` bytes; a shard that lags far
behind gives the others their turn after `BATCHES_PER_TURN`. A shard on which the dispatcher raises
waits 1/8 s, then twice as long each time, up to 32 s; other shards go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

from penstock.engine.segment.dispatch.positions import DispatchPositions
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.platform.metrics import SegmentMetrics
from penstock.record import ShardId, StoredRecord

RECORDS_MAX: Final = 512
SIZE_MAX: Final = 4 << 20
BATCHES_PER_TURN: Final = 16
SAVE_INTERVAL_S: Final = 1.0
LOOK_AT_ALL_EVERY_S: Final = 60.0
"""How often a worker that is notified of changed shards looks at the others: whether they still
exist, and still hold records that it has not seen."""
SAVE_PAUSE: Final = 20
"""From one save to the next, at least this many times as long as it took: a save writes the
positions in all shards."""
POLL_INTERVAL_S: Final = 0.25
"""How long a worker waits without a notification before it checks for committed records."""
RETRY_FIRST_S: Final = 0.125
RETRY_MAX_S: Final = 32.0
STREAKS_LOGGED_MAX: Final = 10
"""Shards whose failures are logged one by one; the metric `failures` counts all."""

Read = Callable[[ShardId, int, int, int], Sequence[StoredRecord]]
"""(shard, offset, records at most, bytes at most): the live committed records from `offset` on;
none only when there is none up to the commit offset."""

Bounds = Callable[[], Iterable[tuple[ShardId, int, int]]]
"""Every shard there is, with its earliest and its commit offset."""

FindChanged = Callable[[Iterable[ShardId]], Sequence[tuple[ShardId, int, int]]]
"""The shards whose commit offset moved since the last call, and those that are named."""

_log: Final = get_logger(__name__)


class Dispatcher(Protocol):
    """Takes every committed record of every shard, in the order of each shard's offsets.

    Batches may come again after a restart or an error: what was done for an offset must not be
    done twice. Raising asks for the same batch again, later.
    """

    @property
    def name(self) -> str:
        """Letters, digits, `_` and `-`; under this name its positions are kept."""
        ...

    def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None: ...


@runtime_checkable
class FlushingDispatcher(Protocol):
    """A dispatcher that keeps something on disk, which must be there before its positions are."""

    def flush(self) -> None: ...


@runtime_checkable
class ReadingDispatcher(Protocol):
    """A dispatcher that reads for itself, in a form that costs less than records."""

    @property
    def name(self) -> str: ...

    def advance(self, shard: ShardId, offset: int, commit: int) -> int:
        """Take what is committed from `offset` on, as much as it likes; return where to go on."""
        ...


class _Streak:
    """The failures of one shard in a row."""

    __slots__ = ("count", "logged", "reason", "retry_at")

    def __init__(self, *, logged: bool) -> None:
        self.count = 0
        self.logged = logged
        self.reason = ""
        self.retry_at = 0.0


class DispatchWorker:
    def __init__(
        self,
        dispatcher: Dispatcher | ReadingDispatcher,
        positions: DispatchPositions,
        read: Read | None,
        bounds: Bounds,
        clock: Clock,
        metrics: SegmentMetrics,
        find_changed: FindChanged | None = None,
    ) -> None:
        """Without `find_changed`, every pass looks at all shards."""
        self.name: Final = dispatcher.name
        self.positions: Final = positions
        self._dispatcher: Final = dispatcher
        self._advance: Final = _advance_of(dispatcher, read)
        self._bounds: Final = bounds
        self._find_changed: Final = find_changed
        self._looked_at_all: float | None = None
        self._unfinished: set[ShardId] = set()
        """Shards that are to be looked at although they may not move."""
        self._clock: Final = clock
        self._lag: Final = metrics.dispatch_lag_records.labels(self.name)
        self._failed_batches: Final = metrics.dispatch_failures.labels(self.name)
        self._streaks: dict[ShardId, _Streak] = {}
        self._save_failed = False
        self._blind = False
        self._save_at = clock.monotonic() + SAVE_INTERVAL_S
        self._turn: Final = threading.Lock()
        self._wake: Final = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    # Running

    def start(self) -> None:
        """Run in a thread of its own until `stop`."""
        name = f"penstock-dispatch-{self.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now whether something was committed."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self, timeout_s: float) -> None:
        """End after the batch under way, and save. A dispatcher that does not return is
        abandoned: its position did not move."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                _log.error("dispatcher_does_not_end", dispatcher=self.name, waited_s=timeout_s)
        self._save()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            if not self.step() or not self._unfinished:
                # After the writers by a moment, it hands over more at a time.
                self._clock.wait(self._wake, self._idle_s())

    def _idle_s(self) -> float:
        now = self._clock.monotonic()
        retries = [streak.retry_at - now for streak in list(self._streaks.values())]
        return max(0.001, min([POLL_INTERVAL_S, *retries]))

    def cut(self, shard: ShardId, offset: int) -> None:
        """Go back to `offset` when the records from there on were cut off: others will get their
        offsets. Waits for the batch under way, and saves: after a crash, an old position would
        pass for one among the new records."""
        with self._turn:
            # Its end may be where it was when it is looked at next.
            self._unfinished.add(shard)
            if self.positions.cut(shard, offset):
                self._save()

    def step(self) -> int:
        """Give every shard that lags one turn; return how many batches were handed over. While
        another thread does so, there is nothing to do."""
        if not self._turn.acquire(blocking=False):
            return 0
        try:
            return self._step()
        finally:
            self._turn.release()

    def _step(self) -> int:
        shards = self._look()
        if shards is None:
            return 0
        self._unfinished.update(shard for shard, _, _ in shards)  # should this raise
        batches = 0
        behind = 0
        unfinished: set[ShardId] = set()
        for shard, earliest, commit in shards:
            if self._stopping:
                break
            if self.positions.get(shard) == commit >= earliest:
                continue  # nearly all of them, nearly always
            batches += self._step_shard(shard, earliest, commit)
            lag = self.lag_of(shard, earliest, commit)
            if lag:
                unfinished.add(shard)
                behind += lag
        self._lag.set(behind)
        self._unfinished = unfinished
        if self.positions.is_dirty and self._clock.monotonic() >= self._save_at:
            self._save()
        return batches

    def _look(self) -> Sequence[tuple[ShardId, int, int]] | None:
        """Return the shards that may have something new; None when that cannot be found out."""
        now = self._clock.monotonic()
        last = self._looked_at_all
        try:
            if (
                self._find_changed is not None
                and last is not None
                and now - last < LOOK_AT_ALL_EVERY_S
            ):
                shards = self._find_changed(self._unfinished)
            else:
                shards = list(self._bounds())
                self._drop_all_but({shard for shard, _, _ in shards})
                self._looked_at_all = now
        except Exception as error:  # noqa: BLE001 - a fault of the store must not end this thread
            if not self._blind:
                _log.error("dispatch_cannot_see_shards", cause=error, dispatcher=self.name)
            self._blind = True
            return None
        self._blind = False
        return shards

    def _step_shard(self, shard: ShardId, earliest: int, commit: int) -> int:
        streak = self._streaks.get(shard)
        if streak is not None and self._clock.monotonic() < streak.retry_at:
            return 0
        position = self._clamp_position(shard, earliest, commit)
        batches = 0
        while position < commit and batches < BATCHES_PER_TURN and not self._stopping:
            try:
                position = self._advance(shard, position, commit)
            except Exception as error:  # noqa: BLE001 - whatever users' code raises, others go on
                self._count_failure(shard, position, error)
                break
            self.positions.move(shard, position)
            self._end_streak(shard)
            batches += 1
        return batches

    def _clamp_position(self, shard: ShardId, earliest: int, commit: int) -> int:
        """Return the position in a shard, moved into what the shard holds."""
        position = self.positions.get(shard)
        if position is not None and position < earliest:
            _log.warning(
                "dispatch_came_too_late",
                dispatcher=self.name,
                shard=shard.name,
                records_missed=earliest - position,
            )
        settled = settled_position(position, earliest, commit)
        self.positions.move(shard, settled)
        return settled

    # Failures

    @property
    def failures(self) -> dict[ShardId, str]:
        """Shards on which the dispatcher raised the last time, and what."""
        return {shard: streak.reason for shard, streak in self._streaks.copy().items()}

    def _count_failure(self, shard: ShardId, position: int, error: Exception) -> None:
        self._failed_batches.inc()
        streak = self._streaks.get(shard)
        if streak is None:
            streak = _Streak(logged=len(self._streaks) < STREAKS_LOGGED_MAX)
            self._streaks[shard] = streak
            if streak.logged:
                _log.error(
                    "dispatch_failed",
                    cause=error,
                    dispatcher=self.name,
                    shard=shard.name,
                    offset=position,
                )
        streak.count += 1
        streak.reason = f"{type(error).__name__}: {error}"
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(streak.count - 1, 20))
        streak.retry_at = self._clock.monotonic() + delay_s

    def _end_streak(self, shard: ShardId) -> None:
        streak = self._streaks.pop(shard, None)
        if streak is not None and streak.logged:
            _log.info(
                "dispatch_recovered",
                dispatcher=self.name,
                shard=shard.name,
                failures=streak.count,
            )

    # Positions

    def lag_of(self, shard: ShardId, earliest: int, commit: int) -> int:
        return max(0, commit - settled_position(self.positions.get(shard), earliest, commit))

    def _drop_all_but(self, shards: set[ShardId]) -> None:
        self.positions.keep_only(shards)
        for shard in self._streaks.keys() - shards:
            del self._streaks[shard]

    def _save(self) -> None:
        began = self._clock.monotonic()
        self._save_at = began + SAVE_INTERVAL_S
        if not self.positions.is_dirty:
            return
        try:
            if isinstance(self._dispatcher, FlushingDispatcher):
                self._dispatcher.flush()
            self.positions.save()
        except Exception as error:  # noqa: BLE001 - `flush` is users' code: it is tried again
            if not self._save_failed:
                _log.error("dispatch_position_not_saved", cause=error, dispatcher=self.name)
            self._save_failed = True
        else:
            self._save_failed = False
            took = self._clock.monotonic() - began
            self._save_at = began + max(SAVE_INTERVAL_S, SAVE_PAUSE * took)


def _advance_of(
    dispatcher: Dispatcher | ReadingDispatcher, read: Read | None
) -> Callable[[ShardId, int, int], int]:
    if isinstance(dispatcher, ReadingDispatcher):
        return dispatcher.advance
    assert read is not None, "this dispatcher does not read for itself"

    def hand_over(shard: ShardId, position: int, commit: int) -> int:
        records = read(shard, position, RECORDS_MAX, SIZE_MAX)
        if not records:
            return commit
        dispatcher.dispatch(shard, records)
        return records[-1].offset + 1

    return hand_over


def settled_position(position: int | None, earliest: int, commit: int) -> int:
    """Return where a dispatcher goes on. A position past the commit offset belongs to records that
    a power cut took: others have, or will have, their offsets."""
    return earliest if position is None else max(earliest, min(position, commit))
