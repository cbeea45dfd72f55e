"""The transactions of this node: what they may do next, how they end, and what a restart leaves.

    InitProducerId ─▶ AddPartitions, AddOffsets ─▶ writes, TxnOffsetCommit ─▶ EndTxn
                                                                              │ decided: durable
                                                                              ▼
                                           markers in all shards ─▶ offsets committed ─▶ finished

Every step is durable in the meta service before it is answered. The order is the guarantee: once
the outcome is decided it can only be completed, by this process or by the next one, which finds
all that it needs in the state and writes the markers again. A marker too many changes nothing for
readers, and an offset that is committed again is the same.

Runs on the server's event loop. Requests of one transactional id are taken one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.transacting.ending import TransactionEnder
from penstock.brokers.kafka.transacting.index import TransactionIndex, Writer
from penstock.errors import BusyError, StoreError, TransactionRefusedError, UnknownShardError
from penstock.log import get_logger
from penstock.meta.solo_transactions import TransactionClient
from penstock.meta.state.offset_entries import NewOffset
from penstock.meta.state.transaction_commands import (
    BeginProducer,
    Decide,
    Enlist,
    ForgetAborted,
    ForgetTransactions,
    StageOffsets,
    TransactionCommand,
    TransactionPartition,
    TransactionState,
)
from penstock.record import ShardId

TRANSACTIONS_MAX: Final = 100_000
IDLE_MS: Final = 7 * 86_400_000
"""How long a transactional id that is not used is remembered; Kafka's default."""
END_WAIT_S: Final = 5.0
"""How long the next request waits for a transaction that is being ended."""
RETRY_S: Final = (0.05, 0.2, 1.0, 5.0)
_FORGET_EVERY_S: Final = 600.0

_log: Final = get_logger(__name__)


class _Entry:
    """What is known of a transactional id; `state` is what the meta service has."""

    __slots__ = ("ending", "lock", "state")

    def __init__(self, state: TransactionState | None) -> None:
        self.state = state
        self.lock: Final = asyncio.Lock()
        self.ending: asyncio.Task[None] | None = None


class TransactionCoordinator:
    def __init__(
        self, broker: KafkaBroker, meta: TransactionClient, index: TransactionIndex
    ) -> None:
        self._broker: Final = broker
        self._meta: Final = meta
        self._index: Final = index
        self._limits: Final = broker.handler.limits
        self._ender: Final = TransactionEnder(broker, meta, index)
        self._entries: Final[dict[str, _Entry]] = {}
        self.is_here: Callable[[str], bool] | None = None
        """In a cluster: whether this node coordinates a transactional id."""

    def recover(self) -> None:
        """Take over what an earlier process left: open transactions go on, or time out; those
        that were decided are completed."""
        self._limits.load_aborted(self._meta.list_aborted())
        for state in self._meta.list_transactions():
            if state.namespace != self._broker.namespace or not self._is_ours(state):
                continue
            entry = self._entries[state.transactional_id] = _Entry(state)
            self._index.note_epoch(state.producer_id, state.epoch)
            if state.status != "empty" and state.partitions:
                self._index.open(state.producer_id, _writer(state), may_have_written=True)
            if state.status.startswith("prepare"):
                self._index.shut(state.producer_id)
                self._begin_to_end(entry)

    def _is_ours(self, state: TransactionState) -> bool:
        """Say whether this node has to do with a transaction. In a cluster a transaction works with
        the partitions that its coordinator's node leads, and with no others."""
        if self.is_here is None:
            return True
        shards = self._broker.handler.cache.shards
        known = [shards[one.shard].meta for one in state.partitions if one.shard in shards]
        if any(known):
            return all(one is None or one.leader == self._broker.node_id for one in known)
        return self.is_here(state.transactional_id)

    def check_here(self, transactional_id: str) -> None:
        """Raise when another node coordinates this id."""
        if self.is_here is not None and not self.is_here(transactional_id):
            raise TransactionRefusedError("not_here", f"{transactional_id!r} is another node's")

    # What producers ask

    async def begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int]
    ) -> TransactionState:
        """Return the producer id and the epoch with which a producer may go on. A transaction that
        its predecessor left open is aborted."""
        self.check_here(transactional_id)
        entry = self._entries.get(transactional_id)
        if entry is None:
            if len(self._entries) >= TRANSACTIONS_MAX:
                raise BusyError(f"{TRANSACTIONS_MAX} transactional ids are in use")
            entry = self._entries[transactional_id] = _Entry(None)
        async with entry.lock:
            await self._wait_for_end(entry)
            state = entry.state
            if state is not None and state.status == "ongoing":
                _check_expected(state, expected)
                await self._decide(entry, state, commit=False, fence=True)
                await self._wait_for_end(entry)
            new_id = await self._broker.run_blocking(
                lambda: self._broker.meta.allocate_producer_ids(1)[0]
            )
            begin = BeginProducer(
                self._broker.namespace, transactional_id, timeout_ms, new_id, *expected
            )
            return await self._change(entry, begin)

    async def enlist(
        self,
        producer: tuple[str, int, int],
        shards: Sequence[ShardId] = (),
        groups: Sequence[str] = (),
    ) -> None:
        """Let a transaction write to `shards` and commit offsets of `groups`."""
        entry = self._find(producer)
        async with entry.lock:
            await self._wait_for_end(entry)
            known = entry.state.partitions if entry.state is not None else ()
            is_open = entry.state is not None and entry.state.status == "ongoing"
            held = {one.shard for one in known} if is_open else set()
            new = [shard.name for shard in shards if shard.name not in held]
            partitions = [TransactionPartition(name, await self._end_of(name)) for name in new]
            if is_open and not partitions and not groups:
                _check(entry.state, producer)
                return
            enlist = Enlist(self._broker.namespace, *producer, tuple(partitions), tuple(groups))
            state = await self._change(entry, enlist)
            self._index.open(state.producer_id, _writer(state))

    async def stage(
        self, producer: tuple[str, int, int], group: str, offsets: Sequence[NewOffset]
    ) -> None:
        """Keep offsets of a group until the transaction commits."""
        entry = self._find(producer)
        async with entry.lock:
            await self._wait_for_end(entry)
            command = StageOffsets(self._broker.namespace, *producer, group, tuple(offsets))
            await self._change(entry, command)

    async def end(self, producer: tuple[str, int, int], *, commit: bool) -> None:
        """Decide a transaction; it is completed behind this, by whatever process."""
        entry = self._find(producer)
        async with entry.lock:
            await self._wait_for_end(entry)
            state = entry.state
            _check(state, producer)
            assert state is not None, "checked"
            await self._decide(entry, state, commit=commit, fence=False)

    def pending_offsets(self, group: str) -> Collection[ShardId]:
        """Return the shards whose offset in `group` a transaction may be about to change."""
        return {
            ShardId.parse(one.shard)
            for entry in self._entries.values()
            if entry.state is not None
            for staged in entry.state.offsets
            if staged.group == group
            for one in staged.offsets
        }

    # Time

    async def watch(self) -> None:
        """Abort what takes too long; forget what nobody needs any more."""
        interval = self._broker.settings.transaction_check_interval_ms / 1000
        next_forget = self._broker.clock.monotonic() + _FORGET_EVERY_S
        while True:
            await asyncio.sleep(interval)
            try:
                await self.abort_overdue()
                if self._broker.clock.monotonic() >= next_forget:
                    next_forget = self._broker.clock.monotonic() + _FORGET_EVERY_S
                    await self.forget()
            except StoreError as error:
                _log.warning("transactions_not_watched", reason=str(error))

    async def abort_overdue(self) -> int:
        """Abort transactions that are open for longer than their producers said."""
        now_ms = self._broker.clock.now_ms()
        overdue = [entry for entry in self._entries.values() if _is_overdue(entry.state, now_ms)]
        for entry in overdue:
            async with entry.lock:
                state = entry.state
                if state is not None and _is_overdue(state, now_ms):
                    _log.info("transaction_timed_out", transactional_id=state.transactional_id)
                    await self._decide(entry, state, commit=False, fence=True)
        return len(overdue)

    async def forget(self) -> None:
        await self._forget_aborted()
        before_ms = max(0, self._broker.clock.now_ms() - IDLE_MS)
        idle = [
            name
            for name, entry in self._entries.items()
            if entry.state is not None
            and entry.state.updated_ms < before_ms
            and (entry.state.status == "empty" or entry.state.status.startswith("complete"))
            and not entry.lock.locked()
        ]
        for start in range(0, len(idle), 1_000):
            part = tuple(idle[start : start + 1_000])
            command = ForgetTransactions(self._broker.namespace, part, before_ms)
            await self._broker.run_blocking(partial(self._meta.change_transaction, command))
            for name in part:
                forgotten = self._entries.pop(name, None)
                if forgotten is not None and forgotten.state is not None:
                    self._index.forget_epoch(forgotten.state.producer_id)

    async def _forget_aborted(self) -> None:
        for shard in self._limits.shards_with_aborted():
            try:
                info = await self._broker.run_blocking(
                    partial(self._broker.handler.shard_info, shard)
                )
                earliest: int | None = info.earliest
            except UnknownShardError:
                earliest = None
            gone = self._limits.forget_aborted(shard, earliest)
            for start in range(0, len(gone), 1_000):
                command = ForgetAborted(tuple(gone[start : start + 1_000]))
                await self._broker.run_blocking(partial(self._meta.change_transaction, command))

    # Steps

    def _find(self, producer: tuple[str, int, int]) -> _Entry:
        self.check_here(producer[0])
        entry = self._entries.get(producer[0])
        if entry is None or entry.state is None:
            raise TransactionRefusedError("unknown_transaction", f"{producer[0]!r} is not known")
        return entry

    async def _decide(
        self, entry: _Entry, state: TransactionState, *, commit: bool, fence: bool
    ) -> None:
        # Nothing more is written from here on; should the step fail, it is opened again.
        self._index.shut(state.producer_id)
        decide = Decide(
            state.namespace, state.transactional_id, state.producer_id, state.epoch, commit, fence
        )
        try:
            decided = await self._change(entry, decide)
        except StoreError:
            if state.status == "ongoing":
                self._index.open(state.producer_id, _writer(state))
            raise
        if decided.status.startswith("prepare"):
            self._begin_to_end(entry)

    def _begin_to_end(self, entry: _Entry) -> None:
        entry.ending = self._broker.spawn(self._end(entry), "end of a transaction")

    async def _end(self, entry: _Entry) -> None:
        """Complete a decided transaction, however long that takes."""
        state = entry.state
        assert state is not None, "only what is decided is ended"
        tries = 0
        while True:
            try:
                entry.state = await self._ender.end(state)
            except StoreError as error:
                pause = RETRY_S[min(tries, len(RETRY_S) - 1)]
                tries += 1
                _log.warning(
                    "transaction_not_ended",
                    transactional_id=state.transactional_id,
                    reason=str(error),
                    tries=tries,
                )
                await asyncio.sleep(pause)
            else:
                return

    async def _wait_for_end(self, entry: _Entry) -> None:
        if entry.ending is None:
            return
        done, _ = await asyncio.wait([entry.ending], timeout=END_WAIT_S)
        if not done:
            raise TransactionRefusedError("in_progress", "the last transaction is being ended")
        entry.ending = None

    async def _change(self, entry: _Entry, command: TransactionCommand) -> TransactionState:
        state = await self._broker.run_blocking(partial(self._meta.change_transaction, command))
        assert state is not None, "such a command leads to a state"
        entry.state = state
        self._index.note_epoch(state.producer_id, state.epoch)
        return state

    async def _end_of(self, shard: str) -> int:
        info = await self._broker.run_blocking(partial(self._broker.handler.shard_info, shard))
        return info.latest


def _writer(state: TransactionState) -> Writer:
    bounds = {one.shard: one.first_offset for one in state.partitions}
    return Writer(state.transactional_id, state.epoch, bounds)


def _is_overdue(state: TransactionState | None, now_ms: int) -> bool:
    return (
        state is not None
        and state.status == "ongoing"
        and state.started_ms + state.timeout_ms < now_ms
    )


def _check(state: TransactionState | None, producer: tuple[str, int, int]) -> None:
    if state is None or state.producer_id != producer[1]:
        raise TransactionRefusedError("unknown_transaction", "another producer has this id")
    if state.epoch != producer[2]:
        raise TransactionRefusedError("fenced", f"epoch {producer[2]} is not {state.epoch}")


def _check_expected(state: TransactionState, expected: tuple[int, int]) -> None:
    if expected[1] >= 0 and expected != (state.producer_id, state.epoch):
        raise TransactionRefusedError("fenced", f"epoch {expected[1]} is not {state.epoch}")
