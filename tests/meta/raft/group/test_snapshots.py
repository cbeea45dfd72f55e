"""A state on its way: cut in half, damaged, mixed up. What was there stays until all has come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.meta.simulated_database import SimulatedDatabase

from penstock.meta.raft.group.snapshots import (
    GIVE_UP_TICKS,
    RESEND_TICKS,
    SnapshotReceiving,
    SnapshotSending,
)
from penstock.meta.raft.network.frames import SnapshotAnswer, SnapshotChunk
from penstock.meta.standalone.log import METADATA
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch

GENERATION = fmt.FIRST_GENERATION
OLD = (fmt.state_prefix(0, GENERATION) + b"old", b"row")
ROWS = [(b"key-%03d" % number, b"value-%d" % number) for number in range(100)]


class Transfer:
    """A sender and a receiver; what goes between them is up to the test."""

    def __init__(self, number: int = 1) -> None:
        self.database = SimulatedDatabase()
        batch = Batch()
        batch.put(fmt.META_STATE, *OLD)
        self.database.write(batch)
        self.receiving = SnapshotReceiving(self.database, METADATA, GENERATION)
        self.installed: list[bytes] = []
        self.sending = make_sending(number)

    def take(self, chunk: SnapshotChunk, sender: int = 1) -> SnapshotAnswer:
        return self.receiving.receive(sender, chunk, self.installed.append)

    def chunks(self) -> Iterator[SnapshotChunk]:
        """Yield what the sender sends; each is answered as if it had come."""
        chunk: SnapshotChunk | None = self.sending.begin()
        while chunk is not None:
            yield chunk
            answer = SnapshotAnswer(chunk.group, chunk.snapshot, chunk.number + 1)
            chunk = self.sending.answer(answer)

    def rows(self) -> list[tuple[bytes, bytes]]:
        return self.database.rows(fmt.META_STATE)


def make_sending(number: int) -> SnapshotSending:
    return SnapshotSending(
        0, to=2, number=number, message=b"install", rows=iter(ROWS), chunk_size=200
    )


def test_a_whole_snapshot_is_adopted_beside_what_is_there() -> None:
    transfer = Transfer()
    chunks = list(transfer.chunks())
    assert len(chunks) > 5
    for chunk in chunks:
        assert transfer.take(chunk).wanted == chunk.number + 1
    assert transfer.installed == [b"install"]
    generation = transfer.receiving.adopt()
    prefix = fmt.state_prefix(0, generation)
    assert transfer.rows() == [OLD, *[(prefix + key, value) for key, value in ROWS]]


def test_a_snapshot_that_was_cut_in_half_leaves_nothing() -> None:
    transfer = Transfer()
    chunks = list(transfer.chunks())
    for chunk in chunks[: len(chunks) // 2]:
        transfer.take(chunk)
    assert len(transfer.rows()) > 1
    for _ in range(GIVE_UP_TICKS + 1):
        transfer.receiving.tick()
    assert transfer.rows() == [OLD]
    assert transfer.installed == []
    # The rest of it, when it comes at last, is not taken; a new one is.
    assert transfer.take(chunks[-1]).wanted == -1
    again = make_sending(2)
    transfer.sending = again
    for chunk in transfer.chunks():
        transfer.take(chunk)
    assert transfer.installed == [b"install"]


@pytest.mark.parametrize("at", [0, 3])
def test_a_damaged_chunk_begins_the_transfer_again(at: int) -> None:
    transfer = Transfer()
    chunks = list(transfer.chunks())
    for chunk in chunks[:at]:
        transfer.take(chunk)
    good = chunks[at]
    flipped = bytes([good.rows[0] ^ 1]) + good.rows[1:]
    assert transfer.take(replace(good, rows=flipped)).wanted == -1
    assert transfer.rows() == [OLD]
    assert transfer.take(replace(chunks[0], checksum=chunks[0].checksum ^ 1)).wanted == -1


def test_chunks_that_come_twice_or_out_of_order_are_asked_for_as_they_should_come() -> None:
    transfer = Transfer()
    first, second, third, *rest = transfer.chunks()
    assert transfer.take(first).wanted == 1
    assert transfer.take(third).wanted == 1
    assert transfer.take(first).wanted == 1
    assert transfer.take(second).wanted == 2
    for chunk in (third, *rest):
        transfer.take(chunk)
    assert transfer.installed == [b"install"]
    assert len(transfer.rows()) == 1 + len(ROWS)


def test_a_transfer_of_another_sender_takes_the_place_of_one_that_is_not_complete() -> None:
    transfer = Transfer()
    first, *_ = transfer.chunks()
    assert transfer.take(first, sender=1).wanted == 1
    other, *rest = Transfer(number=9).chunks()
    assert transfer.take(other, sender=3).wanted == 1
    assert transfer.take(first, sender=1).wanted == 1
    assert transfer.take(rest[0], sender=3).wanted == -1


def test_a_chunk_is_sent_again_until_the_other_side_is_given_up() -> None:
    sending = make_sending(1)
    first = sending.begin()
    sent = [sending.tick() for _ in range(RESEND_TICKS)]
    assert [one for one in sent if one is not None] == [first]
    assert not sending.is_lost
    for _ in range(GIVE_UP_TICKS):
        sending.tick()
    assert sending.is_lost


def test_a_state_without_rows_is_one_chunk() -> None:
    sending = SnapshotSending(0, to=2, number=1, message=b"install", rows=iter([]))
    chunk = sending.begin()
    assert chunk.message == b"install"
    assert sending.answer(SnapshotAnswer(0, 1, 1)) is None
    assert sending.is_done
