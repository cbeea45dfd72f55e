"""A group: a log of commands and the state machine that it drives, on one node or in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from msgspec import MsgspecError, Struct

from penstock.errors import BadRequestError, CorruptionError, NotAStoreError, StoreError
from penstock.meta.state.view import Reader, View
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import BATCH_SIZE_MAX, Database

ENTRY_SIZE_MAX: Final = BATCH_SIZE_MAX // 2
"""Bytes of one proposal: its entry, and then the rows it changes, must fit into a batch."""

UNWRITTEN_SIZE_MAX: Final = ENTRY_SIZE_MAX // 2
UNWRITTEN_ENTRIES_MAX: Final = 1_024
"""After so many bytes or entries the state is written; a start applies again what is not."""

RequestT = TypeVar("RequestT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class Machine(Protocol[RequestT, AnswerT_co]):
    """A state machine as the log drives it."""

    def decode(self, data: bytes) -> RequestT:
        """Decode and check a request; raise `MsgspecError` when it is not one."""
        ...

    def apply(self, view: View, request: RequestT) -> AnswerT_co: ...


class GroupLog(Protocol[AnswerT_co]):
    """A group as clients use it, on one node or in a cluster."""

    @property
    def name(self) -> GroupName: ...

    @property
    def reader(self) -> Reader:
        """The rows, with everything that was acknowledged before this was asked for."""
        ...

    def propose(self, data: bytes) -> AnswerT_co: ...

    def propose_many(self, requests: Sequence[bytes]) -> Sequence[AnswerT_co | StoreError]:
        """As `propose` of each, all in parallel; an error takes the place of an answer."""
        ...


class GroupName(Struct, frozen=True):
    """The name of a group, and where it is stored."""

    name: str
    number: int
    log_family: str
    state_family: str


class LogLimits(Struct, frozen=True):
    """How much of its past a log keeps, for followers that only missed a little."""

    entries_max: int = 4_096
    entries_kept: int = 1_024
    size_max: int = 16 << 20


def decode_proposal(machine: Machine[RequestT, object], data: bytes) -> RequestT:
    """Decode a request; raise `BadRequestError` when it is too large or not one of the group."""
    if len(data) > ENTRY_SIZE_MAX:
        raise BadRequestError(f"the request has {len(data)} bytes; the limit is {ENTRY_SIZE_MAX}")
    try:
        return machine.decode(data)
    except MsgspecError as error:
        raise BadRequestError(str(error)) from error


def decode_requests(
    machine: Machine[RequestT, object],
    data: bytes,
    database: Database,
    group: GroupName,
    index: int,
) -> list[RequestT]:
    """Decode the requests of a log entry; raise `NotAStoreError` when this release cannot."""
    try:
        return [machine.decode(request) for request in fmt.unbundle(data)]
    except MsgspecError as error:
        raise NotAStoreError(
            f"{database.path}: entry {index} of {group.name} cannot be read by this release: "
            f"{error}"
        ) from error


def log_corruption(database: Database, group: GroupName, reason: str) -> CorruptionError:
    return CorruptionError(f"{database.path} log {group.name}", position=0, reason=reason)
