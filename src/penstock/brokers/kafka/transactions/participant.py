"""The participants of a transaction: the leaders of its partitions, and of its groups' offsets.

Any node of a cluster may coordinate a transaction; the nodes that lead its partitions accept its
producer's writes, hide its records from readers of committed records, and write the markers. They
keep their state in memory and read it from the meta service again after a restart. Whether a
transaction ended meanwhile, in an earlier process, shows its state there.

Steps run in threads and may block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, assert_never

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.transactions import participant_rpc
from penstock.brokers.kafka.transactions.index import TransactionIndex, Writer
from penstock.brokers.kafka.transactions.markers import build_marker
from penstock.engine.contract import BatchEngine
from penstock.errors import (
    BusyError,
    NotLeaderError,
    RetryableError,
    TransactionRefusedError,
    UnknownShardError,
)
from penstock.meta import AbortedRange, TransactionClient, TransactionState
from penstock.offsets import OffsetCommit
from penstock.platform.log import get_logger
from penstock.record import Offset, ShardId

_WRITES_WAIT_S: Final = 20.0
ABORTED_MAX: Final = 1_000
"""Aborted transactions in one answer about a shard, unless more have records at one offset."""
_log: Final = get_logger(__name__)


class TransactionParticipant:
    def __init__(
        self, broker: KafkaBroker, meta: TransactionClient, index: TransactionIndex
    ) -> None:
        self._broker: Final = broker
        self._meta: Final = meta
        self._index: Final = index
        self.is_group_here: Callable[[str], bool] | None = None
        """In a cluster: whether this node coordinates a group."""

    def recover(self, states: Iterable[TransactionState]) -> None:
        """Hide what open transactions may have written to the partitions that this node leads, and
        load the aborted ones, before the first read."""
        limits = self._broker.drivers.limits
        limits.load_aborted(
            aborted for aborted in self._meta.list_aborted() if self._leads(aborted.shard)
        )
        for state in states:
            bounds = {
                partition.shard: min(
                    partition.first_offset, self._end_of(partition.shard, partition.first_offset)
                )
                for partition in state.partitions
                if self._leads(partition.shard)
            }
            if is_open(state) and bounds:
                writer = Writer(state.transactional_id, state.epoch, bounds, state.started_ms)
                self._index.open(state.producer_id, writer, may_have_written=True)
                if state.status != "ongoing":
                    self._index.shut(state.producer_id, state.started_ms)
        self._release_ended()

    def resume(self, shards: Collection[str]) -> None:
        """Let producers continue transactions in shards that this node leads newly. What those
        wrote is hidden already; one that cannot be continued is aborted by its producer."""
        cache = self._broker.drivers.storage_cache
        for state in self._release_ended():
            bounds = {
                partition.shard: cache.first_possible(partition.shard, partition.first_offset)
                for partition in state.partitions
                if partition.shard in shards
            }
            if not bounds or not is_open(state):
                continue
            writer = Writer(state.transactional_id, state.epoch, bounds, state.started_ms)
            try:
                self._clear_left_over(state.producer_id, state.started_ms)
                self._index.open(state.producer_id, writer, may_have_written=True)
            except (BusyError, TransactionRefusedError) as error:
                _log.info("transaction_not_continued", reason=str(error))
                continue
            if state.status != "ongoing":
                self._index.shut(state.producer_id, state.started_ms)

    def _release_ended(self) -> list[TransactionState]:
        """Release what transactions hold up that were open when the node loaded them, and have
        ended since: another node wrote their markers. Return the transactions that are known now.

        The next transaction of the same producer would else begin where that one began, and its
        abort would delete committed records."""
        limits = self._broker.drivers.limits
        held = limits.transactions()  # first: each of these was open before the next line
        states = self._meta.list_transactions()
        still_open = {(state.producer_id, state.started_ms) for state in states if is_open(state)}
        ended = held - still_open
        if ended:
            # Last: the range of an aborted transaction is there before its end is.
            aborted = self._meta.list_aborted()
            limits.load_aborted(entry for entry in aborted if self._leads(entry.shard))
        for producer_id, started_ms in ended:
            for shard in limits.release(producer_id, until_ms=started_ms):
                self._broker.drivers.release_readers(shard)
        return states

    def _end_of(self, shard: str, default: int) -> int:
        """Return the end of a shard. Offsets that a power cut removed, or a restart from a memory
        topic, are assigned again, also to records of this transaction."""
        try:
            return self._broker.shard_info(shard).end
        except (RetryableError, UnknownShardError):
            return default  # not known here yet: nothing can be written to it either

    def bound_of(self, shard: str) -> int:
        """Return an offset at or before the first record that a transaction writes to a shard, and
        after the records of the transactions before it. Its commit offset is both, whichever node
        leads it later; the end of its log may not be there any more when another node leads."""
        info = self._broker.shard_info(shard)
        if info.is_lagging:
            raise BusyError(f"the commit offset of {shard!r} is not known yet; try again")
        return info.latest

    def _leads(self, shard: str) -> bool:
        """Say whether this node leads a shard, or is about to after its start."""
        entry = self._broker.drivers.storage_cache.shards.get(shard)
        meta = None if entry is None else entry.meta
        node_id = self._broker.node_id
        is_waiting = meta is not None and meta.leader is None and node_id in meta.replicas
        return meta is None or meta.leader == node_id or is_waiting

    # Steps

    def answer(self, step: participant_rpc.Step | participant_rpc.ReadStable) -> str:
        """Run a step for another node; the response is JSON."""
        if isinstance(step, participant_rpc.ReadStable):
            return participant_rpc.encode(self._read_stable(step))
        return participant_rpc.encode(self.run_step(step))

    def _read_stable(self, step: participant_rpc.ReadStable) -> participant_rpc.StableShards:
        """Answer for the shards that this node leads."""
        stable: participant_rpc.StableShards = {}
        for shard, first in step.firsts.items():
            try:
                handle = self._broker.drivers.open_shard(shard)
                end = handle.driver.bounds(handle.entry)[1]
            except (NotLeaderError, UnknownShardError):
                continue
            until, aborted = self._broker.drivers.limits.decided(shard, first, end, ABORTED_MAX)
            stable[shard] = participant_rpc.StableShard(until, aborted)
        return stable

    def run_step(self, step: participant_rpc.Step) -> participant_rpc.StepResult:
        match step:
            case participant_rpc.OpenWriter():
                self._open(step)
                return []
            case participant_rpc.EndWriter():
                return self._end(step)
            case participant_rpc.CommitStaged():
                self._commit_staged(step)
                return []
            case _:
                assert_never(step)

    def _open(self, step: participant_rpc.OpenWriter) -> None:
        for shard in step.bounds:
            self._broker.drivers.open_shard(shard).check_led()
        self._clear_left_over(step.producer_id, step.started_ms)
        writer = Writer(step.transactional_id, step.epoch, dict(step.bounds), step.started_ms)
        self._index.open(step.producer_id, writer)

    def _end(self, step: participant_rpc.EndWriter) -> list[AbortedRange]:
        index, producer_id = self._index, step.producer_id
        self._clear_left_over(producer_id, step.started_ms)
        is_known = index.begin_end(producer_id, step.epoch, step.started_ms)
        try:
            # A write that was accepted before may still wait for the device in its thread.
            if not index.wait_until_written(producer_id, _WRITES_WAIT_S):
                raise BusyError(f"producer {producer_id} still writes")
            held = self._broker.drivers.limits.firsts(producer_id)
            # Without the shards that this node led when the transaction wrote to them, and another
            # node leads now: the coordinator has it end the transaction there.
            firsts = {shard: first for shard, first in held.items() if shard in step.bounds}
            if not is_known:
                # Done before, and the response was lost: repeating it changes nothing.
                firsts = {**step.bounds, **firsts}
            aborted = self._write_ends(step, firsts)
            released = index.release(producer_id, step.started_ms, aborted)
        finally:
            index.end_is_over(producer_id)
        for shard in released:
            # Waiting readers were woken by the markers before the transaction was released.
            self._broker.drivers.release_readers(shard)
        return aborted

    def _write_ends(
        self, step: participant_rpc.EndWriter, firsts: dict[str, int]
    ) -> list[AbortedRange]:
        """End a transaction in shards; return the aborted ranges that readers skip."""
        batches: dict[str, int] = {}
        for shard, first in firsts.items():
            try:
                handle = self._broker.drivers.open_shard(shard)
                if handle.entry.topic.holds_batches:
                    batches[shard] = first
                else:
                    handle.driver.end_transaction(
                        handle.entry, step.producer_id, Offset(first), is_commit=step.is_commit
                    )
            except UnknownShardError:
                continue  # deleted meanwhile, with all that was written to it
        ranges = self._write_markers(step, batches)
        return [] if step.is_commit else ranges

    def _write_markers(
        self, step: participant_rpc.EndWriter, firsts: dict[str, int]
    ) -> list[AbortedRange]:
        now_ms = self._broker.clock.now_ms()
        marker = build_marker(
            step.producer_id, step.epoch, is_commit=step.is_commit, timestamp_ms=now_ms
        )
        ranges: list[AbortedRange] = []
        engines: set[BatchEngine] = set()
        for shard, first in firsts.items():
            try:
                handle = self._broker.drivers.open_shard(shard)
                written = handle.driver.write_batch(handle.entry, marker, 1, timestamp_ms=now_ms)
            except UnknownShardError:
                continue
            ranges.append(AbortedRange(shard, first, step.producer_id, written.first))
            reader = handle.driver.batch_reader(handle.entry)
            if reader is not None and not step.is_commit:
                engines.add(reader)
        # A client skips the records of an aborted producer up to the marker: the marker must be
        # durable before the aborted range is. A commit needs no sync.
        for engine in engines:
            engine.sync()
        return ranges

    def _commit_staged(self, step: participant_rpc.CommitStaged) -> None:
        broker, group = self._broker, step.staged.group
        if self.is_group_here is not None:
            if not self.is_group_here(group):
                raise BusyError(f"group {group!r} is another node's")
            # A late request must not undo the commit of a later transaction.
            state = self._meta.find_transaction(step.namespace, step.transactional_id)
            if (
                state is None
                or state.started_ms != step.started_ms
                or state.status != "prepare-commit"
            ):
                raise TransactionRefusedError("bad_state", "the transaction is over")
        commits = {
            ShardId.parse(entry.shard): OffsetCommit(
                Offset(entry.offset), entry.metadata, entry.leader_epoch
            )
            for entry in step.staged.offsets
        }
        # Without the cache: as durable as the decision that they belong to.
        broker.offsets.commit_offsets(
            group, commits, namespace=broker.namespace, enable_cache=False
        )
        for topic_id in {shard.topic for shard in commits}:
            if topic_id not in broker.drivers.storage_cache.topics:
                broker.offsets.remove_topic(topic_id)

    # What was ended without this process

    def has_left_over(self, step: participant_rpc.OpenWriter) -> bool:
        """Say whether a step must read the meta service, which may block."""
        return self._index.left_over(step.producer_id, step.started_ms) is not None

    def _clear_left_over(self, producer_id: int, started_ms: int) -> None:
        writer = self._index.left_over(producer_id, started_ms)
        if writer is not None:
            self._release_if_over(producer_id, writer)

    async def release_left_over(self) -> None:
        """Release the partitions of transactions that have ended elsewhere."""
        for producer_id, writer in self._index.writers():
            await self._broker.run_blocking(partial(self._release_if_over, producer_id, writer))

    def _release_if_over(self, producer_id: int, writer: Writer) -> None:
        namespace = self._broker.namespace
        state = self._meta.find_transaction(namespace, writer.transactional_id)
        is_current = (
            state is not None
            and state.producer_id == producer_id
            and state.started_ms == writer.started_ms
        )
        if state is not None and is_current and is_open(state):
            return
        aborted = [
            record
            for record in self._meta.list_aborted()
            if record.producer_id == producer_id and record.shard in writer.bounds
        ]
        released = self._index.release_left_over(producer_id, writer.started_ms, aborted)
        if released:
            _log.info("transaction_ended_elsewhere", producer=producer_id, shards=len(released))
        for shard in released:
            self._broker.drivers.release_readers(shard)


def is_open(state: TransactionState) -> bool:
    """Say whether the records of a transaction are still hidden."""
    return state.status != "empty" and not state.status.startswith("complete")
