"""Snapshots: the whole state of a group, from one node to another.

    leader    scan at one moment ──▶ chunk 0 ──▶ chunk 1 ──▶ … ──▶ last chunk + Raft message
    follower  rows under a new generation ─────────────────────▶ one synced batch switches to it

The follower's own state stays as it is until the switch. A crash before it leaves rows of a
generation that nothing points at; the next start removes them. Nothing is read by a clock: a
transfer is given up after so many ticks without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import MsgspecError, Struct

from penstock.meta.raft.network.frames import (
    Rows,
    SnapshotAnswer,
    SnapshotChunk,
    chain_checksum,
    decode_rows,
    encode_rows,
)
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import GroupName
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

CHUNK_SIZE: Final = 256 << 10
RESEND_TICKS: Final = 20
GIVE_UP_TICKS: Final = 100


class SnapshotSending:
    """One transfer, on the sending side."""

    def __init__(
        self,
        group: int,
        *,
        to: int,
        number: int,
        message: bytes,
        rows: Iterator[tuple[bytes, bytes]],
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        self.to: Final = to
        self.number: Final = number
        self._group = group
        self._message = message
        self._rows = rows
        self._chunk_size = chunk_size
        self._checksum = 0
        self._next: tuple[bytes, bytes] | None = next(rows, None)
        self._chunk: SnapshotChunk | None = None
        self._silent_ticks = 0
        self.is_done = False

    def begin(self) -> SnapshotChunk:
        return self._advance(0)

    def answer(self, answer: SnapshotAnswer) -> SnapshotChunk | None:
        """Return the next chunk that the receiver requests, if any."""
        assert self._chunk is not None, "a transfer begins before it is answered"
        if answer.wanted != self._chunk.number + 1:
            return None  # an answer that was on its way when we sent the chunk again
        self._silent_ticks = 0
        if self._chunk.message:
            self.is_done = True
            return None
        return self._advance(answer.wanted)

    def tick(self) -> SnapshotChunk | None:
        """Return the chunk again after a time without an answer."""
        self._silent_ticks += 1
        if self._silent_ticks % RESEND_TICKS == 0:
            return self._chunk
        return None

    @property
    def is_lost(self) -> bool:
        return self._silent_ticks >= GIVE_UP_TICKS

    def _advance(self, number: int) -> SnapshotChunk:
        rows: Rows = []
        size = 0
        while self._next is not None and size < self._chunk_size:
            rows.append(self._next)
            size += len(self._next[0]) + len(self._next[1])
            self._next = next(self._rows, None)
        data = encode_rows(rows)
        self._checksum = chain_checksum(self._checksum, data)
        self._chunk = SnapshotChunk(
            group=self._group,
            snapshot=self.number,
            number=number,
            rows=data,
            checksum=self._checksum,
            message=self._message if self._next is None else b"",
        )
        return self._chunk


class SnapshotSendings:
    """The transfers of a group, at most one to each member."""

    def __init__(self, group: int, first_number: int, report: Callable[[int, bool], None]) -> None:
        """`report` hears whether a member has received the state."""
        self._group = group
        self._last_number = first_number
        self._report = report
        self._sendings: dict[int, SnapshotSending] = {}

    def begin(
        self, to: int, message: bytes, rows: Iterator[tuple[bytes, bytes]], chunk_size: int
    ) -> SnapshotChunk:
        """Begin a transfer in the place of an earlier one; return its first chunk."""
        self._last_number += 1
        sending = SnapshotSending(
            self._group,
            to=to,
            number=self._last_number,
            message=message,
            rows=rows,
            chunk_size=chunk_size,
        )
        self._sendings[to] = sending
        return sending.begin()

    def answer(self, sender: int, answer: SnapshotAnswer) -> SnapshotChunk | None:
        """Return the next chunk for a member that has answered, if there is one to send."""
        sending = self._sendings.get(sender)
        if sending is None or sending.number != answer.snapshot:
            return None
        if answer.wanted < 0:
            self._end(sender, is_received=False)
            return None
        chunk = sending.answer(answer)
        if chunk is None and sending.is_done:
            self._end(sender, is_received=True)
        return chunk

    def tick(self) -> list[tuple[int, SnapshotChunk]]:
        """End the transfers that were not answered; return the chunks to send once more."""
        repeated: list[tuple[int, SnapshotChunk]] = []
        for to, sending in list(self._sendings.items()):
            chunk = sending.tick()
            if sending.is_lost:
                self._end(to, is_received=False)
            elif chunk is not None:
                repeated.append((to, chunk))
        return repeated

    def _end(self, to: int, *, is_received: bool) -> None:
        del self._sendings[to]
        self._report(to, is_received)


class Received(Struct):
    """A transfer, on the receiving side."""

    sender: int
    snapshot: int
    generation: int
    next_number: int = 0
    checksum: int = 0
    is_complete: bool = False
    silent_ticks: int = 0


class SnapshotReceiving:
    """Stores the rows of one transfer at a time under a new generation."""

    def __init__(self, database: Database, group: GroupName, used_generation: int) -> None:
        self._database = database
        self._group = group
        self._used_generation = used_generation
        self._received: Received | None = None

    @property
    def received(self) -> Received | None:
        return self._received

    def receive(
        self, sender: int, chunk: SnapshotChunk, install: Callable[[bytes], None]
    ) -> SnapshotAnswer:
        """Store the rows of a chunk; with the last one, `install` gets the Raft message."""
        current = self._received
        if current is None or (current.sender, current.snapshot) != (sender, chunk.snapshot):
            if chunk.number != 0 or (current is not None and current.is_complete):
                return self._answer(chunk, -1)
            current = self._begin(sender, chunk)
        if chunk.number != current.next_number:
            return self._answer(chunk, current.next_number)
        checksum = chain_checksum(current.checksum, chunk.rows)
        if checksum != chunk.checksum:
            return self._begin_again(chunk, "the checksum does not match")
        try:
            rows = decode_rows(chunk.rows)
        except MsgspecError as error:
            return self._begin_again(chunk, str(error))
        self._write(current.generation, rows)
        current.checksum = checksum
        current.next_number += 1
        current.silent_ticks = 0
        if chunk.message:
            current.is_complete = True
            install(chunk.message)
        return self._answer(chunk, current.next_number)

    def tick(self) -> None:
        current = self._received
        if current is None:
            return
        current.silent_ticks += 1
        if current.silent_ticks > GIVE_UP_TICKS:
            self.drop()

    def drop(self) -> None:
        """Drop a transfer and its rows: it was abandoned, or the core rejected it."""
        current, self._received = self._received, None
        if current is not None:
            self._delete(current.generation)

    def adopt(self) -> int:
        """Return the generation of the complete transfer, which is now the state's."""
        current, self._received = self._received, None
        assert current is not None, "a snapshot is installed after its rows have come"
        assert current.is_complete, "a snapshot is installed after its last chunk"
        return current.generation

    def _begin(self, sender: int, chunk: SnapshotChunk) -> Received:
        self.drop()
        self._used_generation += 1
        self._received = Received(sender, chunk.snapshot, self._used_generation)
        return self._received

    def _begin_again(self, chunk: SnapshotChunk, reason: str) -> SnapshotAnswer:
        _log.warning("snapshot_refused", group=self._group.name, reason=reason)
        self.drop()
        return self._answer(chunk, -1)

    def _write(self, generation: int, rows: Rows) -> None:
        prefix = fmt.state_prefix(self._group.number, generation)
        batch = Batch()
        for key, value in rows:
            batch.put(self._group.state_family, prefix + key, value)
        if rows:
            self._database.write(batch)

    def _delete(self, generation: int) -> None:
        delete_generations(self._database, self._group, generation, generation + 1)

    def _answer(self, chunk: SnapshotChunk, requested: int) -> SnapshotAnswer:
        return SnapshotAnswer(group=chunk.group, snapshot=chunk.snapshot, wanted=requested)


def delete_generations(database: Database, group: GroupName, start: int, end: int) -> None:
    """Remove the rows of the generations [start, end)."""
    batch = Batch()
    batch.delete_range(
        group.state_family,
        fmt.state_prefix(group.number, start),
        fmt.state_prefix(group.number, end),
    )
    database.write(batch)


def pinned_state(
    database: Database, group: GroupName, generation: int
) -> tuple[bytes, Iterator[tuple[bytes, bytes]]]:
    """Return the applied row and the rows of the state, as a consistent snapshot."""
    prefix = fmt.state_prefix(group.number, generation)
    end = fmt.state_prefix(group.number, generation + 1)
    all_rows = database.scan(group.state_family, fmt.applied_key(group.number), end)
    first = next(all_rows, None)
    assert first is not None, "a group that sends its state has applied something"
    assert first[0] == fmt.applied_key(group.number), "the applied row comes before all others"
    skipped = len(prefix)
    rows = ((key[skipped:], value) for key, value in all_rows if key.startswith(prefix))
    return first[1], rows
