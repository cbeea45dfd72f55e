"""Completes a transaction whose outcome is decided: markers, then offsets, then the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from msgspec import Struct, field

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.transactions import participant_rpc
from penstock.brokers.kafka.transactions.participant import TransactionParticipant
from penstock.errors import BusyError
from penstock.meta import AbortedRange, Finish, TransactionClient, TransactionState
from penstock.record import ShardId

ASKING_MAX: Final = 4
"""Threads that may wait for other nodes: a silent node must not occupy all of them."""


class EndProgress(Struct):
    """The finished parts of a completion that failed before its end."""

    shards: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    aborted: list[AbortedRange] = field(default_factory=list)


class TransactionCompleter:
    def __init__(
        self, broker: KafkaBroker, meta: TransactionClient, participant: TransactionParticipant
    ) -> None:
        self._broker: Final = broker
        self._meta: Final = meta
        self._participant: Final = participant
        self._asking: Final = asyncio.Semaphore(ASKING_MAX)
        self.node_of_group: Callable[[str], int] = lambda _: broker.node_id
        """In a cluster: which node coordinates a group."""

    async def end(self, state: TransactionState, progress: EndProgress) -> TransactionState:
        """Complete a decided transaction; return its state. Repeatable after a failure."""
        bounds = {
            partition.shard: partition.first_offset
            for partition in state.partitions
            if partition.shard not in progress.shards
        }
        by_node = await self.by_leader(bounds)
        # An unreachable node must not delay the markers on the others.
        await _all([self._end_at(node, state, part, progress) for node, part in by_node.items()])
        if state.status == "prepare-commit":
            await _all(
                [
                    self._commit_staged(state, staged.group, progress)
                    for staged in state.offsets
                    if staged.group not in progress.groups
                ]
            )
        finish = Finish(
            state.namespace,
            state.transactional_id,
            state.producer_id,
            state.epoch,
            tuple(progress.aborted),
            state.started_ms,
        )
        finished = await self._broker.run_blocking(partial(self._meta.change_transaction, finish))
        assert finished is not None, "the end of a transaction is a state"
        return finished

    async def by_leader(self, bounds: dict[str, int]) -> dict[int, dict[str, int]]:
        """Return which node leads which shards; those that were deleted are left out."""
        by_node: dict[int, dict[str, int]] = {}
        for shard, bound in bounds.items():
            entry = self._broker.drivers.storage_cache.shards.get(shard)
            meta = None if entry is None else entry.meta
            if meta is None:
                # Deleted, or not known here yet.
                find = partial(self._broker.meta.get_shard, ShardId.parse(shard))
                meta = await self._broker.run_blocking(find)
                if meta is None:
                    continue
            if meta.leader is None:
                raise BusyError(f"shard {shard!r} has no leader now")
            by_node.setdefault(meta.leader, {})[shard] = bound
        return by_node

    async def run_step(self, node: int, step: participant_rpc.Step) -> participant_rpc.StepResult:
        """Run a step at the node that it is for."""
        if node == self._broker.node_id:
            if isinstance(step, participant_rpc.OpenWriter) and not self._participant.has_left_over(
                step
            ):
                return self._participant.run_step(step)
            return await self._broker.run_blocking(partial(self._participant.run_step, step))
        text = participant_rpc.encode(step)
        async with self._asking:
            response = await self._broker.run_blocking(
                partial(self._broker.drivers.run_transaction_step, node, text)
            )
        return participant_rpc.decode_result(response)

    async def _end_at(
        self, node: int, state: TransactionState, bounds: dict[str, int], progress: EndProgress
    ) -> None:
        is_commit = state.status == "prepare-commit"
        step = participant_rpc.EndWriter(
            state.producer_id, state.epoch, state.started_ms, is_commit, bounds
        )
        progress.aborted += await self.run_step(node, step)
        progress.shards.update(bounds)

    async def _commit_staged(
        self, state: TransactionState, group: str, progress: EndProgress
    ) -> None:
        (staged,) = [offsets for offsets in state.offsets if offsets.group == group]
        if staged.offsets:
            step = participant_rpc.CommitStaged(
                state.namespace, state.transactional_id, state.started_ms, staged
            )
            await self.run_step(self.node_of_group(group), step)
        progress.groups.add(group)


async def _all(works: list[Coroutine[None, None, None]]) -> None:
    """Wait for all of them, then raise the first failure."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
