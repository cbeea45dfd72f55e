"""`Replicator`: runs `ReplicaCore` on a thread of its own, and carries out what it asks for.

    metadata, messages, appends ──▶ inbox ──▶ ReplicaCore ──▶ effects
                                                 │ Send            ──▶ PeerChannel
                                                 │ ProposeInSync   ──▶ Proposals, metadata
                                                 │ Committed       ──▶ waiting writers, readers
                                                 └ SyncLog         ──▶ Syncs, device

Only this thread calls the core. The inbox holds at most one fetch and one reply of each node, one
entry for each shard that was appended to, and the updates of the metadata.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from penstock.engine.contract import ReplicatedEngine
from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.core import ReplicaCore
from penstock.engine.replication.counts import ReplicationCounts
from penstock.engine.replication.effects import (
    Assigned,
    Committed,
    Damaged,
    Effect,
    Failed,
    LeaveInSync,
    ProposeInSync,
    Removed,
    Send,
    SyncLog,
)
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.replication.message_codec import decode_message, encode_message
from penstock.engine.replication.messages import Message
from penstock.engine.replication.options import CoreOptions
from penstock.engine.replication.runtime.assignments import AssignmentView, MetadataChange
from penstock.engine.replication.runtime.failure_reports import FailureReports
from penstock.engine.replication.runtime.last_appends import count_uncommitted, stop_appends
from penstock.engine.replication.runtime.peer_channel import PeerChannel
from penstock.engine.replication.runtime.proposals import Proposals, ReplicaMetadata
from penstock.engine.replication.runtime.shard_replica import ShardReplica
from penstock.engine.replication.runtime.syncs import Syncs
from penstock.engine.replication.runtime.takeovers import Takeovers
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.errors import BadRequestError, ClosedError, StoreError, UnknownShardError
from penstock.meta import Update
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import ShardId

TICK_S: Final = 0.1
LOOK_S: Final = 0.005
"""How often a node that is about to stop looks whether others have what they need."""
STEPS_MAX: Final = 256
"""Entries of the inbox that are handled before their effects are carried out."""

_log: Final = get_logger(__name__)

Step = Callable[[float], None]
"""Something for the core to do, with the time."""


class ShardOpener(Protocol):
    """Creates the copies of shards in the engines of this node."""

    def open_shard(self, entry: ShardEntry) -> object: ...


class Replicator:
    """`start`, then `apply` with every update of the metadata; `close` at the end."""

    def __init__(
        self,
        node_id: int,
        cache: StorageCacheManager,
        shards: ShardOpener,
        meta: ReplicaMetadata,
        channel: PeerChannel,
        clock: Clock,
        prepare: Callable[[Collection[str]], None],
        options: CoreOptions | None = None,
    ) -> None:
        """`prepare` loads what this node must know of shards before it serves them as leader."""
        self._node_id: Final = node_id
        self._cache: Final = cache
        self._shards: Final = shards
        self._meta: Final = meta
        self._channel: Final = channel
        self._clock: Final = clock
        self._core: Final = ReplicaCore(node_id, self._open_logs, options)
        self._view: Final = AssignmentView(node_id)
        self._broker_epoch = -1
        self._is_current = False
        """Whether the metadata show this run of the node, not fenced."""
        self._replicas: Final[dict[str, ShardReplica]] = {}
        self._logs: Final[dict[str, Sequence[ReplicaLog]]] = {}
        self._inbox: Final[SimpleQueue[Step]] = SimpleQueue()
        self._touched: Final[set[str]] = set()
        """Shards for which an entry is in the inbox."""
        self._proposals: Final = Proposals(meta, self._refused, self._is_last)
        self._syncs: Final = Syncs(self._synced)
        self._takeovers: Final = Takeovers(prepare, self._prepared)
        self._stopping = False
        self._failures: Final = FailureReports()
        self.failure: StoreError | None = None
        """Why replication has stopped for good."""
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-replication", daemon=True
        )

    def start(self) -> None:
        self._proposals.start()
        self._syncs.start()
        self._takeovers.start()
        self._thread.start()
        self._meta.on_registered(self._registered)
        self._channel.on_receive = self._receive
        self._channel.on_connected = self._connected
        self._channel.on_connection_lost = self._disconnected

    def close(self) -> None:
        """Stop copying; end the waits of writers."""
        self._channel.on_receive = _ignore_message
        self._channel.on_connected = _ignore_node
        self._channel.on_connection_lost = _ignore_node
        self._post(self._stop)
        self._thread.join()
        self._proposals.close()
        self._syncs.close()
        self._takeovers.close()
        for replica in list(self._replicas.values()):
            replica.close()

    def _stop(self, _now: float) -> None:
        self._stopping = True

    # From any thread

    def apply(self, update: Update) -> None:
        """Follow the metadata."""
        self._post(lambda now: self._apply(now, update))

    def touch(self, shard: str) -> None:
        if shard not in self._touched:
            self._touched.add(shard)
            self._post(lambda now: self._appended(now, shard))

    def stop_appends(self, seconds: float) -> int:
        """Accept no further records on shards that another replica in sync can lead, and wait
        until all that were accepted are committed. Returns in how many shards some are not."""
        leaders = self._core.leaders.values
        self._post(lambda _now: stop_appends(leaders()))
        return self._await_none(lambda: count_uncommitted(leaders()), seconds)

    def await_handover(self, staying: Collection[str], seconds: float) -> int:
        """Wait until this node leads no replicated shards but `staying`; return how many it
        does."""
        return self._await_none(
            lambda: sum(shard not in staying for shard in self._core.leaders), seconds
        )

    def _await_none(self, count: Callable[[], int], seconds: float) -> int:
        """Wait until `count`, which the thread of the core calls, returns 0."""
        until = self._clock.monotonic() + seconds
        while True:
            counted: SimpleQueue[int] = SimpleQueue()
            self._post(partial(_put_count, counted, count))
            try:
                left = counted.get(timeout=max(LOOK_S, until - self._clock.monotonic()))
            except Empty:
                return count()
            if not left or self._clock.monotonic() >= until:
                return left
            self._clock.wait(threading.Event(), LOOK_S)

    def _operated(self, shard: ShardId) -> None:
        self.touch(shard.name)

    @property
    def counts(self) -> ReplicationCounts:
        return self._core.counts

    def follower_lags(self) -> dict[str, dict[int, int]]:
        """Return how many records each follower lacks, by shard and node, where this node leads."""
        return {shard: leader.lags() for shard, leader in list(self._core.leaders.items())}

    def lease_holds(self) -> bool:
        return self.failure is None and self._meta.lease_holds()

    def _registered(self, epoch: int) -> None:
        self._post(lambda now: self._register(now, epoch))

    def _receive(self, node: int, data: bytes) -> None:
        try:
            message = decode_message(data)
        except BadRequestError as error:
            _log.warning("replication_message_refused", node=node, reason=str(error))
            return
        self._post(lambda now: self._core.receive(now, node, message))

    def _connected(self, node: int) -> None:
        # What was sent before there was a connection is lost.
        self._post(lambda now: self._core.connected(now, node))

    def _disconnected(self, node: int) -> None:
        self._post(lambda now: self._core.disconnected(now, node))

    def _refused(self, proposal: ProposeInSync, partition_epoch: int) -> None:
        self._post(lambda _now: self._core.refused(proposal, partition_epoch))

    def _is_last(self, shard: str) -> None:
        self._post(lambda now: self._core.is_last(now, shard))

    def _synced(self, shards: Sequence[str]) -> None:
        for shard in shards:
            self.touch(shard)

    def _prepared(self, shards: Mapping[str, int]) -> None:
        self._post(lambda _now: self._serve(shards))

    def _post(self, step: Step) -> None:
        if self.failure is None:  # else nothing would be done with it
            self._inbox.put(step)

    # The thread of the core

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - a mistake of this program: others must lead
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Stop for good. The other nodes lead what they can; this one refuses clients."""
        _log.error("replication_stopped", cause=error)
        self.failure = ClosedError(f"replication has stopped: {error!r}; restart this node")
        for replica in list(self._replicas.values()):
            replica.close()
        try:
            self._meta.report_unproven()
        except StoreError as refused:
            _log.error("replication_stop_not_reported", reason=str(refused))

    def _work(self) -> None:
        next_tick = self._clock.monotonic() + TICK_S
        while not self._stopping:
            wait_s = max(0.0, next_tick - self._clock.monotonic())
            self._handle_inbox(wait_s)
            now = self._clock.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._guarded(self._core.tick, now)
            self._carry_out()

    def _handle_inbox(self, wait_s: float) -> None:
        try:
            step = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            for _ in range(STEPS_MAX):
                self._guarded(step, self._clock.monotonic())
                step = self._inbox.get_nowait()
        except Empty:
            return
        self._guarded(step, self._clock.monotonic())

    def _guarded(self, step: Step, now: float) -> None:
        """Run a step. An engine that fails (a full disk, a lost device) fails its own shard."""
        try:
            step(now)
        except UnknownShardError as error:
            # Deleted here; the metadata that say so are in the inbox, or on their way.
            _log.debug("replicated_shard_deleted", reason=str(error))
        except StoreError as error:
            _log.error("replication_step_failed", reason=str(error))

    def _appended(self, now: float, shard: str) -> None:
        self._touched.discard(shard)  # before the core looks: what comes later is a new entry
        self._core.appended(now, shard)

    def _apply(self, now: float, update: Update) -> None:
        change = self._view.apply(update)
        for shard in change.removed:
            self._core.remove(shard)
            # Not with the effect: until that is carried out, the shard may be assigned again.
            self._logs.pop(shard, None)
            self._syncs.remove_shard(shard)
        self._assign(now, change)

    def _register(self, now: float, epoch: int) -> None:
        """Act under a new broker epoch."""
        self._broker_epoch = epoch
        self._core.registered(epoch)
        self._is_current = False
        self._assign(now, self._view.all())

    def _assign(self, now: float, change: MetadataChange) -> None:
        """Give the core what changed; everything, when the metadata show this run of the node for
        the first time: the core ignores what they said before."""
        is_current = change.broker_epochs.get(self._node_id) == self._broker_epoch
        if is_current and not self._is_current:
            change = self._view.all()
        self._is_current = is_current
        self._core.apply(now, change.assignments, change.broker_epochs)

    def _open_logs(self, shard: str) -> Sequence[ReplicaLog]:
        known = self._logs.get(shard)
        if known is not None:
            return known
        entry = self._cache.shards.get(shard)
        if entry is None:
            raise BadRequestError(f"shard {shard!r} is not known here")
        engine = self._shards.open_shard(entry)
        if not isinstance(engine, ReplicatedEngine):
            raise BadRequestError(f"the engine of {shard!r} keeps no replicas")
        engine.on_operation = self._operated
        logs = self._logs[shard] = engine.replica_logs(entry.id)
        self._syncs.add_shard(shard, engine)
        return logs

    # Effects

    def _carry_out(self) -> None:
        for effect in self._core.drain_effects():
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                self._send(to, message)
            case ProposeInSync() | LeaveInSync():
                self._proposals.add(effect)
            case Committed(shard):
                self._committed(shard)
            case SyncLog(shard):
                self._syncs.request(shard)
            case Assigned(assignment):
                self._assigned(assignment)
            case Removed(shard):
                self._failures.remove(shard)
                self._removed(shard)
            case Failed(shard, reason):
                repeated = self._failures.count(self._clock.monotonic(), shard, reason)
                if repeated is not None:
                    _log.error(
                        "replication_step_failed", shard=shard, reason=reason, repeated=repeated
                    )
            case Damaged(shard, reason):
                _log.error("replica_damaged", shard=shard, reason=reason)

    def _send(self, to: int, message: Message) -> None:
        # What is not sent is asked for again: the core has a time limit for every reply.
        self._channel.send(to, encode_message(message))

    def _committed(self, shard: str) -> None:
        replica = self._replicas.get(shard)
        if replica is not None:
            replica.committed()
        entry = self._cache.shards.get(shard)
        if entry is not None:
            for notify in entry.appended:
                notify()

    def _assigned(self, assignment: Assignment) -> None:
        shard = assignment.shard
        replica = self._replicas.get(shard)
        if replica is None:
            replica = ShardReplica(shard, self._node_id, self._logs[shard], self, assignment)
            self._replicas[shard] = replica
        else:
            replica.assign(assignment)
        if replica.is_leader and not replica.is_ready:
            self._takeovers.add(shard, assignment.leader_epoch)
        else:
            self._takeovers.remove(shard)
        self._cache.set_replica(shard, replica)
        if assignment.is_single and replica.is_ready:
            self._end_replication(shard)
        _log.debug(
            "replica_assigned",
            shard=shard,
            leader=assignment.leader or 0,
            leader_epoch=assignment.leader_epoch,
            in_sync=", ".join(map(str, assignment.in_sync)),
        )

    def _serve(self, shards: Mapping[str, int]) -> None:
        """Let clients write to and read from shards that this node leads."""
        for shard, epoch in shards.items():
            replica = self._replicas.get(shard)
            if replica is not None:
                replica.set_ready(epoch)
                self._cache.set_replica(shard, replica)
                if replica.assignment.is_single and replica.is_ready:
                    self._end_replication(shard)

    def _end_replication(self, shard: str) -> None:
        """Keep a shard as one with a single copy: this node leads the only one that is left."""
        entry, replica = self._cache.shards.get(shard), self._replicas.pop(shard, None)
        engine = None if entry is None else self._shards.open_shard(entry)
        if entry is None or not isinstance(engine, ReplicatedEngine) or replica is None:
            return
        self._view.drop(shard)
        self._core.drop_single(shard)
        engine.end_replication(entry.id)
        replica.become_single()
        self._logs.pop(shard, None)
        self._syncs.remove_shard(shard)
        self._cache.set_replica(shard, None)
        _log.info("replication_ended", shard=shard)

    def _removed(self, shard: str) -> None:
        self._takeovers.remove(shard)
        replica = self._replicas.pop(shard, None)
        self._cache.set_replica(shard, None)
        if replica is not None:
            replica.close()


def _put_count(counted: SimpleQueue[int], count: Callable[[], int], _now: float) -> None:
    counted.put(count())


def _ignore_message(_node: int, _data: bytes) -> None:
    """After the end: drop what comes."""


def _ignore_node(_node: int) -> None:
    """After the end: drop what comes."""
