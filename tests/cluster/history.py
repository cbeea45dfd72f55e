"""Histories of clients: what each one called, when, with which outcome; in arrays, pure Python.

A write takes 42 bytes, a record that was read 16. A client belongs to one thread, so that nothing
is locked. Values are numbers that tell who wrote them: `value_of(writer, number, attempt)`. Each
attempt to write the same thing has a value of its own, and all attempts share an identity.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

_ATTEMPT_BITS: Final = 10
_NUMBER_BITS: Final = 38
NO_OFFSET: Final = -1
NO_TRANSACTION: Final = -1
ABSENT: Final = -1


class Outcome(IntEnum):
    """What a client knows of a call."""

    OK = 0
    FAILED = 1
    """It had no effect."""
    UNKNOWN = 2
    """It may have had an effect, or may still have one."""


def value_of(writer: int, number: int, attempt: int = 0) -> int:
    """Return the value of an attempt of a writer to write the thing with this number."""
    assert 0 <= number < 1 << _NUMBER_BITS
    attempt %= 1 << _ATTEMPT_BITS
    return (writer << _NUMBER_BITS | number) << _ATTEMPT_BITS | attempt


def identity_of(value: int) -> int:
    """Return what all attempts to write one thing have in common."""
    return value >> _ATTEMPT_BITS


def writer_of(value: int) -> int:
    return value >> (_ATTEMPT_BITS + _NUMBER_BITS)


def number_of(value: int) -> int:
    return identity_of(value) & ((1 << _NUMBER_BITS) - 1)


class Write(NamedTuple):
    shard: int
    value: int
    began: float
    ended: float
    outcome: Outcome
    offset: int
    transaction: int


class Poll(NamedTuple):
    """One answer to a reader: from where it asked, and what it got, in that order."""

    shard: int
    position: int
    began: float
    ended: float
    offsets: Sequence[int]
    values: Sequence[int]


class Transaction(NamedTuple):
    """`commit_began` is infinite for one that was never asked to commit."""

    number: int
    commit_began: float
    ended: float
    outcome: Outcome
    """OK: committed; FAILED: aborted."""


class Commit(NamedTuple):
    """A group's offset that was stored (`is_fetch` false), or fetched."""

    group: str
    shard: int
    offset: int
    began: float
    ended: float
    outcome: Outcome
    is_fetch: bool


@dataclass
class Client:
    """The history of one client."""

    name: str
    writer: int = 0
    is_exactly_once: bool = True
    """A value of this client may be stored once only: it is idempotent, or never repeats one."""
    is_ordered: bool = True
    """Its writes to a shard are stored in the order of their numbers."""
    is_committed_reader: bool = True
    """It must not see records of open and aborted transactions."""
    transactions: list[Transaction] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    open_since: float | None = None
    """When the call began that has not ended."""
    last_ok: float = 0.0
    """When its last successful call began."""
    notes: list[str] = field(default_factory=list)
    _write_shards: array[int] = field(default_factory=lambda: array("H"))
    _write_values: array[int] = field(default_factory=lambda: array("q"))
    _write_times: array[float] = field(default_factory=lambda: array("d"))
    _write_outcomes: array[int] = field(default_factory=lambda: array("B"))
    _write_offsets: array[int] = field(default_factory=lambda: array("q"))
    _write_transactions: array[int] = field(default_factory=lambda: array("q"))
    _poll_places: array[int] = field(default_factory=lambda: array("q"))
    _poll_times: array[float] = field(default_factory=lambda: array("d"))
    _read_offsets: array[int] = field(default_factory=lambda: array("q"))
    _read_values: array[int] = field(default_factory=lambda: array("q"))

    def begin(self, now: float) -> float:
        """Note that a call begins; return when."""
        self.open_since = now
        return now

    def end(self, began: float, outcome: Outcome = Outcome.OK) -> None:
        """Note that the call has ended."""
        self.open_since = None
        if outcome is Outcome.OK:
            self.last_ok = max(self.last_ok, began)

    def wrote(
        self,
        shard: int,
        value: int,
        times: tuple[float, float],
        outcome: Outcome,
        offset: int = NO_OFFSET,
        transaction: int = NO_TRANSACTION,
    ) -> None:
        self._write_shards.append(shard)
        self._write_values.append(value)
        self._write_times.extend(times)
        self._write_outcomes.append(outcome)
        self._write_offsets.append(offset)
        self._write_transactions.append(transaction)
        self.end(times[0], outcome)

    def polled(
        self,
        shard: int,
        position: int,
        times: tuple[float, float],
        offsets: Sequence[int],
        values: Sequence[int],
    ) -> None:
        assert len(offsets) == len(values)
        self._poll_places.extend((shard, position, len(self._read_offsets), len(offsets)))
        self._poll_times.extend(times)
        self._read_offsets.extend(offsets)
        self._read_values.extend(values)
        self.end(times[0])

    def writes(self) -> Iterator[Write]:
        for index, shard in enumerate(self._write_shards):
            yield Write(
                shard,
                self._write_values[index],
                self._write_times[2 * index],
                self._write_times[2 * index + 1],
                Outcome(self._write_outcomes[index]),
                self._write_offsets[index],
                self._write_transactions[index],
            )

    def polls(self) -> Iterator[Poll]:
        for index in range(len(self._poll_places) // 4):
            shard, position, first, count = self._poll_places[4 * index : 4 * index + 4]
            yield Poll(
                shard,
                position,
                self._poll_times[2 * index],
                self._poll_times[2 * index + 1],
                self._read_offsets[first : first + count],
                self._read_values[first : first + count],
            )

    @property
    def write_count(self) -> int:
        return len(self._write_shards)

    @property
    def read_count(self) -> int:
        return len(self._read_offsets)


class FinalLog:
    """What a shard holds when everything is over: by offset, with the offsets that show no record
    (deleted ones, markers) as holes."""

    def __init__(self, start: int = 0) -> None:
        self.start: Final = start
        self._values: Final = array("q")

    def put(self, offset: int, value: int) -> None:
        index = offset - self.start
        assert index >= 0
        if index >= len(self._values):
            self._values.extend([ABSENT] * (index + 1 - len(self._values)))
        self._values[index] = value

    def get(self, offset: int) -> int:
        index = offset - self.start
        return self._values[index] if 0 <= index < len(self._values) else ABSENT

    @property
    def end(self) -> int:
        return self.start + len(self._values)

    def items(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield offsets and values between two offsets, without the holes."""
        last = self.end if end is None else min(end, self.end)
        for offset in range(max(begin, self.start), last):
            value = self._values[offset - self.start]
            if value != ABSENT:
                yield offset, value


@dataclass
class History:
    """Everything that a run did and saw."""

    clients: list[Client]
    final: dict[int, FinalLog]
    """Records of a shard that a reader of committed records sees at the end."""
    uncommitted: dict[int, FinalLog] = field(default_factory=dict)
    """With those of aborted transactions, where they were read; else `final` is used."""
    healed_at: float = 0.0
    """From then on all nodes ran and reached each other; clients had to get on."""
    ended_at: float = 0.0

    def logs(self, *, is_committed: bool) -> dict[int, FinalLog]:
        return self.final if is_committed or not self.uncommitted else self.uncommitted
