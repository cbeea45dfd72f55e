"""Asks a node how far its replicas of a topic are: before an operator gives records up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
import msgspec

from penstock.engine.replication.runtime.shard_replica import ReplicaPosition
from penstock.remote import shards_pb2 as pb
from penstock.remote import storage_pb2
from penstock.remote.wire.errors import error_of_call
from penstock.remote.wire.shard_calls import SERVICE

ASK_S: Final = 3.0

_positions: Final = msgspec.json.Decoder(dict[int, ReplicaPosition])


def ask_positions(
    address: str, topic_id: str, partitions: Sequence[int]
) -> dict[int, ReplicaPosition]:
    """Return the positions of the replicas that the node at `address` has, by partition. Raises
    `DeadlineError` when it does not answer, `NotSupportedError` when its release cannot."""
    request = pb.ShardNames(topic_id=topic_id, partitions=partitions)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/DescribeReplicas",
            request_serializer=pb.ShardNames.SerializeToString,
            response_deserializer=storage_pb2.JsonReply.FromString,
        )
        try:
            reply = call(request, timeout=ASK_S)
        except grpc.RpcError as error:
            raise error_of_call(error, address, request) from error
    return _positions.decode(reply.json)
