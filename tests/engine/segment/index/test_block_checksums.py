"""Page checksums: every change of a sealed file, and of its sums, is found."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.segment.index.block_checksums import (
    PAGE_SIZE,
    PAGE_SUMS,
    BlockChecksums,
    Checksums,
    compute,
)
from penstock.engine.segment.recovery.checksummed_file import frame
from penstock.errors import CorruptionError
from penstock.testing import FaultyDisk

QUEUE = "consumequeue/orders/0/00000000000000000000"

pages = st.one_of(
    st.just(bytes(PAGE_SIZE)),
    st.integers(1, 255).map(lambda value: bytes((value,)) * PAGE_SIZE),
    st.binary(min_size=1, max_size=8).map(lambda head: head.ljust(PAGE_SIZE, b"\0")),
)
contents = st.tuples(st.lists(pages, max_size=6), st.binary(max_size=50)).map(
    lambda parts: b"".join(parts[0]) + parts[1]
)


def sealed(content: bytes) -> tuple[FaultyDisk, BlockChecksums, Checksums]:
    disk = FaultyDisk()
    disk.replace(QUEUE, content)
    sums = BlockChecksums(disk, "penstock/sums")
    sums.seal(QUEUE, disk.open(QUEUE))
    loaded = sums.load(QUEUE)
    assert loaded is not None
    return disk, sums, loaded


@given(contents)
def test_every_page_of_a_sealed_file_passes(content: bytes) -> None:
    disk, _, sums = sealed(content)
    assert sums.file_size == len(content)
    assert sums.page_count == -(-len(content) // PAGE_SIZE)
    for number in range(sums.page_count):
        page = content[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
        assert len(page) == sums.page_size(number)
        assert sums.verify(number, page)
        assert sums.verify(number, memoryview(page))
    assert list(sums.damaged_pages(disk.open(QUEUE))) == []


@given(contents.filter(bool), st.data())
def test_a_flipped_bit_is_found_in_its_page_and_no_other(
    content: bytes, data: st.DataObject
) -> None:
    disk, _, sums = sealed(content)
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    disk.flip_bit(QUEUE, bit)
    assert list(sums.damaged_pages(disk.open(QUEUE))) == [bit // 8 // PAGE_SIZE]


@given(contents, contents)
def test_the_pages_that_differ_are_found(content: bytes, other: bytes) -> None:
    disk, _, sums = sealed(content)
    disk.replace(QUEUE, other)
    expected = [
        number
        for number in range(sums.page_count)
        if content[number * PAGE_SIZE :][: sums.page_size(number)]
        != other[number * PAGE_SIZE :][: sums.page_size(number)]
    ]
    if len(other) > len(content):
        expected.append(sums.page_count)
    assert list(sums.damaged_pages(disk.open(QUEUE))) == expected


def test_a_page_that_is_cut_short_or_lies_outside_the_file_does_not_pass() -> None:
    _, _, sums = sealed(b"x" * PAGE_SIZE + bytes(PAGE_SIZE) + b"tail")
    assert sums.verify(2, b"tail")
    assert not sums.verify(2, b"tai")
    assert not sums.verify(2, b"tail" + bytes(PAGE_SIZE - 4))
    assert not sums.verify(1, b"")
    assert not sums.verify(3, b"")
    assert not sums.verify(3, bytes(PAGE_SIZE))
    assert not sums.verify(-1, b"tail")
    assert not sums.verify(1, b"x" * PAGE_SIZE)


def test_every_flipped_bit_and_every_cut_of_the_sums_is_found() -> None:
    disk, _, _ = sealed(b"x" * PAGE_SIZE * 3)
    path = f"penstock/sums/{QUEUE}"
    size = len(disk.files()[path])
    for bit in range(size * 8):
        other = disk.copy()
        other.flip_bit(path, bit)
        with pytest.raises(CorruptionError, match=path):
            BlockChecksums(other, "penstock/sums").load(QUEUE)
    for cut in range(size):
        other = disk.copy()
        other.open(path).truncate(cut)
        with pytest.raises(CorruptionError):
            BlockChecksums(other, "penstock/sums").load(QUEUE)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(11),
        (8192).to_bytes(4, "big") + (4096).to_bytes(8, "big") + bytes(4),
        (4096).to_bytes(4, "big") + (0).to_bytes(8, "big") + bytes(4),
        (4096).to_bytes(4, "big") + (4096).to_bytes(8, "big") + bytes(8),
    ],
)
def test_sums_that_do_not_add_up_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        Checksums.from_bytes("sums", frame(PAGE_SUMS, 1, body))


def test_a_file_that_was_not_sealed_has_no_sums() -> None:
    assert BlockChecksums(FaultyDisk(), "penstock/sums").load(QUEUE) is None


def test_sums_go_one_by_one_or_with_their_directory() -> None:
    disk, sums, _ = sealed(b"content")
    sums.remove(QUEUE)
    assert sums.load(QUEUE) is None
    sums.remove(QUEUE)
    sums.seal(QUEUE, disk.open(QUEUE))
    sums.remove_all("consumequeue/orders/0")
    assert sums.load(QUEUE) is None


def test_sums_survive_a_power_cut() -> None:
    for seed in range(20):
        disk, _, _ = sealed(b"content")
        disk.crash()
        loaded = BlockChecksums(disk, "penstock/sums").load(QUEUE)
        assert loaded is not None, seed
        assert loaded.verify(0, b"content")


def test_a_sparse_tail_costs_nothing_to_keep_and_little_to_compute() -> None:
    disk = FaultyDisk()
    file = disk.open("index/1", create=True)
    file.write_at(0, b"entries")
    file.truncate(64 << 20)
    started = time.thread_time()
    data = compute(file)
    elapsed = time.thread_time() - started
    assert len(data) < 100
    assert elapsed < 15, f"took {elapsed:.2f} s"
    sums = Checksums.from_bytes("sums", data)
    assert sums.verify(sums.page_count - 1, bytes(PAGE_SIZE))
    assert not sums.verify(sums.page_count - 1, bytes(PAGE_SIZE - 1) + b"\1")


def test_a_long_hole_in_the_middle_counts_as_pages_of_zeros() -> None:
    content = b"x" + bytes(3 << 20) + b"y"
    disk, _, sums = sealed(content)
    assert sums.verify(sums.page_count - 1, content[(sums.page_count - 1) * PAGE_SIZE :])
    assert list(sums.damaged_pages(disk.open(QUEUE))) == []
    disk.flip_bit(QUEUE, 8 * (2 << 20))
    assert list(sums.damaged_pages(disk.open(QUEUE))) == [(2 << 20) // PAGE_SIZE]


def test_a_file_that_shrinks_under_the_sealer_is_not_sealed() -> None:
    class Shrinking:
        """A file whose size says more than can be read."""

        path = "queue"

        def size(self) -> int:
            return 10

        def read_at(self, position: int, size: int) -> bytes:
            return b"short"[position : position + size]

    with pytest.raises(CorruptionError, match="cut short"):
        compute(Shrinking())  # type: ignore[arg-type] # only what the sealer calls
