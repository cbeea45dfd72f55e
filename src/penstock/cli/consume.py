"""`penstock consume`: records out by the command line."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Annotated, Final

import typer
from msgspec import Struct

from penstock.adapter.locations import Message
from penstock.api import Store, Topic
from penstock.cli.arguments import AsJson, TopicName, read_key, read_time
from penstock.cli.output import json_bytes, print_json
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError

COMMIT_RECORDS: Final = 500
COMMIT_S: Final = 1.0
"""A group is saved after so many records or so long, and at the end: what was printed after the
last time is printed again when the command is killed."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What is asked for."""

    group: str | None
    offset: str | None
    since_ms: int | None
    partition: int | None
    key: bytes | None
    tag: str | None
    follow: bool

    def matches(self, message: Message) -> bool:
        record = message.record
        return self.key in (None, record.key) and (self.tag is None or self.tag in record.tags)


def consume(
    topic: TopicName,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Go on where this group stopped, and commit."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", help="Begin at an offset, at `earliest` or at `latest`."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Begin at a time: 2026-01-31T12:00, or milliseconds."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Only records of this key.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Only records with this tag.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Stop after so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Print the records of a topic: their values, or everything as JSON.

    penstock consume orders --group billing --follow
    """
    wanted = Wanted(
        group=group,
        offset=offset,
        since_ms=read_time(since),
        partition=partition,
        key=read_key(key, None),
        tag=tag,
        follow=follow,
    )
    _check(wanted)
    with (
        contextlib.suppress(KeyboardInterrupt),
        open_target(server, data, namespace) as store,
        contextlib.closing(_messages(store, topic, wanted)) as messages,
    ):
        for message in islice(filter(wanted.matches, messages), limit):
            _print(message, as_json=as_json)


def _check(wanted: Wanted) -> None:
    if wanted.group is not None:
        if wanted.offset is not None or wanted.since_ms is not None:
            raise BadRequestError("a group goes on where it stopped; use `penstock groups reset`")
        if wanted.partition is not None:
            raise BadRequestError("a group reads all partitions; leave --partition out")
    if wanted.offset is None:
        return
    if wanted.since_ms is not None:
        raise BadRequestError("give --offset or --since, not both")
    is_number = wanted.offset.isascii() and wanted.offset.isdigit()
    if wanted.offset not in ("earliest", "latest") and not is_number:
        raise BadRequestError(
            f"{wanted.offset!r} is no place; say earliest, latest or an offset from 0 on"
        )


def _messages(store: Store, topic: str, wanted: Wanted) -> Generator[Message, None, None]:
    if wanted.group is not None:
        return _of_group(store, topic, wanted.group, follow=wanted.follow)
    return _of_topic(store.topic(topic), wanted)


def _of_group(
    store: Store, topic: str, group: str, *, follow: bool
) -> Generator[Message, None, None]:
    with store.consumer(group, [topic]) as consumer:
        # All partitions, those without a record, too: then its lag is known.
        printed: dict[tuple[str, int], int] = dict(consumer.positions)
        count, saved = 0, time.monotonic()
        try:
            for message in consumer.follow() if follow else iter(consumer):
                try:
                    yield message
                except GeneratorExit:
                    printed[topic, message.partition] = message.record.offset + 1
                    raise
                printed[topic, message.partition] = message.record.offset + 1
                count += 1
                if count >= COMMIT_RECORDS or time.monotonic() - saved >= COMMIT_S:
                    consumer.commit(printed)
                    count, saved = 0, time.monotonic()
        finally:
            consumer.commit(printed)


def _of_topic(topic: Topic, wanted: Wanted) -> Generator[Message, None, None]:
    positions = _starts(topic, wanted)
    for message in topic.records(wanted.partition, start=dict(positions), tag=wanted.tag):
        positions[message.partition] = message.record.offset + 1
        yield message
    while wanted.follow:
        yield from _new(topic, positions)
        if wanted.partition is None:
            for one in range(len(positions), topic.partitions):
                positions[one] = 0


def _starts(topic: Topic, wanted: Wanted) -> dict[int, int]:
    """Return where to begin, by partition."""
    if wanted.since_ms is not None:
        found = {one: int(at) for one, at in topic.offsets_at(wanted.since_ms).items()}
    elif wanted.offset == "latest":
        found = {one.partition: int(one.commit) for one in topic.describe().bounded}
    else:
        first = 0 if wanted.offset in (None, "earliest") else int(wanted.offset or 0)
        found = dict.fromkeys(range(topic.partitions), first)
    if wanted.partition is None:
        return found
    if wanted.partition not in found:
        raise BadRequestError(
            f"topic {topic.name!r} has {len(found)} partitions, from 0 on; none is "
            f"{wanted.partition}"
        )
    return {wanted.partition: found[wanted.partition]}


def _new(topic: Topic, positions: dict[int, int]) -> Iterator[Message]:
    """Wait a moment, and yield what came."""
    if not topic.wait(positions, seconds=1.0):
        return
    ends = {one.partition: one.commit for one in topic.describe().bounded}
    for one, position in list(positions.items()):
        records = topic.read(one, position)
        for record in records:
            positions[one] = record.offset + 1
            yield Message(topic.name, one, record)
        if not records:
            # What was there is deleted: waiting for it again would end at once.
            positions[one] = max(position, ends.get(one, 0))


def _print(message: Message, *, as_json: bool) -> None:
    record = message.record
    if not as_json:
        sys.stdout.buffer.write((record.value or b"") + b"\n")
        sys.stdout.buffer.flush()
        return
    print_json(
        [
            {
                "topic": message.topic,
                "partition": message.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": json_bytes(record.key),
                "value": json_bytes(record.value),
                "tags": list(record.tags),
                "headers": [[name, json_bytes(value)] for name, value in record.headers],
            }
        ]
    )
