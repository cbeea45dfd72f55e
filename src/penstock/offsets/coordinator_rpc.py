"""Requests to the coordinator of a group, and to the node that coordinated it before.

A request names its group. All but `CompareAndSet` may arrive twice or late: the epochs of the meta
service order their effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import BadRequestError, BusyError, RequestError, StaleWriteError, StoreError
from penstock.meta import CommittedOffset
from penstock.offsets.strategy import GroupCommit, OffsetCommit, check_commit, check_shard
from penstock.record import ShardId


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
    """Epoch of the node that takes the group over."""


class HandOver(Struct, frozen=True, tag="hand-over"):
    """Save the cached commits of groups, and stop the use of their lower epochs."""

    groups: list[Release]


GroupChange = CompareAndSet | Reset | DeleteOffsets | DeleteGroup
"""Changes that are never cached."""
Request = Commit | CommitMany | Read | HandOver | GroupChange


class Outcome(Struct, frozen=True):
    """The result for one group of a `CommitMany`."""

    kind: str = ""
    """Empty: its offsets are stored."""
    reason: str = ""


class Reply(Struct, frozen=True):
    """The reply to any request; each kind sets its own fields."""

    offsets: dict[str, CommittedOffset] = {}
    count: int = 0
    outcomes: list[Outcome] = []


# Created at import: msgspec must not inspect a type for the first time in two threads.
_encoder: Final = msgspec.json.Encoder()
_requests: Final = msgspec.json.Decoder(Request)
_replies: Final = msgspec.json.Decoder(Reply)

_STALE: Final = "stale"
_REFUSED: Final = "refused"
_LATER: Final = "later"


def encode(message: Request | Reply) -> str:
    return _encoder.encode(message).decode()


def decode_request(text: str) -> Request:
    """Decode a request of another node; `BadRequestError` for anything else."""
    try:
        request: Request = _requests.decode(text)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not a request to an offset coordinator: {error}") from error
    return request


def decode_reply(text: str) -> Reply:
    return _replies.decode(text)


def group_of(change: GroupChange) -> tuple[str, str]:
    """Return the namespace and the name of the group that is changed."""
    named = change.commit if isinstance(change, Reset) else change
    return named.namespace, named.group


def group_commit(
    namespace: str, group: str, offsets: Mapping[ShardId, OffsetCommit]
) -> GroupCommit:
    """Return offsets by the names of their shards, checked."""
    for commit in offsets.values():
        check_commit(commit)
    return GroupCommit(
        namespace, group, {check_shard(shard).name: commit for shard, commit in offsets.items()}
    )


def offsets_by_shard(commit: GroupCommit) -> dict[ShardId, OffsetCommit]:
    """The reverse of `group_commit`, also checked: another node may have sent it."""
    return {ShardId.parse(name): check_commit(offset) for name, offset in commit.offsets.items()}


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
