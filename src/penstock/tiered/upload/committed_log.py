"""What of a log may go into a tier: nothing of a transaction that is open or was aborted.

    log     a a  T1 a T1 a  |  T2 a a          T1 was aborted, T2 is open
    tier    a a     a    a  |

A tier is read without the node that knows of transactions, so it ends before the oldest open one,
and the records of aborted ones are holes in it, as deleted ones are. The markers stay: a client of
Kafka's that got the list of aborted transactions looks for their ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from penstock.codec.format import RawRecord
from penstock.codec.properties import inner_range, lookup
from penstock.codec.select import core
from penstock.engine.segment import Bounds, ShardState, split_raw_range
from penstock.engine.transactions import BatchReader, Ranges, StableOffsets, is_within
from penstock.record import Offset, ShardId

_ATTRIBUTES: Final = slice(21, 23)
"""Of a Kafka batch, in its head."""
_CONTROL: Final = 32


class Log(Protocol):
    """A store, or a view of one."""

    def bounds(self, shard: ShardId) -> Bounds: ...

    def state(self, shard: ShardId) -> ShardState: ...

    def read_raw_range(
        self, shard: ShardId, offset: int, *, max_size: int, until: int | None = None
    ) -> tuple[bytes, int]: ...


class LsoBoundedLog:
    """Implements `CommittedLog`."""

    def __init__(self, log: Log, limits: Callable[[], StableOffsets], batches: BatchReader) -> None:
        self._log: Final = log
        self._limits: Final = limits
        self._batches: Final = batches

    def bounds(self, shard: ShardId) -> Bounds:
        # The end first: a transaction with records before it is in the limits by now.
        bounds = self._log.bounds(shard)
        stable = self._limits().stable_until(shard.name)
        if stable is None or stable >= bounds.commit:
            return bounds
        return replace(bounds, commit=Offset(max(stable, int(bounds.earliest))))

    def state(self, shard: ShardId) -> ShardState:
        return self._log.state(shard)

    def read_raw_range(self, shard: ShardId, offset: int, *, max_size: int) -> tuple[bytes, int]:
        end = int(self.bounds(shard).commit)
        run, after = self._log.read_raw_range(shard, offset, max_size=max_size, until=end)
        limits = self._limits()
        if not run or not limits.touches(shard.name):
            return run, after
        # An abort before `end` is in the limits before the bound moves past it.
        return without_aborted(run, limits.hidden(shard, offset, after, self._batches)), after


def without_aborted(run: bytes, aborted: Ranges) -> bytes:
    """Return a run of batches without those that begin in one of the ranges; markers stay."""
    if not aborted:
        return run
    return b"".join(record for record in split_raw_range(run) if not _is_dropped(record, aborted))


def _is_dropped(message: bytes, aborted: Ranges) -> bool:
    raw = _decoded(message)
    attributes = int.from_bytes(raw.body[_ATTRIBUTES], "big")
    return is_within(aborted, _first_offset(raw)) and not attributes & _CONTROL


def first_offset(message: bytes) -> int:
    """Return the offset of a record, or of the first one in a batch."""
    return _first_offset(_decoded(message))


def _decoded(message: bytes) -> RawRecord:
    raw = core.decode_raw(message, 0, 0, False)
    assert isinstance(raw, RawRecord), "the log has checked it"
    return raw


def _first_offset(raw: RawRecord) -> int:
    inner = inner_range(lookup(raw.properties))
    return raw.queue_offset if inner is None else inner[0]
