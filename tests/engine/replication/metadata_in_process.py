"""The metadata of a few nodes in one process: the real rules of the sets, without a Raft group.

Every change goes to all nodes as an update, as the watch of the metadata delivers it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.engine.replication.effects import ProposeInSync
from penstock.engine.replication.runtime.peer_channel import PeerChannel
from penstock.meta import Node, Shard, Topic, TopicConfig, Update
from penstock.meta import events as event
from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata import replica_sets
from penstock.record import ShardId

Apply = Callable[[Update], None]


class Metadata:
    """`nodes`: their numbers; each has a replica of every shard."""

    def __init__(self, nodes: Sequence[int], min_insync: int) -> None:
        self._nodes: Final = tuple(nodes)
        self._min_insync: Final = min_insync
        self._lock: Final = threading.RLock()
        self._config: Final = TopicConfig(replication=len(nodes), min_insync=min_insync)
        self._topics: Final[dict[str, Topic]] = {}
        self.shards: Final[dict[str, Shard]] = {}
        self._brokers: Final[dict[int, int]] = {}
        self._watches: Final[dict[int, Apply]] = {}
        self._revision = 0

    def register(self, node: int, apply: Apply) -> int:
        """Let a node that starts follow the metadata, and take part; return its broker epoch. It
        proves that it has lost nothing: only its process ended."""
        with self._lock:
            self._revision += 1
            epoch = self._brokers[node] = self._revision
            changed = [
                replica_sets.restarted(
                    shard, node, brokers=self._brokers, min_insync=self._min_insync
                )
                for shard in self.shards.values()
            ]
            self._put(changed, [event.NodePut(_node(node, epoch))])
            self._watches[node] = apply
            everything: list[event.Event] = [event.TopicPut(one) for one in self._topics.values()]
            everything += [event.ShardPut(one) for one in self.shards.values()]
            everything += [event.NodePut(_node(*one)) for one in self._brokers.items()]
            apply(Update(self._revision, tuple(everything), is_reset=True))
            return epoch

    def stop(self, node: int) -> None:
        """Send a node that ends no more updates."""
        with self._lock:
            self._watches.pop(node, None)

    def create_shard(self, shard: ShardId) -> None:
        with self._lock:
            if shard.name in self.shards:
                return
            self._revision += 1
            topic = Topic(
                topic_id=shard.topic,
                namespace="",
                name=shard.topic,
                partitions=shard.partition + 1,
                config=self._config,
                status="active",
                created_at_ms=0,
                revision=self._revision,
            )
            self._topics[shard.topic] = topic
            made = Shard(
                topic_id=shard.topic,
                partition=shard.partition,
                replicas=self._nodes,
                in_sync=self._nodes,
                leader=self._nodes[0],
                leader_epoch=1,
                active_segment=0,
                first_segment=0,
                status="active",
                revision=self._revision,
            )
            self._put([made], [event.TopicPut(topic)])

    def delete_shard(self, shard: ShardId) -> None:
        with self._lock:
            if self.shards.pop(shard.name, None) is not None:
                self._put([], [event.ShardDeleted(shard.topic, shard.partition)])

    def move_leader(self, name: str, to: int) -> Shard:
        """Let another replica in sync lead; return the shard."""
        with self._lock:
            moved = replica_sets.move_leader(
                self.shards[name], to, brokers=self._brokers, min_insync=self._min_insync
            )
            if not isinstance(moved, Rejected):
                self._put([moved])
            return self.shards[name]

    def change_in_sync(self, sender: int, proposal: ProposeInSync) -> int | None:
        """Return None when the change is accepted, else the partition epoch of the refusal."""
        with self._lock:
            shard = self.shards.get(proposal.shard)
            if shard is None:
                return -1
            changed = replica_sets.change_in_sync(
                shard,
                sender=sender,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                members=proposal.members,
                brokers=self._brokers,
                min_insync=self._min_insync,
            )
            if isinstance(changed, Rejected):
                return shard.partition_epoch
            self._put([changed])
            return None

    def leave_in_sync(self, node: int, name: str, partition_epoch: int) -> bool:
        with self._lock:
            shard = self.shards.get(name)
            if shard is None or shard.partition_epoch != partition_epoch:
                return True
            left = replica_sets.leave(
                shard, node, brokers=self._brokers, min_insync=self._min_insync
            )
            if isinstance(left, Rejected):
                return False
            self._put([left])
            return True

    def _put(self, shards: Sequence[Shard], others: Sequence[event.Event] = ()) -> None:
        """Store shards, and send them to all nodes; to those first that lead them, so that the
        others find a leader."""
        self._revision += 1
        for shard in shards:
            self.shards[shard.name] = replace(shard, revision=self._revision)
        update = Update(self._revision, (*others, *(event.ShardPut(one) for one in shards)))
        leaders = {shard.leader for shard in shards}
        for node in sorted(self._watches, key=lambda node: node not in leaders):
            self._watches[node](update)


class NodeMetadata:
    """The metadata as one node sees them; implements `ReplicaMetadata`."""

    def __init__(self, metadata: Metadata, node_id: int, channel: PeerChannel) -> None:
        self._metadata: Final = metadata
        self._node_id: Final = node_id
        self._channel: Final = channel
        self._registered: Callable[[int], None] = _ignore

    @property
    def node_id(self) -> int:
        return self._node_id

    def register(self, apply: Apply) -> None:
        self._registered(self._metadata.register(self._node_id, apply))

    def on_registered(self, callback: Callable[[int], None]) -> None:
        self._registered = callback

    def channel(self, name: str) -> PeerChannel:
        return self._channel

    def lease_holds(self) -> bool:
        return True

    def change_in_sync(self, proposals: Sequence[ProposeInSync]) -> Sequence[int | None]:
        return [self._metadata.change_in_sync(self._node_id, one) for one in proposals]

    def leave_in_sync(self, shard: str, partition_epoch: int) -> bool:
        return self._metadata.leave_in_sync(self._node_id, shard, partition_epoch)

    def report_unproven(self) -> None:
        for name, shard in list(self._metadata.shards.items()):
            self._metadata.leave_in_sync(self._node_id, name, shard.partition_epoch)


def _ignore(_epoch: int) -> None:
    """Until the replication asks."""


def _node(node_id: int, epoch: int) -> Node:
    return Node(
        node_id=node_id,
        address="",
        listeners={},
        roles=(),
        boot_id=str(epoch),
        epoch=epoch,
        status="online",
        registered_at_ms=0,
    )
