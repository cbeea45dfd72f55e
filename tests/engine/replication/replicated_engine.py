"""Three nodes in one process as one engine: real engines, real replication, real rules.

    call ──▶ another replica leads ──▶ engine of the new leader ──▶ replicas have it ──▶ return

Between any two calls on a shard its leader changes. What one node was told, the next one has to
know: records, indexes, producers, deletes, the first offset, a seal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from tests.engine.replication.metadata_in_process import Metadata, NodeMetadata

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    Acks,
    AdapterOffsetStrategy,
    Capabilities,
    Compacted,
    Isolation,
    ReplicatedEngine,
    ShardConfig,
    ShardInfo,
    StorageEngine,
    TransactionalEngine,
    Written,
)
from penstock.engine.replication.options import CoreOptions
from penstock.engine.replication.runtime.replicator import Replicator
from penstock.engine.replication.runtime.shard_replica import ShardReplica
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.errors import BadRequestError
from penstock.meta import Update
from penstock.platform.clock import SystemClock
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord
from penstock.testing.conformance.harness import EngineHarness

NODES: Final = (1, 2, 3)
WAIT_S: Final = 60.0
PAUSE_S: Final = 0.0005
CALLS_MAX: Final = 16
"""Calls of threads that overlap before they have to wait for a change of the leader."""

T = TypeVar("T")


class Channel:
    """The connections of one node to the others in the same process; implements `PeerChannel`."""

    def __init__(self, node: int, all_channels: dict[int, Channel]) -> None:
        self._node: Final = node
        self._all: Final = all_channels
        self.on_receive: Callable[[int, bytes], None] = _ignore_message
        self.on_connected: Callable[[int], None] = _ignore_node
        self.on_connection_lost: Callable[[int], None] = _ignore_node

    def send(self, node: int, data: bytes) -> bool:
        peer = self._all.get(node)
        if peer is not None:
            peer.on_receive(self._node, data)
        return peer is not None

    def pause(self, node: int) -> None:
        raise NotImplementedError

    def resume(self, node: int) -> None:
        raise NotImplementedError


class ReplicatingNode:
    """An engine and the replication of its shards."""

    def __init__(self, node: int, engine: StorageEngine, meta: Metadata, channel: Channel) -> None:
        self.engine: Final = engine
        self.cache: Final = StorageCacheManager()
        self._node: Final = node
        self._metadata: Final = meta
        self._meta: Final = NodeMetadata(meta, node, channel)
        self.replicator: Final = Replicator(
            node,
            self.cache,
            self,
            self._meta,
            channel,
            SystemClock(),
            lambda _shards: None,
            CoreOptions(lag_s=WAIT_S),  # on a busy machine, too, all replicas stay in sync
        )

    def open_shard(self, entry: ShardEntry) -> object:
        return self.engine  # has the shard: it is created before the metadata know it

    def start(self) -> None:
        self.replicator.start()
        self._meta.register(self._apply)

    def _apply(self, update: Update) -> None:
        self.cache.apply(update)
        self.replicator.apply(update)

    def replica(self, name: str) -> ShardReplica | None:
        entry = self.cache.shards.get(name)
        return None if entry is None else entry.replica

    def is_replicating(self, name: str) -> bool:
        return name in self.replicator._logs

    def finish_step(self) -> None:
        """Return when the replication has done what it is about to do."""
        done = threading.Event()
        self.replicator._post(lambda _now: done.set())
        assert done.wait(WAIT_S), "the replication does not go on"

    def close(self) -> None:
        self._metadata.stop(self._node)
        self.replicator.close()


class RotatingEngine:
    """Implements `StorageEngine` and `TransactionalEngine`."""

    def __init__(self, engines: dict[int, StorageEngine], metadata: Metadata) -> None:
        self._engines: Final = engines
        self._metadata: Final = metadata
        channels: dict[int, Channel] = {}
        for node in NODES:
            channels[node] = Channel(node, channels)
        self.nodes: Final = {
            node: ReplicatingNode(node, engine, metadata, channels[node])
            for node, engine in engines.items()
        }
        self._gate: Final = threading.Condition(threading.RLock())
        self._active: Final[dict[str, int]] = {}
        self._since: Final[dict[str, int]] = {}
        self.changes = 0
        self._is_stopped = False
        for one in self.nodes.values():
            one.start()
        for name in metadata.shards:
            self._wait_for_leader(name)

    @property
    def capabilities(self) -> Capabilities:
        return self._engines[1].capabilities

    def stop(self) -> None:
        """End the replication; the engines stay open."""
        if not self._is_stopped:
            self._is_stopped = True
            for one in self.nodes.values():
                one.close()

    def close(self) -> None:
        self.stop()
        for engine in self._engines.values():
            engine.close()

    # Leaders

    def _wait_for_leader(self, name: str) -> ReplicatingNode:
        """Return the node that leads a shard, when it knows what was committed before it did."""
        deadline = time.monotonic() + WAIT_S
        while True:
            shard = self._metadata.shards[name]
            if shard.leader is not None:
                node = self.nodes[shard.leader]
                replica = node.replica(name)
                if (
                    replica is not None
                    and replica.is_ready
                    and replica.assignment.leader_epoch == shard.leader_epoch
                    and all(log.commit >= log.end for log in replica.logs)
                ):
                    node.finish_step()  # which may be the one that lets committed commands act
                    return node
            assert time.monotonic() < deadline, f"{shard} is not served: {self._state(name)}"
            time.sleep(PAUSE_S)

    def _state(self, name: str) -> object:
        return {
            number: None
            if (replica := node.replica(name)) is None
            else (replica.assignment, [(log.commit, log.safe, log.end) for log in replica.logs])
            for number, node in self.nodes.items()
        }

    def _change_leader(self, name: str) -> None:
        deadline = time.monotonic() + WAIT_S
        before = self._metadata.shards[name]
        while True:
            others = [n for n in before.in_sync if n != before.leader]
            if others:
                to = others[before.leader_epoch % len(others)]
                after = self._metadata.move_leader(name, to)
                if after.leader_epoch > before.leader_epoch:
                    break
            assert time.monotonic() < deadline, f"no other replica is in sync: {before}"
            time.sleep(PAUSE_S)
            before = self._metadata.shards[name]
        self.changes += 1
        self._wait_for_leader(name)

    @contextmanager
    def _calling(self, name: str) -> Iterator[ReplicatingNode]:
        """Change the leader before a call, unless other calls are under way; these do not
        overtake a change more than `CALLS_MAX` times."""
        node = self._begin_call(name)
        if node is None:
            yield self.nodes[1]  # which says what is wrong
            return
        try:
            yield node
        finally:
            with self._gate:
                self._active[name] -= 1
                self._gate.notify_all()

    def _begin_call(self, name: str) -> ReplicatingNode | None:
        with self._gate:
            while self._active.get(name) and self._since[name] >= CALLS_MAX:
                self._gate.wait(WAIT_S)
            if self._is_stopped or name not in self._metadata.shards:
                return None
            if not self._active.get(name):
                self._change_leader(name)
                self._since[name] = self._active[name] = 0
            self._active[name] += 1
            self._since[name] += 1
            leader = self._metadata.shards[name].leader
            assert leader is not None
            return self.nodes[leader]

    def _call(self, shard: ShardId, call: Callable[[StorageEngine], T]) -> T:
        if not _is_shard(shard):
            return call(self._engines[1])
        with self._calling(shard.name) as node:
            return call(node.engine)

    def _write(self, shard: ShardId, call: Callable[[StorageEngine], Written]) -> Written:
        """Write as the handler does: return when all replicas in sync have the records."""
        if not _is_shard(shard):
            return call(self._engines[1])
        with self._calling(shard.name) as node:
            replica = None if self._is_stopped else node.replica(shard.name)
            if replica is None:
                return call(node.engine)
            epoch = replica.check(Acks.ALL)
            written = call(node.engine)
            replica.wait(written.first + written.count, epoch, Acks.ALL, WAIT_S)
            return written

    # Shards

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        if _is_shard(shard) and not _is_utf8(shard.topic):
            raise BadRequestError(f"{shard.topic!r} cannot be in a message to another node")
        with self._gate:
            for engine in self._engines.values():
                assert isinstance(engine, ReplicatedEngine)
                engine.create_shard(shard, config)
            self._metadata.create_shard(shard)
            self._wait_for_leader(shard.name)

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        for engine in self._engines.values():
            engine.alter_shard(shard, config)

    def delete_shard(self, shard: ShardId) -> None:
        """Delete as a node does: the engines do not wait for the replication. But a node never
        uses the name of a shard again: the next one waits, as calls that are under way end."""
        if not _is_shard(shard) or self._is_stopped:
            self._engines[1].delete_shard(shard)
            return
        with self._gate:
            self._gate.wait_for(lambda: not self._active.get(shard.name), WAIT_S)
            self._metadata.delete_shard(shard)
            for engine in self._engines.values():
                engine.delete_shard(shard)
            self._wait_until_dropped(shard)

    def _wait_until_dropped(self, shard: ShardId) -> None:
        deadline = time.monotonic() + WAIT_S
        while any(node.is_replicating(shard.name) for node in self.nodes.values()):
            assert time.monotonic() < deadline, f"{shard} is still replicated"
            time.sleep(PAUSE_S)
        for node in self.nodes.values():
            node.finish_step()

    def list_shard(self, topic: str | None = None) -> list[ShardId]:
        found = [engine.list_shard(topic) for engine in self._engines.values()]
        assert found[0] == found[1] == found[2]
        return found[0]

    def seal_shard(self, shard: ShardId) -> None:
        self._call(shard, lambda engine: engine.seal_shard(shard))

    def shard_info(self, shard: ShardId) -> ShardInfo:
        return self._call(shard, lambda engine: engine.shard_info(shard))

    # Records

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        return self._write(shard, lambda engine: engine.write(shard, record, producer=producer))

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        return self._write(
            shard, lambda engine: engine.batch_write(shard, records, producer=producer)
        )

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        return self._call(
            shard,
            lambda engine: engine.read_by_offset(
                shard, offset, max_records=max_records, max_size=max_size, isolation=isolation
            ),
        )

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        return self._call(
            shard,
            lambda engine: engine.read_by_tag(
                shard, tag, start_offset=start_offset, max_records=max_records, max_size=max_size
            ),
        )

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        return self._call(shard, lambda engine: engine.read_by_key(shard, key))

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        return self._call(
            shard,
            lambda engine: engine.query_by_key(
                shard, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
            ),
        )

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        return self._call(
            shard, lambda engine: engine.get_offset_by_timestamp(shard, timestamp_ms, strategy)
        )

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        return self._call(shard, lambda engine: engine.delete_by_key(shard, key))

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        return self._call(shard, lambda engine: engine.delete_by_offset(shard, offset))

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        return self._call(shard, lambda engine: engine.delete_records_before(shard, offset))

    def compact(self, shard: ShardId) -> Compacted:
        return self._call(shard, lambda engine: engine.compact(shard))

    def apply_retention(self, shard: ShardId) -> Offset:
        return self._call(shard, lambda engine: engine.apply_retention(shard))

    def end_transaction(
        self, shard: ShardId, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        def end(engine: StorageEngine) -> int:
            assert isinstance(engine, TransactionalEngine)
            return engine.end_transaction(shard, producer_id, start, is_commit=is_commit)

        return self._call(shard, end)


class RotatingHarness(EngineHarness):
    """Runs an engine of `ENGINES` on three nodes."""

    def __init__(self, make_node: Callable[[Path], EngineHarness], directory: Path) -> None:
        super().__init__()
        self._harnesses: Final = {node: make_node(directory / f"node-{node}") for node in NODES}
        for node, harness in self._harnesses.items():
            (directory / f"node-{node}").mkdir()
            harness.clock = self.clock
        self.base_config = self._harnesses[1].base_config
        self._metadata: Final = Metadata(NODES, min_insync=2)
        self._engine: RotatingEngine | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._harnesses[1].capabilities

    def _start(self, engines: dict[int, StorageEngine]) -> StorageEngine:
        self._engine = RotatingEngine(engines, self._metadata)
        return self._engine

    def make(self) -> StorageEngine:
        return self._start({node: one.make() for node, one in self._harnesses.items()})

    def _stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    def reopen(self) -> StorageEngine:
        self._stop()
        return self._start({node: one.reopen() for node, one in self._harnesses.items()})

    def crash(self) -> StorageEngine:
        self._stop()
        return self._start({node: one.crash() for node, one in self._harnesses.items()})

    def close(self) -> None:
        self._stop()
        for harness in self._harnesses.values():
            harness.close()


def _is_shard(shard: object) -> bool:
    """The suite calls with wrong types, too."""
    return isinstance(shard, ShardId)


def _is_utf8(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(text.encode())
    except UnicodeEncodeError:
        return False


def _ignore_message(_node: int, _data: bytes) -> None:
    """Before the replication starts."""


def _ignore_node(_node: int) -> None:
    """Before the replication starts."""
