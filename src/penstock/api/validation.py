"""Argument checks of the public API; each raises `BadRequestError`. The checks that all engines
share are in `penstock.codec.validation`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from penstock.codec.validation import check_offset, check_text
from penstock.errors import BadRequestError

T = TypeVar("T")


def as_list(values: Iterable[T], name: str) -> list[T]:
    try:
        return list(values)
    except TypeError as error:
        raise BadRequestError(
            f"{name} must be a list or another iterable, got {values!r}"
        ) from error


def check_name(name: object, kind: str) -> None:
    """Check the name of a topic, a group or a namespace: it is text that every store can keep."""
    check_text(name, kind)
    assert isinstance(name, str)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"{kind} {name!r} is not Unicode: {error.reason}") from error


def check_partition(partition: object) -> None:
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise BadRequestError(f"a partition must be a number from 0, got {partition!r}")


def as_seconds(seconds: object, name: str) -> float:
    """Return a time to wait; no number is too large for it."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        try:
            number = float(seconds)
        except OverflowError:
            return math.inf if seconds > 0 else 0.0
        if not math.isnan(number):
            return number
    raise BadRequestError(f"{name} must be a number of seconds, got {seconds!r}")


def check_start(start: object) -> None:
    """Check where to begin: an offset, or one by partition."""
    if not isinstance(start, Mapping):
        check_offset(start, "start")
        return
    for partition, offset in start.items():
        check_partition(partition)
        check_offset(offset, "start")


def check_mapping(offsets: object) -> None:
    if not isinstance(offsets, Mapping):
        raise BadRequestError(f"offsets must be {{(topic, partition): offset}}, got {offsets!r}")


def check_places(offsets: Mapping[tuple[str, int], int]) -> None:
    """Check offsets by topic and partition."""
    check_mapping(offsets)
    for place, offset in offsets.items():
        _check_place(place)
        check_offset(offset)


def _check_place(place: object) -> None:
    if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[0], str):
        raise BadRequestError(f"{place!r} is not a pair of topic and partition")
    check_partition(place[1])
