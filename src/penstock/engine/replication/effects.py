"""What `ReplicaCore` asks its owner to do."""

from __future__ import annotations

from msgspec import Struct

from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.messages import Message


class Send(Struct, frozen=True):
    to: int
    message: Message


class ProposeInSync(Struct, frozen=True):
    """A change of an in-sync set, for the metadata group. It applies only while both epochs hold;
    each member is named with the broker epoch under which the leader heard of it."""

    shard: str
    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]


class Assigned(Struct, frozen=True):
    """This node follows a new assignment of a shard: it leads, or copies, as that says."""

    assignment: Assignment


class Removed(Struct, frozen=True):
    """This node does not replicate a shard any more."""

    shard: str


class Committed(Struct, frozen=True):
    """The commit offsets of a shard moved on this node."""

    shard: str
    commits: tuple[int, ...]
    is_leader: bool


class Damaged(Struct, frozen=True):
    """A replica disagrees with its leader in a way that the protocol excludes. It is not copied
    any more until an operator, or a repair, has dealt with it."""

    shard: str
    reason: str


class Failed(Struct, frozen=True):
    """The log of a shard has failed; what was to be done is tried again."""

    shard: str
    reason: str


class LeaveInSync(Struct, frozen=True):
    """This node's copy of a shard has damaged records: it may be counted no more, and not lead,
    until they are copied again from another replica."""

    shard: str
    partition_epoch: int


class SyncLog(Struct, frozen=True):
    """A copy of a shard counts for what is on the device: put it there, then call `appended`."""

    shard: str


Effect = (
    Send | ProposeInSync | LeaveInSync | Assigned | Removed | Committed | SyncLog | Damaged | Failed
)
