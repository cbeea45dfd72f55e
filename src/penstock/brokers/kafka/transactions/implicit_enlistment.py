"""Lets a transaction write to a partition, or commit offsets of a group, that its client did not
announce: Produce from version 12 on and TxnOffsetCommit from version 5 on do it by themselves.

    leader of the partition ──▶ coordinator: enlist the shard ──▶ meta service
           │◀───────────────── the transaction
           └─▶ opens the shard for the producer, then appends

The coordinator asks nothing back and waits for no end of a transaction: nodes that enlist with each
other cannot wait in a circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.transactions import participant_rpc
from penstock.brokers.kafka.transactions.completion import ASKING_MAX
from penstock.brokers.kafka.transactions.coordinator import TransactionCoordinator
from penstock.brokers.kafka.transactions.interface import ProducerKey
from penstock.brokers.kafka.transactions.participant import TransactionParticipant
from penstock.brokers.kafka.transactions.participant_rpc import Enlisted, EnlistWriter, OpenWriter
from penstock.errors import RetryableError, StoreError, TransactionRefusedError

_ANSWER_S: Final = 20.0
_PATIENCE_S: Final = 10.0
"""How long the last transaction may take to end."""
_RETRY_S: Final = (0.005, 0.02, 0.05, 0.1)
_CODES: Final = {
    "fenced": ErrorCode.invalid_producer_epoch,
    "unknown_transaction": ErrorCode.invalid_producer_id_mapping,
    "in_progress": ErrorCode.concurrent_transactions,
    "bad_state": ErrorCode.invalid_txn_state,
    "not_here": ErrorCode.not_enough_replicas,
}
"""As in Kafka: a producer sends a batch again after NOT_ENOUGH_REPLICAS, whatever the reason."""


class ImplicitEnlistment:
    def __init__(
        self,
        broker: KafkaBroker,
        coordinator: TransactionCoordinator,
        participant: TransactionParticipant,
        node_of: Callable[[str], int],
    ) -> None:
        """`node_of` returns the node that coordinates a transactional id."""
        self._broker: Final = broker
        self._coordinator: Final = coordinator
        self._participant: Final = participant
        self._node_of: Final = node_of
        self._loop: Final = asyncio.get_running_loop()
        self._asking: Final = asyncio.Semaphore(ASKING_MAX)

    # At the leader of a partition, or the coordinator of a group

    async def enlist_shards(self, producer: ProducerKey, shards: Sequence[str]) -> int:
        """Let a producer write to shards that this node leads; return an error code, or 0."""
        try:
            bounds = await self._broker.run_blocking(partial(self._bounds_of, shards))
            enlisted = await self._ask(EnlistWriter(*producer, bounds))
            opening = OpenWriter(*producer, enlisted.started_ms, enlisted.bounds)
            await self._broker.run_blocking(partial(self._participant.run_step, opening))
        except TransactionRefusedError as error:
            return int(_CODES[error.code])
        except RetryableError:
            return int(ErrorCode.not_enough_replicas)
        except StoreError as error:
            return int(code_of(error))
        return 0

    def _bounds_of(self, shards: Sequence[str]) -> dict[str, int]:
        return {shard: self._participant.bound_of(shard) for shard in shards}

    async def enlist_group(self, producer: ProducerKey, group: str) -> None:
        await self._ask(EnlistWriter(*producer, {}, [group]))

    async def _ask(self, request: EnlistWriter) -> Enlisted:
        node = self._node_of(request.transactional_id)
        if node == self._broker.node_id:
            return await self._enlist(request, waits=True)
        step = partial(
            self._broker.drivers.run_transaction_step, node, participant_rpc.encode(request)
        )
        until = self._broker.clock.monotonic() + _PATIENCE_S
        tries = 0
        while True:
            async with self._asking:
                answer = await self._broker.run_blocking(step)
            enlisted = participant_rpc.decode_enlisted(answer)
            if not enlisted.refusal:
                return enlisted
            is_over = self._broker.clock.monotonic() >= until
            if enlisted.refusal != "in_progress" or is_over:
                raise TransactionRefusedError(enlisted.refusal, enlisted.reason)
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1

    # At the coordinator of the transaction

    def handle(self, text: str) -> str:
        """Answer another node, in a thread that may block."""
        request = participant_rpc.decode_request(text)
        if not isinstance(request, EnlistWriter):
            return self._participant.answer(request)
        asked = asyncio.run_coroutine_threadsafe(self._enlist(request, waits=False), self._loop)
        try:
            return participant_rpc.encode(asked.result(_ANSWER_S))
        except TransactionRefusedError as error:
            return participant_rpc.encode(Enlisted(refusal=error.code, reason=str(error)))
        except TimeoutError:
            asked.cancel()
            reason = f"transactional id {request.transactional_id!r} is busy"
            return participant_rpc.encode(Enlisted(refusal="in_progress", reason=reason))

    async def _enlist(self, request: EnlistWriter, *, waits: bool) -> Enlisted:
        producer = request.transactional_id, request.producer_id, request.epoch
        state = await self._coordinator.enlist_at(
            producer, request.bounds, request.groups, waits=waits
        )
        bounds = {
            partition.shard: partition.first_offset
            for partition in state.partitions
            if partition.shard in request.bounds
        }
        return Enlisted(state.started_ms, bounds)
