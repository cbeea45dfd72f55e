"""Arguments that several commands take, and how their text is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.errors import BadRequestError
from penstock.record import ShardId

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="The store's directory, Penstock's or RocketMQ's.", show_default=False
    ),
]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
ShardName = Annotated[
    str,
    typer.Argument(metavar="SHARD", help="Topic and partition: orders_0.", show_default=False),
]


def read_shard(name: str) -> ShardId:
    return ShardId.parse(name)


def read_time(text: str | None) -> int | None:
    """Return milliseconds since 1970 for a number of them, or for a time in ISO form; it is UTC
    unless it says otherwise."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(
            f"{text!r} is no time; write 2026-01-31T12:00:00+01:00, or milliseconds since 1970"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def read_key(text: str | None, hexadecimal: str | None) -> bytes | None:
    """Return a key given as text or as hexadecimal digits."""
    if hexadecimal is None:
        return None if text is None else text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(hexadecimal)
    except ValueError as error:
        raise BadRequestError(f"{hexadecimal!r} is no hexadecimal number") from error
