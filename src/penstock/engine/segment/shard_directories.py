"""The directories of derived files that each shard has: its queue, page checksums, times."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.disk import Disk
from penstock.engine.segment.paths import StorePaths, sums_root
from penstock.record import QueueKind, ShardId


def remove_directories(
    disk: Disk, paths: StorePaths, shards: Iterable[tuple[ShardId, QueueKind]]
) -> None:
    """Remove everything derived that lies in a directory of one of `shards`, durably."""
    changed: dict[str, None] = {}
    for shard, kind in shards:
        roots = (paths.queue_root(kind), f"{paths.sums}/{sums_root(kind)}", paths.times)
        for root in roots:
            topic = f"{root}/{shard.topic}"
            if not disk.exists(topic):
                continue
            disk.remove_tree(f"{topic}/{shard.partition}")
            changed[root if disk.remove_empty(topic) else topic] = None
    for directory in changed:
        if disk.exists(directory):
            disk.sync_directory(directory)
