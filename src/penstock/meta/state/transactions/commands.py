"""The commands of the transaction coordinators and their result.

The rules of `metadata_commands` hold here, too: stored as MessagePack arrays, fields only appended,
bounds in the types. A transactional id lives in the offset group that its hash points at.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from penstock.meta.state.model import INT_MAX, Count, Name
from penstock.meta.state.offsets.entries import NewOffset

EPOCH_MAX: Final = 32_766
"""After it a producer gets another id. One more is left, for the fence of the last one."""
PARTITIONS_MAX: Final = 5_000
OFFSETS_MAX: Final = 5_000
ROWS_MAX: Final = 5_000

Epoch = Annotated[int, Meta(ge=-1, le=EPOCH_MAX + 1)]
ProducerId = Annotated[int, Meta(ge=-1, le=INT_MAX)]
Status = Literal[
    "empty", "ongoing", "prepare-commit", "prepare-abort", "complete-commit", "complete-abort"
]


class TransactionPartition(Struct, frozen=True, array_like=True):
    """A shard that a transaction writes to, from `first_offset` on."""

    shard: Name
    first_offset: Count


class StagedOffsets(Struct, frozen=True, array_like=True):
    """Offsets of a group that are committed if the transaction is."""

    group: Name
    offsets: tuple[NewOffset, ...] = ()


class TransactionState(Struct, frozen=True, array_like=True, kw_only=True):
    namespace: Name
    transactional_id: Name
    producer_id: ProducerId
    epoch: Epoch
    previous_epoch: Epoch = -1
    """The epoch before a bump, so that a repeated request for one is not fenced by itself."""
    timeout_ms: Count
    status: Status = "empty"
    started_ms: Count = 0
    """When the transaction began; grows with every transaction of the id, so that it tells them
    apart."""
    updated_ms: Count = 0
    partitions: tuple[TransactionPartition, ...] = ()
    offsets: tuple[StagedOffsets, ...] = ()
    next_producer_id: ProducerId = -1
    """Of a decided transaction whose end uses up the epochs: the id from then on."""
    previous_producer_id: ProducerId = -1
    """The id before such an end, as `previous_epoch`."""

    @property
    def next_producer(self) -> tuple[int, int]:
        """The producer id and epoch of the next transaction."""
        if self.next_producer_id >= 0:
            return self.next_producer_id, 0
        return self.producer_id, self.epoch

    def was_ended_by(self, producer_id: int, epoch: int, *, commit: bool) -> bool:
        """Say whether a producer that asks for this outcome has ended the transaction already: the
        end has bumped its epoch."""
        outcome = "commit" if commit else "abort"
        if self.status not in {f"prepare-{outcome}", f"complete-{outcome}"}:
            return False
        if producer_id == self.producer_id:
            return epoch >= 0 and epoch == self.previous_epoch
        return producer_id >= 0 and producer_id == self.previous_producer_id


class AbortedRange(Struct, frozen=True, array_like=True, order=True):
    """Records of a producer in [first, last] of a shard that were aborted; `last` is the marker."""

    shard: Name
    first_offset: Count
    producer_id: ProducerId
    last_offset: Count


class BeginProducer(Struct, frozen=True, array_like=True, tag="begin-producer"):
    """Give a transactional id a producer id and a new epoch; older instances are fenced."""

    namespace: Name
    transactional_id: Name
    timeout_ms: Count
    new_producer_id: Count
    """Taken when there is none yet, or the epochs are used up."""
    expected_id: ProducerId = -1
    expected_epoch: Epoch = -1


class Enlist(Struct, frozen=True, array_like=True, tag="enlist"):
    """Let a transaction write to shards and commit offsets of groups; the first call begins it."""

    namespace: Name
    transactional_id: Name
    producer_id: ProducerId
    epoch: Epoch
    partitions: Annotated[tuple[TransactionPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    groups: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()


class StageOffsets(Struct, frozen=True, array_like=True, tag="stage-offsets"):
    namespace: Name
    transactional_id: Name
    producer_id: ProducerId
    epoch: Epoch
    group: Name
    offsets: Annotated[tuple[NewOffset, ...], Meta(max_length=OFFSETS_MAX)]


class Decide(Struct, frozen=True, array_like=True, tag="decide"):
    """Fix the outcome of a transaction: from here on it can only be completed."""

    namespace: Name
    transactional_id: Name
    producer_id: ProducerId
    epoch: Epoch
    commit: bool
    fence: bool = False
    """The producer itself did not ask: it gets no further with its epoch."""
    started_ms: Count = 0
    """Which of the producer's transactions is meant; 0: the current one."""
    bumps: bool = False
    """The producer asks, and goes on with the next epoch: what it sent before cannot become part of
    its next transaction."""
    new_producer_id: ProducerId = -1
    """With `bumps`: used when the epochs are used up."""


class Finish(Struct, frozen=True, array_like=True, tag="finish"):
    """All markers are written: the transaction is over."""

    namespace: Name
    transactional_id: Name
    producer_id: ProducerId
    epoch: Epoch
    aborted: Annotated[tuple[AbortedRange, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    started_ms: Count = 0
    """As in `Decide`."""


class ForgetAborted(Struct, frozen=True, array_like=True, tag="forget-aborted"):
    """The records of these ranges are gone."""

    ranges: Annotated[tuple[AbortedRange, ...], Meta(max_length=ROWS_MAX)]


class ForgetTransactions(Struct, frozen=True, array_like=True, tag="forget-transactions"):
    """Forget ids that have no transaction and were not used since `before_ms`."""

    namespace: Name
    transactional_ids: Annotated[tuple[Name, ...], Meta(max_length=ROWS_MAX)]
    before_ms: Count


TransactionCommand = (
    BeginProducer | Enlist | StageOffsets | Decide | Finish | ForgetAborted | ForgetTransactions
)


class TransactionResult(Struct, frozen=True, array_like=True, tag="transaction"):
    state: TransactionState | None = None
