"""The commands of the offset state machine and their results.

The rules of `metadata_commands` hold here, too: closed unions, stored as MessagePack arrays, fields
only appended, bounds in the types.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata.commands import RequestId
from penstock.meta.state.model import Count, Name, NodeId, Positive, Signed
from penstock.meta.state.offsets.entries import METADATA_SIZE_MAX, NewOffset
from penstock.meta.state.transactions.commands import (
    BeginProducer,
    Decide,
    Enlist,
    Finish,
    ForgetAborted,
    ForgetTransactions,
    StageOffsets,
    TransactionResult,
)

ROWS_MAX: Final = 5_000
"""Rows that one command may remove; what is left takes another command."""

STATE_SIZE_MAX: Final = 256 << 10
"""Bytes of the members of one group."""


class OffsetEntry(Struct, frozen=True, array_like=True, gc=False):
    """A commit: the next offset to read, and the pair that orders it among all commits."""

    shard: Name
    offset: Count
    epoch: Positive
    sequence: Count
    commit_timestamp_ms: Count
    leader_epoch: Signed = -1
    metadata: Annotated[str, Meta(max_length=METADATA_SIZE_MAX)] = ""


class GroupOffsets(Struct, frozen=True, array_like=True):
    namespace: Name
    group: Name
    entries: tuple[OffsetEntry, ...]


class GroupName(Struct, frozen=True, array_like=True, order=True):
    namespace: Name
    group: Name


class TakeEpochs(Struct, frozen=True, array_like=True, tag="take-epochs"):
    """Make a node the coordinator of groups, each under an epoch that was never given before."""

    groups: Annotated[tuple[GroupName, ...], Meta(min_length=1, max_length=ROWS_MAX)]
    node: NodeId


class SaveOffsets(Struct, frozen=True, array_like=True, tag="save-offsets"):
    """Store each entry whose pair is greater than the one that its row has."""

    groups: tuple[GroupOffsets, ...]


class NewGroupOffsets(Struct, frozen=True, array_like=True):
    namespace: Name
    group: Name
    offsets: Annotated[tuple[NewOffset, ...], Meta(min_length=1)]


class CommitGroups(Struct, frozen=True, array_like=True, tag="commit-groups"):
    """Make a node the coordinator of groups, and store its first commits in the same step: each
    group's offsets get the epoch that is granted here. `node` 0: no node holds them then, and the
    next one to commit takes another epoch."""

    groups: Annotated[tuple[NewGroupOffsets, ...], Meta(min_length=1, max_length=ROWS_MAX)]
    node: Count


class CompareAndSet(Struct, frozen=True, array_like=True, tag="compare-and-set"):
    """Store the entry only if the shard's offset is `expected` (None: there is none)."""

    namespace: Name
    group: Name
    expected: Count | None
    entry: OffsetEntry


class ResetOffsets(Struct, frozen=True, array_like=True, tag="reset-offsets"):
    """Set offsets, also backwards, under a new epoch: no commit made before can undo it."""

    namespace: Name
    group: Name
    offsets: Annotated[tuple[NewOffset, ...], Meta(min_length=1, max_length=ROWS_MAX)]
    node: NodeId


class DeleteOffsets(Struct, frozen=True, array_like=True, tag="delete-offsets"):
    """Remove offsets of a group under a new epoch: no commit made before brings them back."""

    namespace: Name
    group: Name
    shards: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=ROWS_MAX)]


class DeleteGroup(Struct, frozen=True, array_like=True, tag="delete-group"):
    """Hide a group and its offsets immediately; `PurgeGroup` then removes the rows."""

    namespace: Name
    group: Name


class PurgeGroup(Struct, frozen=True, array_like=True, tag="purge-group"):
    """Remove rows that a `DeleteGroup` hid, up to `rows_max` of them."""

    namespace: Name
    group: Name
    rows_max: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_MAX


class ExpireGroups(Struct, frozen=True, array_like=True, tag="expire-groups"):
    """Remove those of the groups whose last commit is older than `before_ms`, at most `rows_max`
    rows of them; the other rows are hidden until another command removes them."""

    groups: Annotated[tuple[GroupName, ...], Meta(min_length=1, max_length=ROWS_MAX)]
    before_ms: Count
    rows_max: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_MAX


class ForgetShards(Struct, frozen=True, array_like=True, tag="forget-shards"):
    """Remove rows of shards that are gone for good; their names never come back."""

    namespace: Name
    group: Name
    shards: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=ROWS_MAX)]


class SaveGroupState(Struct, frozen=True, array_like=True, tag="save-group-state"):
    """Keep the members of a group's generation, or remove them when `state` is empty; refused when
    those of a later generation are kept."""

    namespace: Name
    group: Name
    generation: Count
    state: Annotated[bytes, Meta(max_length=STATE_SIZE_MAX)]


OffsetCommand = (
    TakeEpochs
    | SaveOffsets
    | CompareAndSet
    | ResetOffsets
    | DeleteOffsets
    | DeleteGroup
    | PurgeGroup
    | ExpireGroups
    | ForgetShards
    | BeginProducer
    | Enlist
    | StageOffsets
    | Decide
    | Finish
    | ForgetAborted
    | ForgetTransactions
    | CommitGroups
    | SaveGroupState
)


class OffsetRequest(Struct, frozen=True, array_like=True):
    """What the log holds: a command, the moment it was made, and an id that retries keep."""

    time_ms: Count
    command: OffsetCommand
    request_id: RequestId = ""


class Epochs(Struct, frozen=True, array_like=True, tag="epochs"):
    epochs: tuple[int, ...]
    previous: tuple[int, ...] = ()
    """For each epoch, the node that held the group before; 0: none did."""


class StaleEntry(Struct, frozen=True, array_like=True):
    """An entry that was not stored, and the pair that stands in its way."""

    namespace: str
    group: str
    shard: str
    epoch: int
    sequence: int


class Saved(Struct, frozen=True, array_like=True, tag="saved"):
    stale: tuple[StaleEntry, ...] = ()


class Removed(Struct, frozen=True, array_like=True, tag="removed"):
    """What a removal did: the groups that are gone, the rows, and whether some are left."""

    groups: tuple[GroupName, ...] = ()
    rows: int = 0
    has_more: bool = False


OffsetResult = Epochs | Saved | Removed | TransactionResult


class OffsetApplied(Struct, frozen=True, array_like=True):
    revision: int
    result: OffsetResult
    repeated: bool = False


OffsetAnswer = OffsetApplied | Rejected
