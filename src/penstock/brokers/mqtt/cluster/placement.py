"""`Placement`: which node runs the session of a client.

A session runs on the node that leads its partition of `__mqtt_sessions`, which the client id
decides. May be asked from any thread.
"""

from __future__ import annotations

from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicRoute, key_hash
from penstock.brokers.mqtt.sessions.row_writer import TOPIC
from penstock.errors import NotLeaderError, RetryableError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE


class Placement:
    def __init__(self, drivers: StorageDriverManager, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._drivers: Final = drivers
        self._namespace: Final = namespace
        self._shards: Final = drivers.storage_cache.shards
        self.node_id: Final = drivers.node_id

    def route(self) -> TopicRoute | None:
        """Return the topic of the rows; None: it does not exist yet."""
        try:
            return self._drivers.routes.find(TOPIC, self._namespace)
        except (UnknownTopicError, RetryableError):
            return None

    def partition_of(self, client_id: str, route: TopicRoute) -> int:
        return key_hash(client_id.encode()) % route.partitions

    def leader(self, shard_name: str) -> int | None:
        """Return the node that leads a shard; None: none does, or it is not known."""
        entry = self._shards.get(shard_name)
        meta = None if entry is None else entry.meta
        return None if meta is None else meta.leader

    def epoch_led(self, shard_name: str) -> int | None:
        """Return the leader epoch under which this node leads a shard and may serve it; None: it
        does not."""
        entry = self._shards.get(shard_name)
        if entry is None or entry.meta is None or entry.meta.leader != self.node_id:
            return None
        replica = entry.replica
        if replica is None:
            return None if entry.is_replicated else entry.meta.leader_epoch
        if not replica.is_ready or not replica.may_serve:
            return None
        return entry.meta.leader_epoch

    def check_epoch(self, shard_name: str, epoch: int | None) -> None:
        """Raise `NotLeaderError` unless this node leads a shard under this epoch still."""
        if epoch is None or self.epoch_led(shard_name) != epoch:
            leader = self.leader(shard_name)
            raise NotLeaderError(
                shard_name or TOPIC, leader=None if leader is None else str(leader)
            )
