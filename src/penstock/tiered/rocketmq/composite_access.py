"""`CompositeAccess`: what can be done with the flat files of one queue, without knowing what they
consist of."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from msgspec import Struct

from penstock.codec.format import TAGS, Damage, RawRecord, tag_code
from penstock.codec.properties import inner_range, lookup
from penstock.codec.select import core
from penstock.errors import BadRequestError
from penstock.tiered.rocketmq.append_result import AppendResult, BoundaryType


class DispatchRequest(Struct, frozen=True, kw_only=True):
    """What the consume queue needs to know of one record of the commit log."""

    queue_offset: int
    position: int
    """In the tiered commit log."""
    size: int
    tags_code: int = 0
    count: int = 1
    """How many offsets it takes; more than 1 for a batch."""
    timestamp_ms: int = 0
    store_timestamp_ms: int = 0


class CompositeAccess(Protocol):
    def init_offset(self, offset: int) -> None:
        """Let the consume queue begin at `offset`. When it has begun already, only the dispatch
        offset is affected: where the next message is expected."""
        ...

    def append_commit_log(self, message: bytes, commit: bool = False) -> AppendResult:
        """Append a message to the commit log; with `commit`, persist it immediately."""
        ...

    def append_consume_queue(self, request: DispatchRequest, commit: bool = False) -> AppendResult:
        """Append a message to the consume queue; with `commit`, persist it immediately."""
        ...

    def commit_commit_log(self) -> None:
        """Persist the commit log."""
        ...

    def commit_consume_queue(self) -> None:
        """Persist the consume queue; what it speaks of must be in the commit log."""
        ...

    def commit(self, sync: bool) -> None:
        """Persist the commit log, then the consume queue; without `sync`, in the background."""
        ...

    def get_message_async(self, consume_queue_offset: int) -> Future[bytes]:
        """Return the serialized message of a consume queue offset."""
        ...

    def get_commit_log_async(self, offset: int, length: int) -> Future[bytes]:
        """Return bytes of the commit log."""
        ...

    def get_consume_queue_async(self, consume_queue_offset: int, count: int = 1) -> Future[bytes]:
        """Return serialized units of the consume queue."""
        ...

    def get_commit_log_dispatch_commit_offset(self) -> int:
        """Return the queue offset up to which the commit log is persisted."""
        ...

    def get_offset_in_consume_queue_by_time(
        self, timestamp: int, boundary_type: BoundaryType
    ) -> int:
        """Return the queue offset of a message by its time."""
        ...

    def clean_expired_file(self, expire_timestamp: int) -> None:
        """Mark files sealed and expired whose messages are all older."""
        ...

    def destroy_expired_file(self) -> None:
        """Destroy what was marked."""
        ...

    def shutdown(self) -> None: ...

    def destroy(self) -> None:
        """Delete everything. Safe to repeat, also when it was interrupted."""
        ...


def decode_message(message: bytes) -> RawRecord:
    """Return the record of a commit log that `message` is; raise `BadRequestError` unless it is
    exactly one."""
    raw = core.decode_raw(message, 0, 0, False)
    if isinstance(raw, Damage) or raw.size != len(message):
        reason = raw.reason if isinstance(raw, Damage) else f"it has {raw.size} bytes"
        raise BadRequestError(
            f"{len(message)} bytes are not exactly one record of a commit log: {reason}"
        )
    return raw


def request_of(raw: RawRecord, position: int) -> DispatchRequest:
    """Return what the consume queue needs to know of a record at `position`."""
    return DispatchRequest(
        queue_offset=raw.queue_offset,
        position=position,
        size=raw.size,
        tags_code=tag_code(lookup(raw.properties).get(TAGS, "")),
        count=offset_count(raw),
        timestamp_ms=raw.born_timestamp_ms,
        store_timestamp_ms=raw.store_timestamp_ms,
    )


def offset_count(raw: RawRecord) -> int:
    """Return how many offsets a record takes; more than 1 for a batch."""
    inner = inner_range(lookup(raw.properties))
    return 1 if inner is None else inner[1]
