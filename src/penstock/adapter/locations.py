"""Where records went and where they were found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from msgspec import Struct

from penstock.record import Header, Location, Offset, StoredRecord


class Locations(Sequence[Location]):
    """The locations of a batch, in the order in which its records were given.

    A sequence that makes its items when they are looked at: most callers never do, and a hundred
    small objects cost as much as appending the records.
    """

    __slots__ = ("_offsets", "_partitions")

    def __init__(self, partitions: Sequence[int], offsets: Sequence[int]) -> None:
        """One partition for all, or one for each."""
        self._partitions = partitions
        self._offsets = offsets

    @property
    def offsets(self) -> Sequence[int]:
        return self._offsets

    @property
    def partitions(self) -> Sequence[int]:
        single = len(self._partitions) == 1
        return list(self._partitions) * len(self) if single else self._partitions

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> Location: ...

    @overload
    def __getitem__(
        self, index: slice[int | None, int | None, int | None]
    ) -> Sequence[Location]: ...

    def __getitem__(
        self, index: int | slice[int | None, int | None, int | None]
    ) -> Location | Sequence[Location]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        offset = self._offsets[index]
        position = 0 if len(self._partitions) == 1 else index
        return Location(self._partitions[position], Offset(offset))

    def __iter__(self) -> Iterator[Location]:
        return (
            Location(partition, Offset(offset))
            for partition, offset in zip(self.partitions, self._offsets, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # a sequence that compares like a list

    def __repr__(self) -> str:
        return f"Locations({list(self)!r})"


class Message(Struct, frozen=True, gc=False):
    """A record with the topic and partition that it was read from."""

    topic: str
    partition: int
    record: StoredRecord

    @property
    def offset(self) -> Offset:
        """The offset of the record in its partition."""
        return self.record.offset

    @property
    def value(self) -> bytes | None:
        """The value; None is a tombstone."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """The key; None when the record has none."""
        return self.record.key

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order in which they were written."""
        return self.record.tags

    @property
    def headers(self) -> tuple[Header, ...]:
        """Names and values of the headers, in their order."""
        return self.record.headers

    @property
    def timestamp_ms(self) -> int:
        """The producer's time, in milliseconds since 1970."""
        return self.record.timestamp_ms
