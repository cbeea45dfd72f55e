"""Arguments shared by several commands, and the parsers of their values."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from penstock.cli.quantities import read_duration_ms
from penstock.codec.validation import INT64_MAX
from penstock.errors import BadRequestError, StoreError
from penstock.record import ShardId


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics with this prefix for shell completion, from the server or data directory of
    the command line; none if it cannot be reached."""
    from penstock.cli.target import open_target

    given = context.params
    server, data = given.get("server"), given.get("data")
    namespace = given.get("namespace") or "default"
    try:
        with open_target(server, data, namespace) as store:
            return [name for name in store.topics() if name.startswith(incomplete)]
    except (StoreError, OSError):
        return []


Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="Store directory of Penstock or RocketMQ.", show_default=False
    ),
]
TopicName = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="Name of the topic.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
NewTopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
ShardName = Annotated[
    str,
    typer.Argument(
        metavar="SHARD", help="Shard as TOPIC_PARTITION, for example orders_0.", show_default=False
    ),
]


def read_shard(name: str) -> ShardId:
    return ShardId.parse(name)


_DIGITS_MAX: Final = len(str(INT64_MAX))


def read_offset(text: str) -> int | None:
    """Return the offset; None if the text is not a number."""
    if not _is_digits(text):
        return None
    offset = _read_digits(text)
    if offset is None:
        raise BadRequestError(
            f"offset {text} is above the maximum {INT64_MAX}; write latest for the end"
        )
    return offset


def _is_digits(text: str) -> bool:
    # str.isdigit accepts digits outside ASCII that `int` rejects.
    return text.isascii() and text.isdigit()


def _read_digits(text: str) -> int | None:
    """Return the number; None if it has more than 63 bits. `int` rejects thousands of digits."""
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= _DIGITS_MAX else None
    return None if number is None or number > INT64_MAX else number


def read_time(text: str | None) -> int | None:
    """Return milliseconds since 1970, from such a number or from an ISO time (UTC by default)."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if _is_digits(digits):
        time_ms = _read_digits(digits)
        if time_ms is None:
            raise BadRequestError(f"time {text} is above the maximum of {INT64_MAX} ms since 1970")
        return time_ms if digits == text else -time_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(
            f"{text!r} is not a time; write 2026-01-31T12:00:00+01:00 or milliseconds since 1970"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def read_ago(text: str) -> int | None:
    """Return the milliseconds of a value such as -90m or -7d; None without a leading minus."""
    return read_duration_ms(text[1:]) if text.startswith("-") else None


def confirm(question: str, *, yes: bool) -> None:
    """Ask before an operation that cannot be undone; fail without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequestError(
            f"{question} Cannot ask: stdin is not a terminal. Add --yes. Nothing was changed"
        )
    typer.confirm(question, abort=True)


def read_key(text: str | None, hexadecimal: str | None) -> bytes | None:
    """Return a key given as text or in hexadecimal."""
    if hexadecimal is None:
        return None if text is None else text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(hexadecimal)
    except ValueError as error:
        raise BadRequestError(f"{hexadecimal!r} is not a hexadecimal number") from error
