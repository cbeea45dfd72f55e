"""Nodes, leases and producer ids of `MetadataClient`, over a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.meta.client import StartProof
from penstock.meta.client_api.metadata_proposer import MetadataProposer, expect_result
from penstock.meta.rejections import check_partition, check_text
from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.rows import LEASES, NODES
from penstock.meta.state.model import Lease, Node, Shard
from penstock.record import ShardId


class LogNodeClient(MetadataProposer):
    """See `MetadataClient` for what the methods promise."""

    def register_node(
        self,
        address: str,
        *,
        listeners: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
        boot_id: str = "",
        store_id: str = "",
        proof: StartProof | None = None,
        free_bytes: int = -1,
    ) -> Node:
        proof = proof if proof is not None else StartProof()
        command = cmd.RegisterNode(
            node_id=self._node_id,
            address=address,
            listeners=dict(listeners or {}),
            roles=tuple(roles),
            boot_id=boot_id,
            store_id=store_id,
            is_proven=proof.is_proven,
            previous_epoch=proof.previous_epoch,
            free_bytes=free_bytes,
        )
        return self._done(command, cmd.NodeResult).node

    def accept_data_loss(self, shard: ShardId) -> Shard:
        command = cmd.AcceptDataLoss(shard.topic, shard.partition)
        return self._done(command, cmd.ShardsResult).shards[0]

    def report_engine_loss(self, storage_type: str, engine_id: str) -> None:
        self._done(cmd.ReportEngineLoss(self._node_id, storage_type, engine_id), cmd.Done)

    def restore_lost_shard(self, shard: ShardId, engine_id: str) -> bool:
        command = cmd.RestoreShard(shard.topic, shard.partition, self._node_id, engine_id)
        answer = self._propose(command)
        return not (isinstance(answer, Rejected) and answer.code == "bad_request")

    def set_node_status(self, node_id: int, status: str, *, epoch: int | None = None) -> Node:
        return self._done(cmd.SetNodeStatus(node_id, status, epoch), cmd.NodeResult).node

    def remove_node(self, node_id: int) -> None:
        self._done(cmd.RemoveNode(node_id), cmd.Done)

    def list_nodes(self) -> list[Node]:
        return list(NODES.scan(self._reader))

    def acquire_lease(self, shard: ShardId, holder: str, duration_ms: int) -> Lease | None:
        command = cmd.AcquireLease(shard.topic, shard.partition, holder, duration_ms)
        answer = self._propose(command)
        if isinstance(answer, Rejected) and answer.code == "held":
            return None
        return expect_result(answer, cmd.LeaseResult).lease

    def renew_lease(self, lease: Lease, duration_ms: int) -> Lease:
        command = cmd.RenewLease(
            lease.topic_id, lease.partition, lease.holder, lease.epoch, duration_ms
        )
        return self._done(command, cmd.LeaseResult).lease

    def release_lease(self, lease: Lease) -> None:
        command = cmd.ReleaseLease(lease.topic_id, lease.partition, lease.holder, lease.epoch)
        self._done(command, cmd.Done)

    def get_lease(self, shard: ShardId) -> Lease | None:
        check_text("a topic id", shard.topic)
        return LEASES.get(self._reader, shard.topic, check_partition(shard.partition))

    def allocate_producer_ids(self, count: int, *, request_id: str = "") -> range:
        ids = self._done(cmd.AllocateProducerIds(count), cmd.ProducerIds, request_id)
        return range(ids.first, ids.first + ids.count)
