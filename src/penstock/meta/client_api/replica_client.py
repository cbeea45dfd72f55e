"""The replicas of shards in `MetadataClient`, over a log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.meta.client import InSyncProposal
from penstock.meta.client_api.metadata_proposer import MetadataProposer
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.model import Shard
from penstock.record import ShardId


class LogReplicaClient(MetadataProposer):
    """See `MetadataClient` for what the methods promise."""

    @property
    def broker_epoch(self) -> int | None:
        return 0

    def on_registered(self, callback: Callable[[int], None]) -> None:
        callback(0)

    def lease_holds(self) -> bool:
        return self.lease_left_s() > 0

    def lease_left_s(self) -> float:
        return math.inf

    def change_in_sync(self, proposals: Sequence[InSyncProposal]) -> list[int | None]:
        refusals: list[int | None] = []
        for start in range(0, len(proposals), cmd.PLACEMENTS_MAX):
            changes = tuple(map(_change, proposals[start : start + cmd.PLACEMENTS_MAX]))
            command = cmd.ChangeInSyncSets(self._node_id, self.broker_epoch or 0, changes)
            refusals += [
                None if outcome.is_accepted else outcome.partition_epoch
                for outcome in self._done(command, cmd.ReplicaOutcomes).outcomes
            ]
        return refusals

    def leave_in_sync(self, shard: str, partition_epoch: int) -> bool:
        left = ShardId.parse(shard)
        command = cmd.LeaveInSync(
            self._node_id, self.broker_epoch or 0, left.topic, left.partition, partition_epoch
        )
        return not self._done(command, cmd.ReplicaOutcomes).outcomes[0].is_last

    def report_unproven(self, *, is_synced_lost: bool = False) -> None:
        epoch = self.broker_epoch or 0
        self._done(cmd.ReportUnproven(self._node_id, epoch, is_synced_lost), cmd.Done)

    def elect_leaders(self, elections: Sequence[cmd.Election]) -> list[cmd.ReplicaOutcome]:
        outcomes: list[cmd.ReplicaOutcome] = []
        for start in range(0, len(elections), cmd.PLACEMENTS_MAX):
            some = tuple(elections[start : start + cmd.PLACEMENTS_MAX])
            outcomes += self._done(cmd.ElectLeaders(some), cmd.ReplicaOutcomes).outcomes
        return outcomes

    def elect_unclean(self, shard: ShardId, node_id: int, partition_epoch: int) -> Shard:
        command = cmd.ElectUnclean(shard.topic, shard.partition, node_id, partition_epoch)
        return self._done(command, cmd.ShardsResult).shards[0]

    def reassign_replicas(
        self, shard: ShardId, replicas: Sequence[int], partition_epoch: int
    ) -> Shard:
        command = cmd.ReassignReplicas(
            shard.topic, shard.partition, partition_epoch, tuple(replicas)
        )
        return self._done(command, cmd.ShardsResult).shards[0]

    def cancel_reassignment(self, shard: ShardId) -> Shard:
        command = cmd.CancelReassignment(shard.topic, shard.partition)
        return self._done(command, cmd.ShardsResult).shards[0]


def _change(proposal: InSyncProposal) -> cmd.InSyncChange:
    shard = ShardId.parse(proposal.shard)
    return cmd.InSyncChange(
        shard.topic,
        shard.partition,
        proposal.leader_epoch,
        proposal.partition_epoch,
        proposal.members,
    )
