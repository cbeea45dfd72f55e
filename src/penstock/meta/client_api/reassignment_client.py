"""Reassignments and elections of many shards in one call, in `MetadataClient`, over a log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from penstock.errors import BadRequestError, StaleWriteError, StoreError, UnknownShardError
from penstock.meta.client import LeaderOutcome, ReplicaMove
from penstock.meta.client_api.metadata_proposer import expect_result
from penstock.meta.client_api.replica_client import LogReplicaClient
from penstock.meta.controller.replica_decisions import drains
from penstock.meta.state.constants import DRAINING, ONLINE
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.rows import NODES, SHARDS
from penstock.meta.state.model import Shard
from penstock.record import ShardId

_TRIES: Final = 5
"""A shard whose in-sync set changes meanwhile is tried so often."""


class LogReassignmentClient(LogReplicaClient):
    """See `ReplicaClient` for what the methods promise."""

    def _check_reassignment(self) -> None:
        """See `LogMetadataClient`."""

    def _check_replicas_on(self, nodes: Collection[int]) -> None:
        """See `LogMetadataClient`."""

    def start_reassignments(self, moves: Sequence[ReplicaMove]) -> list[Shard | StoreError]:
        if any(move.throttle or len(move.replicas) == 1 for move in moves):
            self._check_reassignment()
        targets = {move.shard: move for move in moves}
        self._check_replicas_on({node for move in moves for node in move.replicas})
        if len(targets) != len(moves):
            raise BadRequestError("a shard is named twice in one reassignment")

        def command(shard: Shard) -> cmd.Command:
            move = targets[shard.id]
            return cmd.ReassignReplicas(
                shard.topic_id,
                shard.partition,
                shard.partition_epoch,
                tuple(move.replicas),
                move.throttle,
            )

        return self._change_shards([move.shard for move in moves], command)

    def cancel_reassignments(self, shards: Sequence[ShardId]) -> list[Shard | StoreError]:
        return self._change_shards(
            shards, lambda shard: cmd.CancelReassignment(shard.topic_id, shard.partition)
        )

    def list_reassignments(self, topic_id: str | None = None) -> list[Shard]:
        parts = () if topic_id is None else (topic_id,)
        return [shard for shard in SHARDS.scan(self._reader, *parts) if shard.is_moving]

    def elect_preferred(self, shards: Sequence[ShardId]) -> list[LeaderOutcome]:
        return self._elect(shards, lambda shard: shard.preferred_leader)

    def elect_any(self, shards: Sequence[ShardId], *, is_unclean: bool) -> list[LeaderOutcome]:
        outcomes: list[LeaderOutcome] = []
        online = {node.node_id for node in NODES.scan(self._reader) if node.status == ONLINE}
        for name in shards:
            shard = SHARDS.get(self._reader, name.topic, name.partition)
            if shard is None or shard.leader is not None or not is_unclean:
                outcomes += self._elect([name], lambda _shard: None)
                continue
            able = sorted(
                (node for node in shard.replicas if node in online),
                key=lambda node: (
                    node not in {*shard.in_sync, *shard.eligible},
                    node != shard.last_leader,
                ),
            )
            if not able:
                reason = f"no replica of {shard.name} is online"
                outcomes.append(LeaderOutcome(name, None, "unavailable", reason))
                continue
            try:
                led = self.elect_unclean(shard.id, able[0], shard.partition_epoch)
                outcomes.append(LeaderOutcome(name, led.leader, "elected"))
            except StoreError as error:
                outcomes.append(LeaderOutcome(name, shard.leader, "unavailable", str(error)))
        return outcomes

    def hand_over_leaders(
        self, node_id: int, shards: Sequence[ShardId] | None = None
    ) -> list[LeaderOutcome]:
        nodes = list(NODES.scan(self._reader))
        online = {
            node.node_id for node in nodes if node.status == ONLINE and node.node_id != node_id
        }
        draining = {node.node_id for node in nodes if node.status == DRAINING}
        led = [
            shard
            for shard in SHARDS.scan(self._reader)
            if shard.leader == node_id
            and len(shard.replicas) > 1
            and (shards is None or shard.id in set(shards))
        ]
        elections = drains(led, online, {node_id})
        elections += drains(
            [
                shard
                for shard in led
                if shard.id not in {_id_of(election) for election in elections}
            ],
            draining - {node_id},
            {node_id},
        )
        targets = {_id_of(election): election.leader for election in elections}
        outcomes = self._elect(list(targets), lambda shard: targets[shard.id])
        outcomes += [
            LeaderOutcome(
                shard.id, node_id, "unavailable", f"no other replica of {shard.name} is in sync"
            )
            for shard in led
            if shard.id not in targets
        ]
        return outcomes

    def _elect(
        self, shards: Sequence[ShardId], choose: Callable[[Shard], int | None]
    ) -> list[LeaderOutcome]:
        """Elect with one command where nothing is to be done about refusals but to report them;
        `choose` returns the leader, None: any that may lead a shard without one."""
        outcomes: dict[ShardId, LeaderOutcome] = {}
        elections: list[cmd.Election] = []
        for name in shards:
            shard = SHARDS.get(self._reader, name.topic, name.partition)
            if shard is None:
                outcomes[name] = LeaderOutcome(name, None, "unknown", f"{name.name} does not exist")
                continue
            leader = choose(shard)
            if shard.leader is not None and leader in {None, shard.leader}:
                outcomes[name] = LeaderOutcome(name, shard.leader, "not-needed")
                continue
            elections.append(
                cmd.Election(shard.topic_id, shard.partition, shard.partition_epoch, leader)
            )
        for election, outcome in zip(elections, self.elect_leaders(elections), strict=True):
            name = _id_of(election)
            shard = SHARDS.get(self._reader, name.topic, name.partition)
            now = None if shard is None else shard.leader
            outcomes[name] = LeaderOutcome(
                name, now, "elected" if outcome.is_accepted else "unavailable", outcome.reason
            )
        return [outcomes[name] for name in shards]

    def _change_shards(
        self, shards: Sequence[ShardId], command: Callable[[Shard], cmd.Command]
    ) -> list[Shard | StoreError]:
        """Propose a command for each shard; those that were changed meanwhile are tried again."""
        outcomes: dict[ShardId, Shard | StoreError] = {}
        remaining = list(dict.fromkeys(shards))
        for _ in range(_TRIES):
            by_id = {
                name: SHARDS.get(self._reader, name.topic, name.partition) for name in remaining
            }
            outcomes |= {
                name: UnknownShardError(name.name) for name, shard in by_id.items() if shard is None
            }
            known = {name: shard for name, shard in by_id.items() if shard is not None}
            requests = [self._encoded(command(shard)) for shard in known.values()]
            answers = self._group.propose_many(requests) if requests else []
            self._watchers.deliver()
            remaining = []
            for name, answer in zip(known, answers, strict=True):
                try:
                    if isinstance(answer, StoreError):
                        raise answer
                    outcomes[name] = expect_result(answer, cmd.ShardsResult).shards[0]
                except StaleWriteError as error:
                    outcomes[name] = error
                    remaining.append(name)
                except StoreError as error:
                    outcomes[name] = error
            if not remaining:
                break
        return [outcomes[name] for name in shards]


def _id_of(election: cmd.Election) -> ShardId:
    return ShardId(election.topic_id, election.partition)
