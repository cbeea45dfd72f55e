"""The directories of derived files that shards have: of queues, of page checksums, of times."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.segment.log.log_files import is_file_name
from penstock.engine.segment.paths import StorePaths, sums_root
from penstock.platform.disk import Disk
from penstock.record import QueueKind, ShardId


def remove_files(disk: Disk, paths: StorePaths, shard: ShardId, kind: QueueKind) -> None:
    """Remove everything derived from a deleted shard."""
    for root in _roots(paths, kind):
        disk.remove_tree(f"{root}/{shard.topic}/{shard.partition}")


def remove_directories(
    disk: Disk, paths: StorePaths, shards: Iterable[tuple[ShardId, QueueKind]]
) -> None:
    """Remove the directories of topics that hold nothing since the files of `shards` are gone, and
    make that durable. One sync does for many."""
    changed: dict[str, None] = {}
    for shard, kind in shards:
        for root in _roots(paths, kind):
            topic = f"{root}/{shard.topic}"
            changed[root if disk.remove_empty(topic) else topic] = None
    for directory in changed:
        sync_removal(disk, directory)


def remove_queues(disk: Disk, topic: str) -> None:
    """Remove the files of all queues in the directory of a topic, and the directories that hold
    nothing then. A file that does not belong to a queue stays. The caller syncs the
    directory above."""
    if not disk.is_directory(topic):
        return
    for queue in disk.list(topic):
        directory = f"{topic}/{queue}"
        if queue.isascii() and queue.isdigit() and disk.is_directory(directory):
            for name in disk.list(directory):
                if is_file_name(name):
                    disk.remove(f"{directory}/{name}")
            if not disk.remove_empty(directory):
                disk.sync_directory(directory)
    if not disk.remove_empty(topic):
        disk.sync_directory(topic)


def sync_removal(disk: Disk, directory: str) -> None:
    """Put it on the device that something in `directory` was removed, also when the directory
    itself went meanwhile, because it was empty."""
    while True:
        try:
            return disk.sync_directory(directory)
        except FileNotFoundError:
            above = directory.rpartition("/")[0]
            if not above:
                raise
            directory = above


def _roots(paths: StorePaths, kind: QueueKind) -> tuple[str, ...]:
    return paths.queue_root(kind), f"{paths.sums}/{sums_root(kind)}", paths.times
