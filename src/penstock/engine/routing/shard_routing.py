"""Who serves a shard: the engine of this node that has it, or another node.

    shard name ──▶ StorageCacheManager ──▶ who leads it?
                                             │ this node: what does its segment allow? ──▶ engine
                                             └ another:   Forwarder ──▶ that node's engine

What was found out is kept in the shard's entry until the metadata changes, so that a request costs
one look-up more than the engine's own work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from penstock.engine.contract import ShardConfig, StorageEngine
from penstock.engine.engine_set import EngineSet
from penstock.engine.routing.segment_status import Answer, allowed
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.errors import (
    BadRequestError,
    BusyError,
    NotLeaderError,
    ShardLostError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.meta import LOST
from penstock.record import ShardId

_CHANGING_LOCKS: Final = 64


class Forwarder(Protocol):
    """The way to other nodes."""

    def engine_of(self, node_id: int, storage_type: str) -> StorageEngine:
        """Return another node's engine: its calls are made there, in one hop, with the same
        answers and the same errors."""
        ...

    def open_shards(
        self, node_id: int, topic_id: str, partitions: Sequence[int], revision: int
    ) -> None:
        """Have another node create shards that it leads since `revision` of the metadata."""
        ...

    def alter_shard(self, node_id: int, shard: ShardId, config: ShardConfig, revision: int) -> None:
        """Have another node keep a shard that it leads in another way: as the metadata say at
        `revision` or later, or as `config` says where it runs an earlier release."""
        ...

    def run_transaction_step(self, node_id: int, step: str) -> str:
        """Have another node do its part of a transaction; the words are those of the front end
        that serves transactions on both sides."""
        ...


class ShardRouting:
    """Finds the engine for a request, and creates and deletes shards in this node's engines."""

    def __init__(
        self,
        cache: StorageCacheManager,
        engines: EngineSet,
        *,
        node_id: int,
        forwarder: Forwarder | None,
    ) -> None:
        self.cache: Final = cache
        self.engines: Final = engines
        self.node_id: Final = node_id
        self.transaction_steps: Callable[[str], str] | None = None
        """Does this node's part of a transaction for another; see `run_transaction_step`."""
        self.resume_transactions: Callable[[Collection[str]], None] | None = None
        """Lets producers continue their transactions in shards that this node leads newly."""
        self._forwarder: Final = forwarder
        self._shards: Final = cache.shards
        self._creating: Final = threading.Lock()
        """Held while an engine creates a shard; before one of the next ones."""
        self._changing: Final = tuple(threading.Lock() for _ in range(_CHANGING_LOCKS))
        """One is held while an engine creates or deletes a shard, always the same for a shard: one
        that the metadata has dropped is never created again after its deletion."""

    def find(self, shard_name: str) -> ShardEntry:
        """Return what is known of a shard, or raise `UnknownShardError`."""
        try:
            return self._shards[shard_name]
        except KeyError:
            raise UnknownShardError(shard_name) from None
        except TypeError:
            raise BadRequestError(f"a shard name is text, not {shard_name!r}") from None

    # Shards of this node and of others

    def create_shard(self, shard: ShardId, storage_type: str, config: ShardConfig) -> None:
        """Create a shard in this node's engine; do nothing if it has it."""
        engine = self.engines.get(storage_type)
        with self._creating, self._changing_lock(shard):
            engine.create_shard(shard, config)
            entry = self._shards.get(shard.name)
            if entry is not None:
                entry.is_open = True

    def _changing_lock(self, shard: ShardId) -> threading.Lock:
        return self._changing[hash(shard) % _CHANGING_LOCKS]

    def alter_shard(self, shard: ShardId, storage_type: str, config: ShardConfig) -> None:
        self.engines.get(storage_type).alter_shard(shard, config)

    def alter_entry(self, entry: ShardEntry) -> None:
        """Give this node's engine what the metadata say of a shard now."""
        with self._changing_lock(entry.id):
            self.engines.get(entry.topic.storage_type).alter_shard(entry.id, entry.topic.config)

    def open_elsewhere(self, entries: Iterable[ShardEntry]) -> None:
        """Have the nodes that lead shards create them, where there is a way to those nodes."""
        if self._forwarder is None:
            return
        with self.cache.lock:
            revision = self.cache.revision
            led = [(entry.id, entry.meta.leader) for entry in entries if entry.meta is not None]
        by_node: dict[tuple[int, str], list[int]] = {}
        for shard, leader in led:
            if leader is not None and leader != self.node_id:
                by_node.setdefault((leader, shard.topic), []).append(shard.partition)
        for (node, topic_id), partitions in by_node.items():
            self._forwarder.open_shards(node, topic_id, partitions, revision)

    def alter_elsewhere(self, entry: ShardEntry) -> None:
        """Have the node that leads a shard use what the metadata say, where there is a way to it.
        Its other replicas follow the metadata by themselves: see `ShardAlterations`."""
        leader = None if entry.meta is None else entry.meta.leader
        if leader is not None and leader != self.node_id and self._forwarder is not None:
            config, revision = entry.topic.config, self.cache.revision
            self._forwarder.alter_shard(leader, entry.id, config, revision)

    def run_transaction_step(self, node_id: int, step: str) -> str:
        """Have a node do its part of a transaction, this one or another."""
        if node_id != self.node_id and self._forwarder is not None:
            return self._forwarder.run_transaction_step(node_id, step)
        if self.transaction_steps is None:
            raise BusyError(f"node {self.node_id} serves no transactions, or not yet")
        return self.transaction_steps(step)

    def delete_shard(self, shard: ShardId, storage_type: str) -> None:
        """Delete a shard from this node's engine; do nothing if it does not have it."""
        engine = self.engines.get(storage_type)
        with self._changing_lock(shard):
            entry = self._shards.get(shard.name)
            if entry is not None:
                with self.cache.lock:
                    entry.is_open = False
                    entry.clear_derived()
            engine.delete_shard(shard)

    def delete_removed(self, entry: ShardEntry) -> bool:
        """Delete this node's copy of a shard that the metadata keep on other nodes, which have all
        of its records; return whether there was one."""
        with self._changing_lock(entry.id):
            with self.cache.lock:
                meta = entry.meta
                is_kept = (
                    meta is None
                    or self.node_id in meta.replicas
                    or meta.leader is None
                    or not meta.in_sync
                    or entry.replica is not None
                )
                if is_kept or not entry.is_open:
                    return False
                entry.is_open = False
                entry.clear_derived()
            self.engines.get(entry.topic.storage_type).delete_shard(entry.id)
            return True

    def list_shard(self, storage_type: str, topic_id: str | None = None) -> list[ShardId]:
        """Return the shards that this node's engine has."""
        return self.engines.get(storage_type).list_shard(topic_id)

    # Who serves a shard

    def check_led(self, entry: ShardEntry) -> None:
        """Raise `NotLeaderError` when another node leads: for protocols whose clients learn who
        does and go there."""
        if entry.replica is not None:
            entry.replica.check_lease()
        if entry.reader is not None:
            return
        leader = None if entry.meta is None else entry.meta.leader
        if entry.meta is not None and leader != self.node_id:
            _check_not_lost(entry)
            raise NotLeaderError(entry.name, leader=None if leader is None else str(leader))
        _check_replica(entry)

    def following_engine(self, entry: ShardEntry) -> StorageEngine:
        """Return this node's engine when its copy of a shard that another node leads may serve
        readers, up to its own commit offset; raise `NotLeaderError` when it may not."""
        replica = entry.replica
        if replica is None or not replica.may_serve_readers:
            leader = None if entry.meta is None else entry.meta.leader
            raise NotLeaderError(entry.name, leader=None if leader is None else str(leader))
        return self.engines.get(entry.topic.storage_type)

    def _reader(self, entry: ShardEntry) -> StorageEngine:
        if entry.replica is not None:
            entry.replica.check_lease()
        return entry.reader or self._find_reader(entry)

    def _settled_reader(self, entry: ShardEntry) -> StorageEngine:
        """As `_reader`, for calls that find records by something else than their offset: a reader
        by offset comes to those that are not known to be committed yet, these would miss them."""
        engine = self._reader(entry)
        if entry.replica is not None:
            entry.replica.check_settled()
        return engine

    def _find_writer(self, entry: ShardEntry, *, is_local: bool = False) -> StorageEngine:
        if is_local:
            self.check_led(entry)
        with self.cache.lock:
            meta, active = entry.meta, entry.active
        if meta is None or active is None:
            raise UnknownShardError(entry.name)
        answer = allowed(active.status).write
        if answer is Answer.LATER:
            raise BusyError(f"segment {active.number} of {entry.name!r} is {active.status}")
        if answer is Answer.NO:
            raise ShardSealedError(entry.name)
        if meta.leader != self.node_id:
            if is_local:  # since the check above
                leader = None if meta.leader is None else str(meta.leader)
                raise NotLeaderError(entry.name, leader=leader)
            return self._other_node(entry, meta.leader)
        _check_replica(entry)
        engine = self.open_shard(entry)
        with self.cache.lock:
            if entry.meta is meta and entry.active is active and entry.is_open:
                entry.writer = engine
        return engine

    def _find_reader(self, entry: ShardEntry) -> StorageEngine:
        with self.cache.lock:
            meta = entry.meta
        if meta is None:
            raise UnknownShardError(entry.name)
        if meta.leader != self.node_id:
            return self._other_node(entry, meta.leader)
        _check_replica(entry)
        engine = self.open_shard(entry)
        with self.cache.lock:
            if entry.meta is meta and entry.is_open:
                entry.reader = engine
        return engine

    def open_shard(self, entry: ShardEntry) -> StorageEngine:
        """Return this node's engine, with the shard created in it if that is still to be done."""
        engine = self.engines.get(entry.topic.storage_type)
        if not entry.is_open:
            # It exists in the metadata: an engine that could not create it when it was
            # asked to (a full disk) does so with the first request that it can serve.
            with self._creating, self._changing_lock(entry.id):
                if entry.meta is None:
                    raise UnknownShardError(entry.name)
                engine.create_shard(entry.id, entry.topic.config)
                entry.is_open = True
        return engine

    def _other_node(self, entry: ShardEntry, leader: int | None) -> StorageEngine:
        if self._forwarder is None or leader is None:
            _check_not_lost(entry)
            name = None if leader is None else str(leader)
            raise NotLeaderError(entry.name, leader=name)
        return self._forwarder.engine_of(leader, entry.topic.storage_type)


def _check_replica(entry: ShardEntry) -> None:
    """A node serves a replicated shard, also one that has just become the only copy, when it leads
    it and has loaded what it must know."""
    replica = entry.replica
    if (entry.is_replicated or replica is not None) and (replica is None or not replica.is_ready):
        raise NotLeaderError(entry.name, leader=None)


def _check_not_lost(entry: ShardEntry) -> None:
    """A shard that waits for its leader may be asked again later; one that is lost may not."""
    if entry.meta is not None and entry.meta.status == LOST:
        topic = entry.topic.topic.name
        raise ShardLostError(entry.name, topic=topic, nodes=entry.meta.replicas)
