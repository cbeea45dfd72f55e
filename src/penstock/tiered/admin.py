"""What an operator does with a tier, given by its URL: status, verification, garbage collection,
repair, restore. An interface module: the command line imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from penstock.engine.segment import SegmentSettings, SegmentStore
from penstock.errors import BadRequestError, StoreError
from penstock.platform.clock import SystemClock
from penstock.record import QueueKind, Record, ShardId, StoredRecord
from penstock.tiered.catalog.restore import Restored, attach_tier, restore_tier
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.repair import RepairReport, repair_tier
from penstock.tiered.maintenance.scrubber import ScrubReport, verify_shard
from penstock.tiered.maintenance.shard_upkeep import GarbageReport
from penstock.tiered.maintenance.upkeep import flat_files_of
from penstock.tiered.providers.contract import remove_leftovers
from penstock.tiered.rocketmq import admin as rocketmq_admin
from penstock.tiered.rocketmq.metadata_store import NO_RESERVE_TIME, TopicMetadata
from penstock.tiered.rocketmq.rocks_metadata import RocksDbMetadataStore

__all__ = [
    "GarbageReport",
    "RepairReport",
    "Restored",
    "ScrubReport",
    "TierObject",
    "TierShard",
    "attach_tier",
    "collect_garbage",
    "list_objects",
    "pull_shard",
    "rebuild_metadata",
    "repair_tier",
    "restore_tier",
    "shard_status",
    "verify_tier",
]

FILLED_MAX: Final = 1_000_000
"""Offsets without a record that `pull` fills, at most."""
_PULLED_AT_ONCE: Final = 500

Progress = Callable[[int, int], None]
"""Bytes done, bytes in all."""


class TierShard(Struct, frozen=True):
    """One shard in a tier."""

    shard: str
    kind: str
    start_offset: int
    end_offset: int
    segments: int
    """Sealed ones; the open one is not counted."""
    chunks: int
    size: int
    epoch: int
    deleted_ranges: int
    garbage: int
    destroyed: bool


class TierObject(Struct, frozen=True):
    shard: str
    name: str
    first_offset: int
    end_offset: int
    size: int
    min_ms: int
    max_ms: int


def shard_status(config: TierConfig) -> list[TierShard]:
    """Return what a tier holds of each shard."""
    if rocketmq_admin.is_rocketmq(config.url):
        return _rocketmq_status(config)
    shards: list[TierShard] = []
    for flat in flat_files_of(config, config.open()):
        manifest = flat.manifest.load()
        if manifest is None:
            continue
        shards.append(
            TierShard(
                shard=flat.shard.name,
                kind=manifest.kind.value,
                start_offset=manifest.start_offset,
                end_offset=manifest.end_offset,
                segments=len(manifest.segments),
                chunks=sum(segment.chunks for segment in manifest.segments) + len(manifest.chunks),
                size=manifest.object_size,
                epoch=manifest.epoch,
                deleted_ranges=len(manifest.deleted),
                garbage=len(manifest.garbage),
                destroyed=manifest.destroyed_ms is not None,
            )
        )
    return shards


def list_objects(config: TierConfig, shard: ShardId | None = None) -> Iterator[TierObject]:
    """Yield the chunks of a tier, or of one shard; of RocketMQ's, the files of the commit logs."""
    if rocketmq_admin.is_rocketmq(config.url):
        yield from _rocketmq_files(config, shard)
        return
    for flat in _chosen(config, shard):
        flat.manifest.load()
        for entry in flat.manifest.chunks_from(-1):
            yield TierObject(
                shard=flat.shard.name,
                name=entry.name,
                first_offset=entry.first_offset,
                end_offset=entry.end_offset,
                size=entry.size,
                min_ms=entry.min_ms,
                max_ms=entry.max_ms,
            )


def verify_tier(
    config: TierConfig, shard: ShardId | None = None, progress: Progress | None = None
) -> ScrubReport:
    """Read and check everything; a manifest that cannot be read is damage, too."""
    if rocketmq_admin.is_rocketmq(config.url):
        return rocketmq_admin.verify(config, shard, progress or (lambda _done, _total: None))
    report = ScrubReport()
    unreadable: list[StoreError] = []
    flats = list(_chosen(config, shard, unreadable))
    report.damage.extend(map(str, unreadable))
    total = sum(manifest.object_size for flat in flats if (manifest := flat.refresh()) is not None)

    def advance(_: int) -> None:
        if progress is not None:
            progress(report.size, total)

    for flat in flats:
        verify_shard(flat, report, advance)
    return report


def collect_garbage(config: TierConfig) -> GarbageReport:
    """Delete what nothing refers to, in all shards; what is not ours is only listed. A manifest
    that cannot be read, and so nothing of its shard may go, is raised when all others are done."""
    whole = GarbageReport()
    unreadable: list[StoreError] = []
    provider = config.open()
    whole.leftovers = remove_leftovers(provider, SystemClock().now_ms() - config.grace_ms)
    for flat in flat_files_of(config, provider, unreadable=unreadable):
        report = flat.upkeep.collect_garbage()
        whole.deleted += report.deleted
        whole.deleted_size += report.deleted_size
        whole.waiting += report.waiting
        whole.foreign = [*whole.foreign, *report.foreign]
    if unreadable:
        raise unreadable[0]
    return whole


def rebuild_metadata(config: TierConfig, path: str) -> int:
    """Fill a metadata store that was lost from the tier alone; return how many shards. Reserve
    times that it still has are kept."""
    store = RocksDbMetadataStore(path, clock=SystemClock())
    count = 0
    try:
        topics: list[TopicMetadata] = []
        store.iterate_topic(topics.append)
        store.destroy()
        for topic in topics:
            if topic.reserve_time != NO_RESERVE_TIME:
                store.add_topic(topic.topic, topic.reserve_time)
        for flat in flat_files_of(config, config.open()):
            manifest = flat.refresh()
            if manifest is not None:
                store.upsert_queue(flat.shard, manifest.start_offset, manifest.end_offset)
                for segment in flat.segments():
                    store.update_file_segment(segment)
                count += 1
    finally:
        store.close()
    return count


def pull_shard(
    config: TierConfig,
    shard: ShardId,
    directory: str,
    progress: Progress | None = None,
    *,
    renumber: bool = False,
) -> int:
    """Copy a shard from the tier into a new store directory, which RocketMQ could open, too;
    return how many records.

    Records keep their offsets. A log has no hole, so what was deleted, and what is before the
    tier's first offset, is filled with empty records, which are deleted. With more of them than
    `FILLED_MAX`, or when that is not wanted, `renumber` lets the copy begin at 0."""
    report = progress or (lambda _done, _total: None)
    start, pages = _rocketmq_pages(config, shard, report) or _pages(config, shard, report)
    count = filled = 0
    with SegmentStore.open(directory, SegmentSettings()) as store:
        if store.shards():
            raise BadRequestError(f"{directory} holds a store already; choose an empty directory")
        store.create_shard(shard, QueueKind.SIMPLE)
        for page in pages:
            for run in _runs(page):
                if not renumber:
                    filled += _fill(store, shard, run[0].offset, FILLED_MAX - filled)
                store.append_many(shard, [record.as_record() for record in run])
                count += len(run)
        if not renumber:
            store.delete_before(shard, start)
    return count


_Pages = tuple[int, Iterator[list[StoredRecord]]]
"""Where a shard begins, and its records."""


def _pages(config: TierConfig, shard: ShardId, progress: Progress) -> _Pages:
    (flat,) = _chosen(config, shard)
    manifest = flat.refresh()
    if manifest is None:
        raise BadRequestError(f"the tier holds no shard {shard.name!r}")

    def each() -> Iterator[list[StoredRecord]]:
        size = 0
        for chunk in flat.reader.stream():
            yield flat.reader.live_records(chunk, manifest)
            size += chunk.entry.size
            progress(size, manifest.object_size)

    return manifest.start_offset, each()


# RocketMQ's own layout


def _rocketmq_pages(config: TierConfig, shard: ShardId, progress: Progress) -> _Pages | None:
    if not rocketmq_admin.is_rocketmq(config.url):
        return None
    queues = list(rocketmq_admin.queues(rocketmq_admin.open_tier(config), shard))
    if not queues:
        raise BadRequestError(f"the tier holds no queue {shard.name!r}")
    (queue,) = queues

    def each() -> Iterator[list[StoredRecord]]:
        for page in rocketmq_admin.pages(queue):
            yield page
            progress(page[-1].offset - queue.min_offset, queue.max_offset - queue.min_offset)

    return queue.min_offset, each()


def _rocketmq_status(config: TierConfig) -> list[TierShard]:
    return [
        TierShard(
            shard=queue.shard.name,
            kind=QueueKind.SIMPLE.value,
            start_offset=queue.min_offset,
            end_offset=queue.max_offset,
            segments=max(0, len(queue.commit_log.segments) - 1),
            chunks=len(queue.commit_log.segments),
            size=rocketmq_admin.size_of(queue),
            epoch=0,
            deleted_ranges=0,
            garbage=0,
            destroyed=False,
        )
        for queue in rocketmq_admin.queues(rocketmq_admin.open_tier(config))
    ]


def _rocketmq_files(config: TierConfig, shard: ShardId | None) -> Iterator[TierObject]:
    for queue in rocketmq_admin.queues(rocketmq_admin.open_tier(config), shard):
        for file in queue.commit_log.segments:
            first, end = rocketmq_admin.offsets_of_file(queue, file)
            times = [
                queue.raw(offset).store_timestamp_ms for offset in (first, end - 1) if first < end
            ]
            yield TierObject(
                shard=queue.shard.name,
                name=file.path.rpartition("/")[2],
                first_offset=first,
                end_offset=end,
                size=file.size,
                min_ms=min(times, default=0),
                max_ms=max(times, default=0),
            )


def _runs(records: list[StoredRecord]) -> Iterator[list[StoredRecord]]:
    """Yield records of consecutive offsets, some hundred at a time."""
    run: list[StoredRecord] = []
    for record in records:
        if run and (record.offset != run[-1].offset + 1 or len(run) >= _PULLED_AT_ONCE):
            yield run
            run = []
        run.append(record)
    if run:
        yield run


def _fill(store: SegmentStore, shard: ShardId, until: int, filled_max: int) -> int:
    """Let the next record have offset `until`; return how many offsets were filled."""
    begin = int(store.bounds(shard).commit)
    if until - begin > filled_max:
        raise BadRequestError(
            f"more than {FILLED_MAX} offsets of {shard.name!r} hold no record; the copy can "
            "keep none of its offsets: pull with renumber"
        )
    for first in range(begin, until, _PULLED_AT_ONCE):
        last = min(first + _PULLED_AT_ONCE, until)
        store.append_many(shard, [Record(b"")] * (last - first))
        store.delete_offsets(shard, range(first, last))
    return until - begin


def _chosen(
    config: TierConfig, shard: ShardId | None, unreadable: list[StoreError] | None = None
) -> Iterator[CompositeFlatFile]:
    has_shard = False
    for flat in flat_files_of(config, config.open(), shard, unreadable):
        has_shard = True
        yield flat
    if shard is not None and not has_shard and not unreadable:
        raise BadRequestError(f"the tier holds no shard {shard.name!r}")
