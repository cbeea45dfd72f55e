"""Where a store keeps its files.

DIR/commitlog/            the log                        RocketMQ's
DIR/consumequeue/         queues of simple shards        RocketMQ's
DIR/batchconsumequeue/    queues of batch shards         RocketMQ's
DIR/index/                key index                      RocketMQ's
DIR/config/topics.json    queue kinds of the topics      RocketMQ's
DIR/store.properties      sizes of the files             RocketMQ's names
DIR/checkpoint, abort, lock                              RocketMQ's
DIR/penstock/             what RocketMQ's files cannot say:
    store.properties          the same once more
    durable checkpoint        how far the log and the derived files are on the device
    shards/ copies/           the shards' states, as of the checkpoint, twice
    live/                     the same, refreshed for readers in other processes
    times/ sums/ dispatch/    block maxima of timestamps, page checksums, dispatchers' positions
    index/                    keys inside batches
    reserve                   room on the disk, given up when there is none
"""

from __future__ import annotations

from typing import Final

from penstock.engine.segment.settings import SegmentSettings
from penstock.record import QueueKind, ShardId


def is_index_name(name: str) -> bool:
    """Say whether a file's name is a time, as those of index files are."""
    return name.isascii() and name.isdigit()


class StorePaths:
    def __init__(self, root: str, settings: SegmentSettings) -> None:
        self.root: Final = root.rstrip("/") or "/"
        self.commit_log: Final = settings.commit_log_path or f"{self.root}/commitlog"
        self.consume_queue: Final = settings.consume_queue_path or f"{self.root}/consumequeue"
        self.batch_queue: Final = (
            f"{settings.consume_queue_path}-batch"
            if settings.consume_queue_path
            else f"{self.root}/batchconsumequeue"
        )
        self.index: Final = settings.index_path or f"{self.root}/index"
        self.topics: Final = f"{self.root}/config/topics.json"
        self.properties: Final = f"{self.root}/store.properties"
        self.checkpoint: Final = f"{self.root}/checkpoint"
        self.abort: Final = f"{self.root}/abort"
        self.lock: Final = f"{self.root}/lock"
        self.own: Final = f"{self.root}/penstock"
        self.durable: Final = f"{self.own}/durable"
        self.derived: Final = f"{self.own}/checkpoint"
        self.properties_copy: Final = f"{self.own}/store.properties"
        self.shards: Final = f"{self.own}/shards"
        self.copies: Final = f"{self.own}/copies"
        self.live: Final = f"{self.own}/live"
        self.times: Final = f"{self.own}/times"
        self.sums: Final = f"{self.own}/sums"
        self.dispatch: Final = f"{self.own}/dispatch"
        self.batch_index: Final = f"{self.own}/index"
        self.reserve: Final = f"{self.own}/reserve"

    def queue_root(self, kind: QueueKind) -> str:
        return self.consume_queue if kind is QueueKind.SIMPLE else self.batch_queue

    def queue(self, shard: ShardId, kind: QueueKind) -> str:
        return f"{self.queue_root(kind)}/{shard.topic}/{shard.partition}"


def sums_root(kind: QueueKind) -> str:
    """Where below `penstock/sums` the page checksums of the queue files of all shards lie."""
    return "consumequeue" if kind is QueueKind.SIMPLE else "batchconsumequeue"


def sums_path(shard: ShardId, kind: QueueKind, path: str) -> str:
    return f"{sums_root(kind)}/{shard.topic}/{shard.partition}/{path.rpartition('/')[2]}"
