"""The requests of a transaction coordinator to the nodes that lead the partitions of a transaction
or coordinate the groups whose offsets it commits. A step may arrive twice, late, or from a node
that another coordinator has replaced: each names the transaction that it is for."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.meta import AbortedRange, StagedOffsets, TransactionState


class OpenWriter(Struct, frozen=True, tag="open"):
    """Let a producer write to partitions that the node leads."""

    transactional_id: str
    producer_id: int
    epoch: int
    started_ms: int
    bounds: dict[str, int]
    """Shards, and offsets at which the records of the transaction begin, or before them."""


class EndWriter(Struct, frozen=True, tag="end"):
    """Write the markers of a decided transaction; the result has the ranges of an abort."""

    producer_id: int
    epoch: int
    started_ms: int
    is_commit: bool
    bounds: dict[str, int]


class CommitStaged(Struct, frozen=True, tag="commit-offsets"):
    """Commit the offsets of a group that a decided transaction has staged."""

    namespace: str
    transactional_id: str
    started_ms: int
    staged: StagedOffsets


Step = OpenWriter | EndWriter | CommitStaged
StepResult = list[AbortedRange]

_encoder: Final = msgspec.json.Encoder()
_steps: Final = msgspec.json.Decoder(Step)
_done: Final = msgspec.json.Decoder(StepResult)


def open_writer(state: TransactionState, bounds: dict[str, int]) -> OpenWriter:
    return OpenWriter(
        state.transactional_id, state.producer_id, state.epoch, state.started_ms, bounds
    )


def encode(message: Step | StepResult) -> str:
    return _encoder.encode(message).decode()


def decode_step(text: str) -> Step:
    step: Step = _steps.decode(text)
    return step


def decode_result(text: str) -> StepResult:
    return _done.decode(text)
