"""`ShardAlterations`: every replica of a topic follows its configuration when that changes.

The node that alters a topic waits until its leaders have the change. All other replicas get it
here, from the metadata, whether the node leads or follows: a leader that takes over has kept its
copy in the same way. An engine may have to write for it, so a thread of its own calls it.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.engine.replication.runtime.batch_worker import BatchWorker
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.errors import StoreError, UnknownShardError
from penstock.platform.log import get_logger
from penstock.record import ShardId

_log: Final = get_logger(__name__)


class ShardKeeper(Protocol):
    """The engines of this node."""

    def alter_entry(self, entry: ShardEntry) -> None:
        """Give this node's engine what the metadata say of a shard now."""
        ...


class ShardAlterations(BatchWorker[list[str]]):
    """`start` when the engines have the shards that the metadata name; `close` before they end."""

    def __init__(self, cache: StorageCacheManager, shards: ShardKeeper) -> None:
        super().__init__("penstock-alter")
        self._cache: Final = cache
        self._shards: Final = shards
        self._altered: dict[str, None] = {}
        """Ids of topics, in the order of their alteration."""
        cache.on_altered = self.add

    def add(self, topic_id: str) -> None:
        """Have the replicas of a topic follow its configuration; returns immediately."""
        with self._changed:
            self._altered[topic_id] = None
            self._changed.notify()

    def _next_batch(self) -> list[str] | None:
        if not self._altered:
            return None
        batch = list(self._altered)
        self._altered.clear()
        return batch

    def _run_batch(self, batch: list[str]) -> None:
        for topic_id in batch:
            known = self._cache.topics.get(topic_id)
            for partition in range(0 if known is None else known.topic.partitions):
                entry = self._cache.shards.get(ShardId(topic_id, partition).name)
                if entry is not None and entry.is_open:
                    self._alter(entry)

    def _alter(self, entry: ShardEntry) -> None:
        try:
            self._shards.alter_entry(entry)
        except UnknownShardError:
            pass  # deleted meanwhile
        except StoreError as error:
            # A full disk, for example: the next start gives the engine the configuration again.
            _log.warning("shard_not_altered", shard=entry.name, reason=str(error))
