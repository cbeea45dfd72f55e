"""`TieredDispatcher`: brings what is committed from the log into the tier.

It is a dispatcher of the store's pipeline, which calls it for committed offsets only. It adds up
the lengths in the queue entries and reads no record: a shard is uploaded when `chunk_size` bytes
have come or the oldest has waited for `interval_ms`, and its records are then read from the log,
once, from where the manifest ends. So memory does not grow with the number of shards, and a restart
needs no state.

Each shard is uploaded by one thread at a time; shards do not wait for each other, and writers wait
for none. While the tier does not answer, a shard is tried again after 1 s, 2 s, … 60 s; what the
tier lacks is not removed from the log meanwhile (`keep_from`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from penstock.engine.segment import Bounds, SegmentStore, ShardState
from penstock.errors import (
    ClosedError,
    CorruptionError,
    StaleWriteError,
    StoreError,
    UnknownShardError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.record import ShardId
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.shard_tiers import ShardTiers
from penstock.tiered.upload.committed_log import first_offset

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
LEASE_RETRY_S: Final = 5.0
"""How often the lease of a shard is requested again that another uploader holds."""
ENTRIES_PER_STEP: Final = 8192
"""Queue entries whose lengths one step adds up, at most."""
CHUNKS_PER_COMMIT: Final = 8
"""Chunks that one change of the manifest adds, at most."""
_IDLE_S: Final = 0.25
_JOIN_S: Final = 30.0

_log: Final = get_logger(__name__)


class UploadLease(Protocol):
    """The right to upload a shard, so that two uploaders do not take it from each other in turns.
    Safety does not depend on it: the epochs in manifests do that."""

    def hold(self, shard: ShardId) -> bool:
        """Take or extend the lease; return whether this process has it."""
        ...


class CommittedLog(Protocol):
    """What an upload reads: the store of this process, or a view of one in a worker of Spark's."""

    def bounds(self, shard: ShardId) -> Bounds: ...

    def state(self, shard: ShardId) -> ShardState: ...

    def read_raw_range(self, shard: ShardId, offset: int, *, max_size: int) -> tuple[bytes, int]:
        """Return whole records (batches) back to back as the log holds them, checked,
        without deleted ones, and the offset to go on at."""
        ...


class _Pending(Struct):
    """What a shard has that its tier lacks."""

    size: int = 0
    since: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    reason: str = ""


class TieredDispatcher:
    name: Final = "tier"

    def __init__(
        self,
        store: SegmentStore,
        tiers: ShardTiers,
        *,
        interval_ms: int = 60_000,
        threads: int = 2,
        lease: UploadLease | None = None,
        metrics: TierMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store: Final = store
        self.log: CommittedLog = store
        """What is uploaded; an engine with transactions sets a `LsoBoundedLog`."""
        self._tiers: Final = tiers
        self._interval_s: Final = interval_ms / 1000
        self._lease: Final = lease
        self._metrics: Final = metrics or TierMetrics()
        self._clock: Final = clock or SystemClock()
        self._lock: Final = threading.Lock()
        self._pending: dict[ShardId, _Pending] = {}
        self._busy: set[ShardId] = set()
        self._wake: Final = threading.Event()
        self._stopping = False
        self._threads: Final = [
            threading.Thread(target=self._run, name=f"penstock-tier-{n}", daemon=True)
            for n in range(threads)
        ]
        self.when_idle: Callable[[], None] = lambda: None
        """Called now and then by a thread that has nothing to upload."""

    def start(self) -> None:
        self.schedule_all()
        for thread in self._threads:
            thread.start()

    def schedule_all(self) -> None:
        """Look at every shard soon: what came before a restart may not be in the tier."""
        for shard in self._own_shards():
            self._schedule(shard, 0)

    def _own_shards(self) -> list[ShardId]:
        """Return the shards that this node uploads, and no job of Spark's."""
        return [shard for shard in self._tiers.shards() if self._is_own(shard)]

    def _is_own(self, shard: ShardId) -> bool:
        if self._store.is_following(shard):
            return False
        config = self._tiers.config_of(shard)
        tiering = None if config is None else config.tiering
        return tiering is not None and tiering.uploader == "broker"

    def _interval_s_of(self, shard: ShardId) -> float:
        config = self._tiers.config_of(shard)
        tiering = None if config is None else config.tiering
        own_ms = None if tiering is None else tiering.upload_interval_ms
        return self._interval_s if own_ms is None else own_ms / 1000

    # The pipeline's side

    def advance(self, shard: ShardId, offset: int, commit: int) -> int:
        """Count the committed bytes of a shard that this node uploads, by its queue entries; return
        the offset to continue at. A shard without a tier costs one lookup, however many records
        were written to it."""
        if not self._is_own(shard):
            return commit
        until = min(commit, offset + ENTRIES_PER_STEP)
        try:
            size = self._store.size_between(shard, offset, until)
        except (CorruptionError, FileNotFoundError):
            # A damaged queue file: the upload reads the log, which rebuilds it.
            size = self._tiers.chunk_size_of(shard)
        self._schedule(shard, size)
        return until

    def _schedule(self, shard: ShardId, size: int) -> None:
        with self._lock:
            pending = self._pending.get(shard)
            if pending is None:
                pending = self._pending[shard] = _Pending(since=self._clock.monotonic())
            pending.size += size
            due = pending.size >= self._tiers.chunk_size_of(shard)
        if due:
            self._wake.set()

    # Uploading

    def run_once(self, *, force: bool = False) -> int:
        """Upload every shard that is due, with `force` all that lag; return how many were."""
        done: set[ShardId] = set()
        while (shard := self._next_due(done, force=force)) is not None:
            done.add(shard)
            self._upload_one(shard)
        return len(done)

    def upload_all(self) -> dict[str, str]:
        """Bring every shard that this node uploads up to what is committed now; wait for uploads
        that run. Return by name what failed, and why; that is tried again later."""
        failed: dict[str, str] = {}
        for shard in self._own_shards():
            try:
                self.upload(shard)
            except UnknownShardError:
                continue  # deleted meanwhile
            except Exception as error:  # noqa: BLE001 - an error in one shard must not stop the others
                self._record_failure(shard, _Pending(since=self._clock.monotonic()), error)
                failed[shard.name] = str(error)
        return failed

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            if not self.run_once():
                self.when_idle()
                self._clock.wait(self._wake, _IDLE_S)

    def _next_due(self, done: set[ShardId], *, force: bool) -> ShardId | None:
        now = self._clock.monotonic()
        with self._lock:
            for shard, pending in self._pending.items():
                if shard in self._busy or self._stopping or (force and shard in done):
                    continue
                due = (
                    force
                    or pending.size >= self._tiers.chunk_size_of(shard)
                    or now - pending.since >= self._interval_s_of(shard)
                )
                if due and (force or now >= pending.retry_at):
                    self._busy.add(shard)
                    return shard
        return None

    def _upload_one(self, shard: ShardId) -> None:
        with self._lock:
            pending = self._pending.pop(shard)
        try:
            # Another node uploads what it leads by now.
            is_mine = self._store.is_following(shard) or self.upload(shard)
        except (ClosedError, UnknownShardError):
            return  # deleted, or the store is closing: there is nothing to upload to
        except Exception as error:  # noqa: BLE001 - the thread is needed for the other shards
            self._record_failure(shard, pending, error)
        else:
            if not is_mine:
                self._schedule_retry(shard, pending, LEASE_RETRY_S)
            elif pending.failures:
                _log.info("tier_reached_again", shard=shard.name)
        finally:
            with self._lock:
                self._busy.discard(shard)
            self._metrics.failing_shards.set(len(self.failures()))

    def upload(self, shard: ShardId) -> bool:
        """Bring a shard's tier up to what is committed now; return False when another has the
        right to do so."""
        flat = self._tiers.flat(shard)
        if flat is None:
            return True
        if self._lease is not None and not self._lease.hold(shard):
            return False
        with flat.upload_lock:
            self._metrics.uploaded_bytes.inc(self._upload(flat))
        return True

    def _upload(self, flat: CompositeFlatFile) -> int:
        try:
            if flat.epoch is None:
                flat.acquire()
            return upload_shard(self.log, flat)
        except StaleWriteError:
            # Another uploader was faster: the next attempt begins where it ended.
            flat.release()
            raise
        except StoreError:
            flat.reset()
            raise

    def _record_failure(self, shard: ShardId, before: _Pending, error: Exception) -> None:
        failures = before.failures + 1
        pause_s = min(RETRY_FIRST_S * 2 ** (failures - 1), RETRY_MAX_S)
        if failures == 1:
            _log.warning("tier_upload_failed", shard=shard.name, reason=str(error))
        self._metrics.upload_failures.inc()
        self._schedule_retry(shard, before, pause_s, failures, str(error))

    def _schedule_retry(
        self, shard: ShardId, before: _Pending, pause_s: float, failures: int = 0, reason: str = ""
    ) -> None:
        """Note for later what was to be uploaded, besides what has come meanwhile."""
        with self._lock:
            now = self._pending.setdefault(shard, _Pending(since=before.since))
            now.size += before.size
            now.since = before.since
            now.failures = failures
            now.retry_at = self._clock.monotonic() + pause_s
            now.reason = reason

    def failures(self) -> dict[ShardId, str]:
        """Return the shards that could not be uploaded the last time, and why."""
        with self._lock:
            return {
                shard: pending.reason
                for shard, pending in self._pending.items()
                if pending.failures
            }

    def keep_from(self, shard: ShardId) -> int | None:
        """Return from which offset on the log is needed, because the tier lacks it. Whatever is
        wrong with the tier, the log is kept; uploads and upkeep report it."""
        try:
            flat = self._tiers.flat(shard)
            if flat is None:
                return None
            # What another has uploaded only the tier itself knows.
            manifest = flat.current() if self._is_own(shard) else flat.refresh()
            if manifest is None or not manifest.initialized:
                return 0
            sync_deleted(self._store, flat)
        except Exception:  # noqa: BLE001 - else no shard's log would be looked after
            return 0
        return flat.commit_offset

    def remove(self, shard: ShardId) -> None:
        with self._lock:
            self._pending.pop(shard, None)

    def stop(self) -> None:
        """Stop after the chunks in flight; the rest is uploaded after the next start."""
        self._stopping = True
        self._wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)


def upload_shard(store: CommittedLog, flat: CompositeFlatFile) -> int:
    """Append and commit everything that is committed in the log and that the tier lacks; return
    how many bytes. The flat file must be acquired.

    Whole runs of the log go up as they are: chunks are put a few at a time, and the manifest
    refers to `CHUNKS_PER_COMMIT` of them in one change."""
    uploaded = 0
    while True:
        bounds = store.bounds(flat.shard)
        begin = max(flat.dispatch_offset, int(bounds.earliest))
        if begin >= bounds.commit:
            break
        run, after = store.read_raw_range(flat.shard, begin, max_size=flat.config.chunk_size)
        if run:
            if not flat.is_initialized and first_offset(run) > begin:
                # The tier begins where the log does, also when the first records are not uploaded.
                flat.advance(begin)
            _append(flat, run)
            uploaded += len(run)
        elif after <= begin:
            break  # truncated meanwhile
        else:
            flat.commit(sync=True)
            flat.advance(min(after, int(bounds.commit)))
    flat.commit(sync=True)
    sync_deleted(store, flat)
    return uploaded


def _append(flat: CompositeFlatFile, run: bytes) -> None:
    """Append a run of records; a chunk that is full begins its way to the tier."""
    while run:
        size = flat.append_range(run)
        if size == 0:
            _stage(flat)
            size = _append_first(flat, run)
        elif size < len(run):
            _stage(flat)
        run = run[size:]


def _stage(flat: CompositeFlatFile) -> None:
    if flat.stage() >= CHUNKS_PER_COMMIT:
        flat.commit(sync=True)


def _append_first(flat: CompositeFlatFile, run: bytes) -> int:
    """Append a message that did not fit into the chunk before; say why it does not now."""
    size = int.from_bytes(run[:4], "big")
    result = flat.append(run[:size])
    if result is AppendResult.OFFSET_INCORRECT:
        raise StaleWriteError(f"{flat.shard.name!r} was truncated during its upload")
    if result is AppendResult.WRONG_QUEUE:
        raise CorruptionError(
            flat.shard.name, position=0, reason="the log returned a record of another queue"
        )
    if result is not AppendResult.SUCCESS:
        raise ClosedError(f"the tier of {flat.shard.name!r} was closed")
    return size


def sync_deleted(store: CommittedLog, flat: CompositeFlatFile) -> None:
    """Let the manifest know what was deleted in the log after it was uploaded."""
    manifest = flat.current()
    if manifest is None:
        return
    state = store.state(flat.shard)
    begin = max(manifest.start_offset, int(store.bounds(flat.shard).earliest))
    ranges = state.deleted_between(begin, manifest.end_offset)
    if ranges:
        flat.upkeep.delete_ranges(ranges)
