"""The frame of Penstock's own small files: every cut and every flipped bit is found."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.segment.recovery.checksummed_file import Kind, frame, read_whole, unframe
from penstock.errors import CorruptionError, NotSupportedError
from penstock.testing import FaultyDisk

KIND = Kind(b"PSTKTEST", 3)


@given(st.integers(0, 1 << 31), st.binary(max_size=200))
def test_what_was_wrapped_comes_back(count: int, body: bytes) -> None:
    found, content = unframe(KIND, "file", frame(KIND, count, body))
    assert (found, bytes(content)) == (count, body)


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    data = frame(KIND, 2, b"some content of a file")
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            unframe(KIND, "file", bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            unframe(KIND, "file", data[:size])


@given(st.binary(min_size=1, max_size=50))
def test_bytes_behind_the_end_are_found(more: bytes) -> None:
    with pytest.raises(CorruptionError):
        unframe(KIND, "file", frame(KIND, 2, b"content") + more)


def test_a_size_that_is_not_the_body_s_is_refused_whatever_the_checksum_says() -> None:
    content = bytearray(frame(KIND, 2, b"content")[:-4])
    content[23] += 1
    with pytest.raises(CorruptionError, match="size does not match"):
        unframe(KIND, "file", bytes(content) + zlib.crc32(content).to_bytes(4, "big"))


def test_a_newer_version_is_no_damage() -> None:
    with pytest.raises(NotSupportedError, match="version 4 needs a newer release"):
        unframe(KIND, "file", frame(Kind(KIND.magic, 4), 0, b""))


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(CorruptionError, match="PSTKELSE"):
        unframe(KIND, "file", frame(Kind(b"PSTKELSE", 3), 0, b""))


def test_a_missing_file_is_none_and_an_empty_one_is_not() -> None:
    disk = FaultyDisk()
    assert read_whole(disk, "a/b") is None
    disk.replace("a/b", b"")
    assert read_whole(disk, "a/b") == b""
