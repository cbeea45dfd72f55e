"""Completes a transaction whose outcome is decided: markers, then offsets, then the end of it."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.transacting.index import TransactionIndex
from penstock.brokers.kafka.transacting.markers import build_marker
from penstock.engine.contract import BatchEngine
from penstock.errors import BusyError, UnknownShardError
from penstock.meta.solo_transactions import TransactionClient
from penstock.meta.state.transaction_commands import AbortedRange, Finish, TransactionState
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId

_WRITES_WAIT_S: Final = 30.0


class TransactionEnder:
    def __init__(
        self, broker: KafkaBroker, meta: TransactionClient, index: TransactionIndex
    ) -> None:
        self._broker: Final = broker
        self._meta: Final = meta
        self._index: Final = index

    async def end(self, state: TransactionState) -> TransactionState:
        """Return the state behind it. May be called again when it failed, or after a crash."""
        is_commit = state.status == "prepare-commit"
        self._index.shut(state.producer_id)
        # A write that was let in before may wait for the device in a thread of its own.
        wait = partial(self._index.wait_until_written, state.producer_id, _WRITES_WAIT_S)
        if self._index.is_writing(state.producer_id) and not await self._broker.run_blocking(wait):
            raise BusyError(f"producer {state.producer_id} still writes")
        firsts = self._index.shut(state.producer_id)
        ranges = await self._broker.run_blocking(
            partial(self._write_markers, state, is_commit, firsts)
        )
        if is_commit:
            await self._broker.run_blocking(partial(self._commit_offsets, state))
        aborted = () if is_commit else tuple(ranges)
        for shard in self._index.release(state.producer_id, aborted):
            # The markers were news before they meant anything.
            self._broker.handler.wake(shard)
        finish = Finish(
            state.namespace, state.transactional_id, state.producer_id, state.epoch, aborted
        )
        finished = await self._broker.run_blocking(partial(self._meta.change_transaction, finish))
        assert finished is not None, "the end of a transaction is a state"
        return finished

    def _write_markers(
        self, state: TransactionState, is_commit: bool, firsts: dict[str, int]
    ) -> list[AbortedRange]:
        handler, now_ms = self._broker.handler, self._broker.clock.now_ms()
        marker = build_marker(
            state.producer_id, state.epoch, is_commit=is_commit, timestamp_ms=now_ms
        )
        ranges: list[AbortedRange] = []
        engines: set[BatchEngine] = set()
        for one in state.partitions:
            if one.shard not in firsts:
                continue  # enlisted, and never written to
            try:
                entry = handler.find(one.shard)
                written = handler.write_batch(entry, marker, 1, timestamp_ms=now_ms)
            except UnknownShardError:
                continue  # deleted meanwhile, with all that was written to it
            first = firsts[one.shard]
            ranges.append(AbortedRange(one.shard, first, state.producer_id, written.first))
            reader = handler.batch_reader(entry)
            if reader is not None and not is_commit:
                engines.add(reader)
        # A client that knows of an aborted transaction leaves its producer's records out up to the
        # marker: it must not be lost behind the row that tells of it. A commit needs none.
        for engine in engines:
            engine.sync()
        return ranges

    def _commit_offsets(self, state: TransactionState) -> None:
        broker = self._broker
        for staged in state.offsets:
            commits = {
                ShardId.parse(one.shard): OffsetCommit(
                    Offset(one.offset), one.metadata, one.leader_epoch
                )
                for one in staged.offsets
            }
            # Directly: they are as durable as the decision that they belong to.
            broker.offsets.commit_offsets(
                staged.group, commits, namespace=broker.namespace, enable_cache=False
            )
            for topic_id in {shard.topic for shard in commits}:
                if topic_id not in broker.handler.cache.topics:
                    broker.offsets.forget_topic(topic_id)
