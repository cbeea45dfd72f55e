"""The metadata group as replication sees it: one order of decisions, news that arrive late."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from penstock.engine.replication import Assignment, ProposeInSync
from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata import replica_sets
from penstock.meta.state.model import Shard


class Snapshot(Struct, frozen=True):
    """What a node knows after it applied a version of the metadata."""

    version: int
    assignment: Assignment
    brokers: dict[int, int]


class SimulatedMetadata:
    """The real rules of `replica_sets` over one shard."""

    def __init__(self, nodes: int, *, min_insync: int, is_sync: bool, shard: str = "t_0") -> None:
        replicas = tuple(range(1, nodes + 1))
        self.min_insync = min_insync
        self.is_sync = is_sync
        self.version = 0
        self.brokers: dict[int, int] = dict.fromkeys(replicas, 0)
        """Broker epochs of the nodes that are not fenced."""
        self._epoch = 0
        self.fenced: set[tuple[int, int]] = set()
        """Nodes that were fenced, with the broker epochs that they had."""
        self.shard = Shard(
            topic_id=shard.rpartition("_")[0],
            partition=0,
            replicas=replicas,
            in_sync=replicas,
            leader=1,
            leader_epoch=1,
            active_segment=0,
            first_segment=0,
            status="active",
            revision=0,
        )

    def snapshot(self) -> Snapshot:
        shard = self.shard
        assignment = Assignment(
            shard.name,
            shard.replicas,
            shard.in_sync,
            shard.eligible,
            shard.leader,
            shard.leader_epoch,
            shard.partition_epoch,
            self.min_insync,
        )
        return Snapshot(self.version, assignment, dict(self.brokers))

    def register(self, node: int, *, is_proven: bool) -> int:
        """Register a node; return its broker epoch."""
        self._epoch += 1
        self.brokers[node] = self._epoch
        self.version += 1
        if is_proven or self.is_sync:
            changed = replica_sets.restarted(
                self.shard, node, brokers=self.brokers, min_insync=self.min_insync
            )
        else:
            changed = replica_sets.without_node(
                self.shard,
                node,
                brokers=self.brokers,
                min_insync=self.min_insync,
                is_proven=False,
            )
        self._set(self._elected(changed))
        return self._epoch

    def fence(self, node: int) -> None:
        if node not in self.brokers:
            return
        self.fenced.add((node, self.brokers.pop(node)))
        self._set(
            self._elected(
                replica_sets.without_node(
                    self.shard,
                    node,
                    brokers=self.brokers,
                    min_insync=self.min_insync,
                    is_proven=True,
                )
            )
        )

    def change(self, sender: int, proposal: ProposeInSync) -> bool:
        """Apply a leader's proposal; return False when it is refused."""
        changed = replica_sets.change_in_sync(
            self.shard,
            sender=sender,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            members=proposal.members,
            brokers=self.brokers,
            min_insync=self.min_insync,
        )
        if isinstance(changed, Rejected):
            return False
        self._set(changed)
        return True

    def move_leader(self, to: int) -> None:
        changed = replica_sets.move_leader(
            self.shard, to, brokers=self.brokers, min_insync=self.min_insync
        )
        if not isinstance(changed, Rejected):
            self._set(changed)

    def leave(self, node: int) -> bool:
        """Let a damaged replica leave; return False when it is the last one."""
        changed = replica_sets.leave(
            self.shard, node, brokers=self.brokers, min_insync=self.min_insync
        )
        if isinstance(changed, Rejected):
            return False
        self._set(self._elected(changed))
        return True

    def _elected(self, shard: Shard) -> Shard:
        if shard.leader is not None:
            return shard
        led = replica_sets.elect(shard, brokers=self.brokers, min_insync=self.min_insync)
        return led if led.leader is not None else shard

    def _set(self, shard: Shard) -> None:
        self.version += 1
        self.shard = replace(shard, revision=self.version)
