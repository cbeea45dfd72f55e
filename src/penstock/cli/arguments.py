"""Arguments that several commands take, and how their text is read."""

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
    """Return the topics whose names begin so, for the shell's completion: of the server, or of the
    directory, that the command line names. Without an answer there is nothing to complete."""
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
        metavar="DIR", help="The store's directory, Penstock's or RocketMQ's.", show_default=False
    ),
]
TopicName = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic's name.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
NewTopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
ShardName = Annotated[
    str,
    typer.Argument(metavar="SHARD", help="Topic and partition: orders_0.", show_default=False),
]


def read_shard(name: str) -> ShardId:
    return ShardId.parse(name)


_DIGITS_MAX: Final = len(str(INT64_MAX))


def read_offset(text: str) -> int | None:
    """Return the offset that a text of digits is; None for any other text."""
    if not _is_digits(text):
        return None
    offset = _read_digits(text)
    if offset is None:
        raise BadRequestError(f"no offset is above {INT64_MAX}; say latest for the end")
    return offset


def _is_digits(text: str) -> bool:
    # There are digits that are not ASCII, and that `int` does not read.
    return text.isascii() and text.isdigit()


def _read_digits(text: str) -> int | None:
    """Return the number; None if it has more than 63 bits. `int` refuses thousands of digits."""
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= _DIGITS_MAX else None
    return None if number is None or number > INT64_MAX else number


def read_time(text: str | None) -> int | None:
    """Return milliseconds since 1970 for a number of them, or for a time in ISO form; it is UTC
    unless it says otherwise."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if _is_digits(digits):
        moment_ms = _read_digits(digits)
        if moment_ms is None:
            raise BadRequestError(f"no time is above {INT64_MAX} milliseconds since 1970")
        return moment_ms if digits == text else -moment_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(
            f"{text!r} is no time; write 2026-01-31T12:00:00+01:00, or milliseconds since 1970"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def read_ago(text: str) -> int | None:
    """Return the milliseconds of a text such as -90m or -7d; None for one that is not negative."""
    return read_duration_ms(text[1:]) if text.startswith("-") else None


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; refuse where there is no one to answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequestError(
            f"{question} There is no terminal to confirm it: give --yes. Nothing was done"
        )
    typer.confirm(question, abort=True)


def read_key(text: str | None, hexadecimal: str | None) -> bytes | None:
    """Return a key given as text or as hexadecimal digits."""
    if hexadecimal is None:
        return None if text is None else text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(hexadecimal)
    except ValueError as error:
        raise BadRequestError(f"{hexadecimal!r} is no hexadecimal number") from error
