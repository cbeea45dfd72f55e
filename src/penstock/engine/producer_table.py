"""Recognises repeated writes: the last writes of every producer of one shard.

A producer numbers its records. The next write must begin where the last one ended; the very same
write again is answered with the offset that it got the first time; anything else is an error. The
rules, and the memory of five writes for each producer, are Kafka's:

    unknown producer         may begin anywhere: it may have been known and forgotten
    older epoch              fenced: another instance of this producer has taken over
    newer epoch              must begin at sequence 0
    same epoch, next in turn accepted
    same epoch, remembered   a repeat, when it begins and ends where that write did
    same epoch, otherwise    a gap, a repeat too old to remember, or a piece of a write: refused

Sequence numbers are 31 bits wide; 0 follows 2,147,483,647.

The table is bounded: when a producer too many writes, the one that has been silent longest is
forgotten. It is folded from the log in log order, so that every replica and every rebuild holds
the same table. The caller serialises calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from penstock.errors import BadRequestError, ProducerFencedError, SequenceGapError
from penstock.record import Producer

SEQUENCES: Final = 1 << 31
"""How many sequence numbers there are; they wrap to 0 after the last."""

WRITES_MAX: Final = 5
"""Writes remembered for each producer: Kafka's clients keep up to five in flight."""

PRODUCERS_MAX: Final = 10_000


class Write(NamedTuple):
    """One remembered write of one producer."""

    epoch: int
    sequence: int
    record_count: int
    first_offset: int
    timestamp_ms: int

    @property
    def next_sequence(self) -> int:
        return (self.sequence + self.record_count) % SEQUENCES

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.record_count


Undone = Sequence[tuple[int, Write]]
"""Producers and writes that a table forgot for another write."""


class ProducerTable:
    """Invariants: a known producer has 1 to WRITES_MAX writes, their offsets ascend; producers are
    in the order of their last writes, the longest silent first."""

    __slots__ = ("_producers", "_producers_max")

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        assert producers_max >= 1
        self._producers: dict[int, tuple[Write, ...]] = {}
        self._producers_max = producers_max

    def check(self, producer: Producer, count: int, shard: str) -> int | None:
        """Return None when this write of `count` records is to be appended, or the first offset of
        the same write, which was appended before. Nothing is remembered yet."""
        if not 0 <= producer.sequence < SEQUENCES:
            raise BadRequestError(f"sequence {producer.sequence} is not in [0, {SEQUENCES})")
        if producer.epoch < 0:
            raise BadRequestError(f"producer epoch {producer.epoch} is negative")
        if not 1 <= count <= SEQUENCES:
            raise BadRequestError(f"a producer's write of {count} records")
        writes = self._producers.get(producer.id)
        if writes is None:
            return None
        last = writes[-1]
        if producer.epoch < last.epoch:
            raise ProducerFencedError(
                shard, producer_id=producer.id, epoch=producer.epoch, newest_epoch=last.epoch
            )
        expected = last.next_sequence if producer.epoch == last.epoch else 0
        if producer.sequence == expected:
            return None
        for write in reversed(writes):
            if write[:3] == (producer.epoch, producer.sequence, count):
                return write.first_offset
        raise SequenceGapError(
            shard, producer_id=producer.id, sequence=producer.sequence, expected=expected
        )

    def remember(
        self, producer: Producer, count: int, first_offset: int, timestamp_ms: int
    ) -> None:
        """Note a write that is in the log; what the log says is not questioned.

        A write at an offset where this producer's writes are remembered already replaces them, as
        records in the log do; noting a write twice changes nothing.
        """
        assert count >= 1, "a write holds at least one record"
        writes = self._producers.pop(producer.id, ())
        kept = tuple(write for write in writes if write.first_offset < first_offset)
        write = Write(producer.epoch, producer.sequence, count, first_offset, timestamp_ms)
        # Popped before, so that the last writer goes to the end.
        self._producers[producer.id] = (*kept[1 - WRITES_MAX :], write)
        if len(self._producers) > self._producers_max:
            del self._producers[next(iter(self._producers))]

    def truncate_from(self, offset: int) -> list[int]:
        """Forget writes that reach `offset` or beyond: their records are cut off, whole or in part.

        Returns the producers of which nothing is known any more. They may begin anywhere until the
        caller has remembered older writes of theirs from the log.
        """
        forgotten = []
        kept: dict[int, tuple[Write, ...]] = {}
        for producer_id, writes in self._producers.items():
            remaining = tuple(write for write in writes if write.end_offset <= offset)
            if remaining:
                kept[producer_id] = remaining
            else:
                forgotten.append(producer_id)
        self._producers = _by_silence(kept)
        return forgotten

    def forgotten_for(self, producer_id: int) -> tuple[tuple[int, Write], ...]:
        """Return what the next write of a producer makes the table forget: its own oldest write, or
        all of the producer that was silent longest."""
        writes = self._producers.get(producer_id)
        if writes is not None:
            return tuple((producer_id, write) for write in writes[: 1 - WRITES_MAX])
        if len(self._producers) < self._producers_max:
            return ()
        silent, forgotten = next(iter(self._producers.items()))
        return tuple((silent, write) for write in forgotten)

    def undo(self, producer_id: int, first_offset: int, forgotten: Undone) -> None:
        """Forget the last write of a producer, at `first_offset`, and know again what
        `forgotten_for` said before it was remembered."""
        writes = self._producers.pop(producer_id, ())
        kept = tuple(write for write in writes if write.first_offset < first_offset)
        if kept:
            self._producers[producer_id] = kept
        for known_id, write in reversed(forgotten):
            self._producers[known_id] = (write, *self._producers.get(known_id, ()))
        self._producers = _by_silence(self._producers)

    def short_after(self, offset: int) -> list[int]:
        """Return the producers that remember fewer writes after `truncate_from(offset)` than the
        log may hold: those that lose some of as many as are remembered."""
        return [
            producer_id
            for producer_id, writes in self._producers.items()
            if len(writes) == WRITES_MAX and writes[-1].end_offset > offset
        ]

    def restore(self, older: dict[int, list[Write]]) -> None:
        """Remember older writes of producers, which were forgotten, before those that are
        remembered."""
        for producer_id, writes in older.items():
            known = self._producers.get(producer_id, ())
            start = known[0].first_offset if known else None
            latest = sorted(
                {write for write in writes if start is None or write.first_offset < start},
                key=_offset_of,
            )
            if latest or known:
                self._producers[producer_id] = (*latest, *known)[-WRITES_MAX:]
        self._producers = _by_silence(self._producers)

    def writes_of(self, producer_id: int) -> tuple[Write, ...]:
        """Return the remembered writes of a producer, oldest first; none when it is unknown."""
        return self._producers.get(producer_id, ())

    def __len__(self) -> int:
        return len(self._producers)

    def to_list(self) -> list[tuple[int, list[Write]]]:
        return [(producer_id, list(writes)) for producer_id, writes in self._producers.items()]

    @classmethod
    def from_list(
        cls,
        producers: Iterable[tuple[int, Iterable[Write]]],
        producers_max: int = PRODUCERS_MAX,
    ) -> Self:
        """Restore what `to_list` gave; raise ValueError for what it cannot have given."""
        new = cls(producers_max)
        for producer_id, items in producers:
            writes = tuple(Write(*item) for item in items)
            if (
                not 1 <= len(writes) <= WRITES_MAX
                or min(write.record_count for write in writes) < 1
            ):
                raise ValueError(f"producer {producer_id} has impossible writes")
            if sorted(writes, key=_offset_of) != list(writes):
                raise ValueError(f"writes of producer {producer_id} are not in order")
            new._producers[producer_id] = writes
        excess = len(new._producers) - producers_max
        for producer_id in list(new._producers)[: max(excess, 0)]:
            del new._producers[producer_id]
        return new


def _offset_of(write: Write) -> int:
    return write.first_offset


def _by_silence(producers: dict[int, tuple[Write, ...]]) -> dict[int, tuple[Write, ...]]:
    """Put producers in the order of their last writes again, after some of those are gone."""
    return dict(sorted(producers.items(), key=lambda item: item[1][-1].first_offset))
