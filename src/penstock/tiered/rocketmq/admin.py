"""`penstock tier status`, `ls`, `verify` and `pull` for tiers in RocketMQ's own layout.

A node cannot keep a tier there: `providers` says why. Options: `cluster` (needed when the directory
holds several) and `broker`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.errors import CorruptionError, TierSetupError, UnreadableContentError
from penstock.platform.local_disk import LocalDisk
from penstock.platform.log import get_logger
from penstock.record import ShardId, StoredRecord
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.scrubber import ScrubReport
from penstock.tiered.providers import ROCKETMQ
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata
from penstock.tiered.rocketmq.tier import RocketMqQueue, RocketMqTier, cluster_name, names_in

DAMAGE_MAX: Final = 1000
"""Sentences about one queue."""
_PAGE: Final = 500
_PREFIX_SIZE: Final = 9
_log: Final = get_logger(__name__)


def is_rocketmq(url: str) -> bool:
    return urlsplit(url).scheme.lower() == ROCKETMQ


def open_tier(config: TierConfig) -> RocketMqTier:
    """Open a tier of RocketMQ's for reading; reject another directory."""
    root = unquote(urlsplit(config.url).path)
    clusters = [name[_PREFIX_SIZE:] for name in names_in(LocalDisk(), root) if _is_cluster(name)]
    chosen = config.options.get("cluster", "")
    if not chosen and len(clusters) != 1:
        names = ", ".join(clusters) or "none"
        raise TierSetupError(
            f"{config.url}: name the cluster with --set cluster=…; the directory holds: {names}"
        )
    broker = config.options.get("broker", "")
    return RocketMqTier(config.url, cluster=chosen or clusters[0], broker=broker)


def _is_cluster(name: str) -> bool:
    return name == cluster_name(name[_PREFIX_SIZE:])


def queues(tier: RocketMqTier, only: ShardId | None = None) -> Iterator[RocketMqQueue]:
    for shard in tier.shards():
        if only is None or shard == only:
            yield tier.queue(shard)


def size_of(queue: RocketMqQueue) -> int:
    files = (*queue.commit_log.segments, *queue.consume_queue.segments)
    return sum(file.size for file in files)


def offsets_of_file(queue: RocketMqQueue, file: FileSegmentMetadata) -> tuple[int, int]:
    """Return the offsets [first, end) of the records in a file of the commit log."""
    return (
        _first_at(queue, file.base_offset),
        _first_at(queue, file.base_offset + file.size),
    )


def _first_at(queue: RocketMqQueue, position: int) -> int:
    """Return the first offset whose record is at or after a position."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        if queue.unit(middle)[0] < position:
            low = middle + 1
        else:
            high = middle
    return low


def verify(
    config: TierConfig, only: ShardId | None, advance: Callable[[int, int], None]
) -> ScrubReport:
    """Read every record and check what RocketMQ's files let one check: sizes, identity, bodies."""
    report = ScrubReport()
    tier = open_tier(config)
    total = sum(size_of(queue) for queue in queues(tier, only))
    for queue in queues(tier, only):
        report.shards += 1
        report.chunks += len(queue.commit_log.segments)
        before = len(report.damage)
        for offset in range(queue.min_offset, queue.max_offset):
            try:
                queue.raw(offset)
                report.records += 1
            except CorruptionError as error:
                report.damage.append(f"{queue.shard.name} offset {offset}: {error}")
                if len(report.damage) - before >= DAMAGE_MAX:
                    break
        report.size += size_of(queue)
        advance(report.size, total)
    return report


def pages(queue: RocketMqQueue) -> Iterator[list[StoredRecord]]:
    """Yield the records of a queue; what cannot be decoded is passed over with a warning."""
    offset = queue.min_offset
    while offset < queue.max_offset:
        try:
            page = queue.read(offset, _PAGE)
        except UnreadableContentError as error:
            _log.warning("content_passed_over", shard=queue.shard.name, error=str(error))
            offset = error.next_offset
            continue
        yield page
        offset = page[-1].offset + 1
