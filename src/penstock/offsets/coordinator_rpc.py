"""What a node asks of the coordinator of a group, and of the node that was it before.

A step names the group that it means. All but `CompareAndSet` may come twice or late: the epochs of
the meta service order what they do.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import BadRequestError, BusyError, RequestError, StaleWriteError, StoreError
from penstock.meta.client import CommittedOffset
from penstock.offsets.strategy import GroupCommit, OffsetCommit


class Commit(Struct, frozen=True, tag="commit"):
    """Commit offsets of a group, all or none."""

    commit: GroupCommit
    enable_cache: bool


class CommitMany(Struct, frozen=True, tag="commit-many"):
    """Commit offsets of groups that the node coordinates, directly."""

    commits: list[GroupCommit]


class CompareAndSet(Struct, frozen=True, tag="compare-and-set"):
    namespace: str
    group: str
    shard: str
    expected: int | None
    commit: OffsetCommit


class Reset(Struct, frozen=True, tag="reset"):
    commit: GroupCommit
    request_id: str


class Read(Struct, frozen=True, tag="read"):
    """Return what a group has committed."""

    namespace: str
    group: str


class DeleteOffsets(Struct, frozen=True, tag="delete-offsets"):
    namespace: str
    group: str
    shards: list[str]


class DeleteGroup(Struct, frozen=True, tag="delete-group"):
    namespace: str
    group: str


class Release(Struct, frozen=True):
    namespace: str
    group: str
    epoch: int
    """That of the node that takes the group over."""


class HandOver(Struct, frozen=True, tag="hand-over"):
    """Save what waits of groups, and commit no more under their lower epochs."""

    groups: list[Release]


Step = Commit | CommitMany | CompareAndSet | Reset | Read | DeleteOffsets | DeleteGroup | HandOver


class Outcome(Struct, frozen=True):
    """What became of one group of a `CommitMany`."""

    kind: str = ""
    """Empty: its offsets are stored."""
    reason: str = ""


class Answer(Struct, frozen=True):
    """The answer to any step; each fills its own part."""

    offsets: dict[str, CommittedOffset] = {}
    count: int = 0
    outcomes: list[Outcome] = []


# Made here, for msgspec must not look at a type for the first time in two threads at once.
_encoder: Final = msgspec.json.Encoder()
_steps: Final = msgspec.json.Decoder(Step)
_answers: Final = msgspec.json.Decoder(Answer)

_STALE: Final = "stale"
_REFUSED: Final = "refused"
_LATER: Final = "later"


def encode(message: Step | Answer) -> str:
    return _encoder.encode(message).decode()


def decode_step(text: str) -> Step:
    """Decode a step that another node sent; `BadRequestError` for anything else."""
    try:
        step: Step = _steps.decode(text)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not a step of an offset coordinator: {error}") from error
    return step


def decode_answer(text: str) -> Answer:
    return _answers.decode(text)


def outcome_of(error: StoreError | None) -> Outcome:
    if error is None:
        return Outcome()
    if isinstance(error, StaleWriteError):
        return Outcome(_STALE, str(error))
    return Outcome(_REFUSED if isinstance(error, RequestError) else _LATER, str(error))


def error_of(outcome: Outcome) -> StoreError | None:
    match outcome.kind:
        case "":
            return None
        case "stale":
            return StaleWriteError(outcome.reason)
        case "refused":
            return BadRequestError(outcome.reason)
        case _:
            return BusyError(outcome.reason)
