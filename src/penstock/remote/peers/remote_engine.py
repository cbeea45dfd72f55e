"""`RemoteEngine`: the engine of another node, for the shards that it leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from penstock.engine.contract import Acks, Capabilities, ForwardingEngine, ShardConfig, Written
from penstock.errors import NotSupportedError, StoreError
from penstock.record import Offset, Producer, Record, ShardId
from penstock.remote.wire import shard_calls as calls
from penstock.remote.wire.packed_write import PackedWrite
from penstock.remote.wire.shard_calls import ShardCall

if TYPE_CHECKING:
    from penstock.remote.peers.connections import ClientConnectionManager

P = ParamSpec("P")
R = TypeVar("R")


def _read(call: ShardCall[P, R]) -> Callable[Concatenate[RemoteEngine, P], R]:
    """Return the method that sends a call which reads to the other node."""

    def send(self: RemoteEngine, /, *arguments: P.args, **named: P.kwargs) -> R:
        message = call.encode(*arguments, **named)
        return call.decode(self.connections.read_send(self.node_id, call, message))

    return send


def _change(call: ShardCall[P, R]) -> Callable[Concatenate[RemoteEngine, P], R]:
    """Return the method that sends a call which changes the shard to the other node."""

    def send(self: RemoteEngine, /, *arguments: P.args, **named: P.kwargs) -> R:
        message = call.encode(*arguments, **named)
        return call.decode(self.connections.write_send(self.node_id, call, message))

    return send


class RemoteEngine(ForwardingEngine):
    """Implements `StorageEngine`."""

    def __init__(self, connections: ClientConnectionManager, node_id: int) -> None:
        self.connections: Final = connections
        self.node_id: Final = node_id

    seal_shard = _change(calls.SEAL)
    shard_info = _read(calls.INFO)
    read_by_offset = _read(calls.READ)
    read_by_tag = _read(calls.READ_BY_TAG)
    read_by_key = _read(calls.READ_BY_KEY)
    query_by_key = _read(calls.QUERY_BY_KEY)
    delete_by_key = _change(calls.DELETE_BY_KEY)
    delete_by_offset = _change(calls.DELETE_BY_OFFSET)
    delete_records_before = _change(calls.DELETE_BEFORE)
    get_offset_by_timestamp = _read(calls.OFFSET_AT)
    compact = _change(calls.COMPACT)

    def forward_write(
        self,
        shard: ShardId,
        records: Sequence[Record],
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Written:
        packed = PackedWrite(shard.name, records, producer, acks)
        written = self.connections.send_packed(self.node_id, packed)
        if written is None:
            message = calls.WRITE.encode(shard, records, producer=producer, acks=acks)
            written = self.connections.write_send(self.node_id, calls.WRITE, message)
        return calls.WRITE.decode(written)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        return self.forward_write(shard, records, producer=producer)

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        return self.forward_write(shard, [record], producer=producer)

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:  # noqa: ARG002 - it has it
        self.connections.open_shards(self.node_id, shard.topic, [shard.partition], 0)

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        self.connections.alter_shard(self.node_id, shard, config, 0)

    @property
    def capabilities(self) -> Capabilities:
        raise self._unsupported("the capabilities of its engines")

    def delete_shard(self, shard: ShardId) -> None:
        raise self._unsupported(f"the deletion of {shard.name!r}")

    def list_shard(self, topic: str | None = None) -> list[ShardId]:  # noqa: ARG002 - the contract's
        raise self._unsupported("the list of its shards")

    def apply_retention(self, shard: ShardId) -> Offset:
        raise self._unsupported(f"the retention of {shard.name!r}")

    def close(self) -> None:
        """The connection manager closes the connections."""

    def _unsupported(self, operation: str) -> StoreError:
        return NotSupportedError(f"{operation}: only node {self.node_id} itself can do this")
