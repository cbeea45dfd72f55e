"""The requests of a transaction coordinator to the nodes that lead the partitions of a transaction
or coordinate the groups whose offsets it commits. A step may arrive twice, late, or from a node
that another coordinator has replaced: each names the transaction that it is for."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct, field

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


class EnlistWriter(Struct, frozen=True, tag="enlist"):
    """Ask the coordinator of a transaction to let it write to shards that the sender leads, and to
    commit offsets of groups that the sender coordinates."""

    transactional_id: str
    producer_id: int
    epoch: int
    bounds: dict[str, int]
    """Shards, and their ends."""
    groups: list[str] = field(default_factory=list)


class Enlisted(Struct, frozen=True):
    """The transaction, with the offsets at which its records in the shards begin; or why not."""

    started_ms: int = 0
    bounds: dict[str, int] = field(default_factory=dict)
    refusal: str = ""
    """The code of a `TransactionRefusedError`."""
    reason: str = ""


class ReadStable(Struct, frozen=True, tag="read-stable"):
    """Ask the leader of partitions how far they are stable, for a node that follows it and serves
    readers of committed records."""

    firsts: dict[str, int]
    """Shards, and the offsets from which on the aborted transactions are wanted."""


class StableShard(Struct, frozen=True):
    """All transactions with records before `until` are over; `aborted` are those of them that were
    aborted and have records at or after the requested offset."""

    until: int
    aborted: list[AbortedRange]


Step = OpenWriter | EndWriter | CommitStaged
StepResult = list[AbortedRange]
StableShards = dict[str, StableShard]

_encoder: Final = msgspec.json.Encoder()
_requests: Final = msgspec.json.Decoder(Step | ReadStable | EnlistWriter)
_done: Final = msgspec.json.Decoder(StepResult)
_stable: Final = msgspec.json.Decoder(StableShards)
_enlisted: Final = msgspec.json.Decoder(Enlisted)


def open_writer(state: TransactionState, bounds: dict[str, int]) -> OpenWriter:
    return OpenWriter(
        state.transactional_id, state.producer_id, state.epoch, state.started_ms, bounds
    )


def encode(
    message: Step | ReadStable | EnlistWriter | StepResult | StableShards | Enlisted,
) -> str:
    return _encoder.encode(message).decode()


def decode_request(text: str) -> Step | ReadStable | EnlistWriter:
    request: Step | ReadStable | EnlistWriter = _requests.decode(text)
    return request


def decode_result(text: str) -> StepResult:
    return _done.decode(text)


def decode_stable(text: str) -> StableShards:
    return _stable.decode(text)


def decode_enlisted(text: str) -> Enlisted:
    return _enlisted.decode(text)
