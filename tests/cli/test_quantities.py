"""Durations and sizes on the command line."""

from __future__ import annotations

import pytest

from penstock.cli.commands.topic import read_options
from penstock.cli.quantities import read_duration_ms, read_size
from penstock.errors import BadRequestError


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("15min", 900_000),
        ("12h", 43_200_000),
        ("3d", 259_200_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("3 D", 259_200_000),
    ],
)
def test_a_duration_is_read_as_milliseconds(text: str, milliseconds: int) -> None:
    assert read_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512KiB", 524_288),
        ("64mib", 67_108_864),
        ("10GB", 10**10),
        ("1B", 1),
        ("1TiB", 1 << 40),
        ("262144", 262_144),
        (" 7 ", 7),
        ("0", 0),
    ],
)
def test_a_size_is_read_as_bytes(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "3", "d", "3x", "3d!", "-3d", "3d4", "٣d", "3d 4"])
def test_what_is_not_a_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadRequestError, match="write 500ms"):
        read_duration_ms(text)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x10", "1e6", "٣", "10 20", "10M", "MB"])
def test_what_is_not_a_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadRequestError, match=r"a number of bytes \(262144\).*256KiB"):
        read_size(text)


def test_options_of_topics_take_durations_and_sizes_where_they_fit() -> None:
    given = ["retention_ms=3d", "retention_bytes=10GiB", "segment_size=64MiB", "tag_header=3d"]
    assert read_options([*given, "tiering.local_retention_ms=12h", "flush=sync"]) == {
        "retention_ms": 259_200_000,
        "retention_bytes": 10 << 30,
        "segment_size": 64 << 20,
        "tag_header": "3d",
        "tiering.local_retention_ms": 43_200_000,
        "flush": "sync",
    }
    assert read_options(["retention_ms=none", "retention_bytes=7"]) == {
        "retention_ms": None,
        "retention_bytes": 7,
    }
    with pytest.raises(BadRequestError, match="not a duration"):
        read_options(["retention_ms=3 fortnights"])
