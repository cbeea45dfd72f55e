"""Subscriptions that begin with history: `$replay/{start}/{filter}`, or the user properties
`start-offset` and `start-time` of SUBSCRIBE.

    earliest          all that is stored
    1234              from this offset on, in each shard that the filter can reach
    @1700000000       from this time on: seconds since 1970, or milliseconds from 13 digits on
    @2026-05-01T12:00:00Z
    90s 15m 12h 7d    messages that are not older
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

PREFIX: Final = "$replay/"
EARLIEST: Final = "earliest"
OFFSET_PROPERTY: Final = "start-offset"
TIME_PROPERTY: Final = "start-time"
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MILLISECOND_DIGITS: Final = 13
_DIGITS_MAX: Final = 18


class Start(NamedTuple):
    """Where history begins: at an offset of each shard, or at a time. Neither: at the earliest."""

    offset: int | None = None
    time_ms: int | None = None


def parse_start(text: str, now_ms: int) -> Start | None:
    """Return where history begins; None: the text says nothing of the kind."""
    if text == EARLIEST:
        return Start()
    if _is_number(text):
        return Start(offset=int(text))
    if text.startswith("@"):
        time_ms = _parse_time(text[1:])
        return None if time_ms is None else Start(time_ms=time_ms)
    duration = _DURATION.fullmatch(text)
    if duration is None:
        return None
    return Start(time_ms=max(0, now_ms - int(duration[1]) * _SECONDS[duration[2]] * 1000))


def split_replay(topic_filter: str) -> tuple[str, str] | None:
    """Return start and filter of `$replay/{start}/{filter}`; None: the filter is not complete."""
    start, separator, inner = topic_filter.removeprefix(PREFIX).partition("/")
    return (start, inner) if separator and inner else None


def start_of_properties(properties: list[tuple[str, str]] | None) -> str:
    """Return the start that the user properties of SUBSCRIBE name, as in `$replay`; empty: none."""
    for name, value in properties or ():
        if name == OFFSET_PROPERTY:
            return value
        if name == TIME_PROPERTY:
            return value if _DURATION.fullmatch(value) else f"@{value.removeprefix('@')}"
    return ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _parse_time(text: str) -> int | None:
    if _is_number(text):
        number = int(text)
        return number if len(text) >= _MILLISECOND_DIGITS else number * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))
