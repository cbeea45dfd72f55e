"""Jobs that change a store directory: rebuild, compact, expire.

They run on the driver without Spark: only the holder of the directory's lock may remove records and
files. If another process has the store open they raise `LockedError` and change nothing. Given the
`host:port` of a running node instead of a directory, they ask the node to compact or expire. After
a kill the store opens as after any crash; a repeated job continues.

Shards with a tier are not expired here: only their node knows which records the tier holds, and the
log may hold records that are not uploaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.engine.contract import RECORD_SIZE_MAX, ShardConfig
from penstock.engine.segment import (
    RECORD_OVERHEAD_MAX,
    RecoveryReport,
    RetentionPolicy,
    SegmentEngine,
    SegmentSettings,
    SegmentStore,
    inspect,
)
from penstock.errors import BadRequestError, CorruptionError, LockedError, SetupError, StoreError
from penstock.pipeline.jobs.node_upkeep import compact_on_node, expire_on_node, is_node
from penstock.pipeline.jobs.spark_work import Progress
from penstock.pipeline.jobs.topic_choice import chosen_shards
from penstock.pipeline.jobs.upkeep_result import ShardUpkeep, UpkeepResult
from penstock.pipeline.store.named_view import NamedView
from penstock.pipeline.store.node_directory import meta_of, store_root
from penstock.pipeline.transactions import read_transaction_limits
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.clock_guard import CLOCK_FILE, GuardedClock
from penstock.platform.local_disk import LocalDisk
from penstock.record import ShardId

# What a node's settings say about old files and a full disk is not known here. A default in their
# place could remove what the node would keep, so nothing goes for either reason.
_SETTINGS: Final = SegmentSettings(
    record_size_max=RECORD_SIZE_MAX + RECORD_OVERHEAD_MAX,
    file_reserved_time_h=1e9,
    disk_max_used_space_ratio=101,
    disk_space_warning_level_ratio=101,
    background=False,
)

_config_decoder: Final = msgspec.msgpack.Decoder(ShardConfig)


class RebuildResult(Struct, frozen=True):
    path: str
    rows: int
    """Records of the log that were read, those of Penstock's own queues among them."""
    bytes: int
    report: RecoveryReport
    shards_changed: list[str]
    """Shards whose end changed: their damaged files had recorded a wrong one."""
    seconds: float


def rebuild(path: str, *, progress: Progress | None = None) -> RebuildResult:
    """Rebuild queues, key index, time index and checksums from the commit log.

    The store must not be open elsewhere. A running node cannot do this: it has these files open.
    """
    if is_node(path):
        raise BadRequestError(
            f"{path} is a running node, which cannot rebuild its open files: stop it and give its "
            "directory"
        )
    began = time.monotonic()
    before = _ends(path)
    with _with_permission_hint(path, "stop it, rebuild, and start it again"):
        report = inspect.rebuild(
            store_root(path),
            settings=_SETTINGS,
            progress=None if progress is None else lambda done, all_: progress("log", done, all_),
        )
    after = _ends(path)
    return RebuildResult(
        path=path,
        rows=report.records_scanned,
        bytes=report.bytes_scanned,
        report=report,
        shards_changed=sorted(
            shard.name for shard in before | after if before.get(shard) != after.get(shard)
        ),
        seconds=time.monotonic() - began,
    )


def compact(
    path: str, *, topics: Sequence[str] | None = None, progress: Progress | None = None
) -> UpkeepResult:
    """Remove the records whose key was written again later, in topics whose cleanup is `compact`.

    `path` is a directory, or `host:port` of a running node, which then does it. Records without a
    key stay. What is removed frees its place when its whole log file is dead. A tier is left alone,
    and so are tombstones of what only the tier holds: both are the node's.
    """
    if is_node(path):
        return compact_on_node(path, topics, progress)
    began = time.monotonic()
    results: list[ShardUpkeep] = []
    size = 0
    with _engine(path, topics) as (engine, shards):
        for done, shard in enumerate(shards):
            if progress is not None:
                progress("compact", done, len(shards))
            before = engine.shard_info(shard)
            removed = engine.compact(shard)
            size += removed.size
            if removed.records > before.commit - before.earliest:
                raise StoreError(
                    f"{removed.records} records of {shard.name!r} were removed, but it held "
                    f"[{before.earliest}, {before.commit}): check it with verify"
                )
            if _config(engine, shard).cleanup.compacts:
                after = engine.shard_info(shard)
                results.append(
                    ShardUpkeep(
                        shards[shard],
                        before.earliest,
                        after.earliest,
                        after.commit,
                        removed.records,
                    )
                )
    rows = sum(result.removed for result in results)
    return UpkeepResult(path, results, rows, size, 0, time.monotonic() - began)


def expire(
    path: str, *, reserved_hours: float | None = None, progress: Progress | None = None
) -> UpkeepResult:
    """Delete records that their topics' retention no longer keeps, and log files without live
    records.

    `reserved_hours` also deletes older log files of shards without a retention time, like a node's
    `file_reserved_time`. A full disk does not delete anything here, and shards with a tier are left
    to their node. `path` is a directory, or `host:port` of a running node, which uses its own
    settings.
    """
    if is_node(path):
        if reserved_hours is not None:
            raise BadRequestError(
                "a node uses its own setting instead of reserved_hours: leave it out"
            )
        return expire_on_node(path, progress)
    if reserved_hours is not None and reserved_hours <= 0:
        raise BadRequestError(f"reserved_hours is {reserved_hours}; it must be above 0")
    began = time.monotonic()
    settings = _SETTINGS
    if reserved_hours is not None:
        settings = replace(settings, file_reserved_time_h=reserved_hours)
    with _engine(path, None, settings) as (engine, shards):
        _check_clock(engine.store.clock)
        left = [shard for shard in shards if _has_tier(engine, shard)]
        for shard in left:
            engine.store.retention.set_policy(shard, RetentionPolicy(keep=True))
        before = {shard: engine.shard_info(shard) for shard in shards}
        for done, shard in enumerate(shards):
            if progress is not None:
                progress("expire", done, len(shards))
            engine.apply_retention(shard)
        report = engine.store.retention.run()
        results = []
        for shard in shards:
            after = engine.shard_info(shard)
            removed = after.earliest - before[shard].earliest
            results.append(
                ShardUpkeep(
                    shards[shard], before[shard].earliest, after.earliest, after.commit, removed
                )
            )
    rows = sum(result.removed for result in results)
    seconds = time.monotonic() - began
    left_names = [shards[shard] for shard in left]
    return UpkeepResult(path, results, rows, report.size, report.files, seconds, left_names)


@contextmanager
def _engine(
    path: str, topics: Sequence[str] | None, settings: SegmentSettings = _SETTINGS
) -> Iterator[tuple[SegmentEngine, dict[ShardId, str]]]:
    # A look first: opening would create a store where there is none.
    with NamedView(path) as view:
        shards = {view.stored(shard): shard.name for shard in chosen_shards(view, path, topics)}
        root = view.root
    with _with_permission_hint(path, "name that node's host:port, and it does the work itself"):
        engine = SegmentEngine(SegmentStore.open(root, settings, clock=_offline_clock(root)))
    try:
        # Asked while the store is locked: no transaction ends meanwhile.
        meta = meta_of(root)
        if meta is not None:
            engine.limits, _ = read_transaction_limits(meta)
        yield engine, shards
    finally:
        engine.close()


def _offline_clock(root: str) -> Clock:
    """Return the clock by which the store of a node is kept: what the node would not delete by
    it, a job does not delete, either."""
    path = f"{os.path.dirname(os.path.abspath(root))}/{CLOCK_FILE}"
    return GuardedClock(SystemClock(), LocalDisk(), path) if meta_of(root) else SystemClock()


def _check_clock(clock: Clock) -> None:
    status = clock.status() if isinstance(clock, GuardedClock) else None
    if status is not None and status.held:
        raise BadRequestError(
            f"this machine's clock {status.reason}: nothing is deleted by age. Correct it, or "
            "confirm it with `penstock clock confirm --data DIRECTORY`"
        )


@contextmanager
def _with_permission_hint(path: str, what_to_do: str) -> Iterator[None]:
    """Let the error of a store that is open elsewhere say what to do, where that is a node."""
    try:
        yield
    except LockedError as error:
        if meta_of(store_root(path)) is None:
            raise
        raise LockedError(f"{error}: {what_to_do}") from error


def _has_tier(engine: SegmentEngine, shard: ShardId) -> bool:
    tiering = _config(engine, shard).tiering
    return tiering is not None and tiering.enabled


def _config(engine: SegmentEngine, shard: ShardId) -> ShardConfig:
    packed = engine.store.state(shard).config
    return _config_decoder.decode(packed) if packed else ShardConfig()


def _ends(path: str) -> dict[ShardId, int]:
    try:
        with NamedView(path) as view:
            return {shard: view.bounds(shard).commit for shard in view.shards()}
    except (CorruptionError, SetupError):
        return {}
