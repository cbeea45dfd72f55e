"""`penstock produce` and `penstock consume`: records in and out by the command line."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Annotated, BinaryIO, Final

import typer

from penstock.adapter.locations import Message
from penstock.api import Store
from penstock.cli.arguments import AsJson, read_key, read_time
from penstock.cli.output import json_bytes, print_json, print_line
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError
from penstock.record import Record

BATCH: Final = 500

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


def produce(
    topic: TopicName,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="A record of each file; else one of each line."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Lines are KEY, this text, VALUE."),
    ] = None,
    tags: Annotated[
        list[str], typer.Option("--tag", "-t", help="A tag; several may be given.")
    ] = [],  # noqa: B006 - typer's way to say "none given"
    headers: Annotated[list[str], typer.Option("--header", "-H", metavar="NAME=VALUE")] = [],  # noqa: B006 - as above
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Write records: one per line of the standard input, or one per file.

    echo "3 apples" | penstock produce orders --key o-17 --tag eu
    """
    shape = _Shape(read_key(key, None), tuple(tags), _headers(headers), separator)
    count = 0
    with open_target(server, data, namespace) as store:
        batch: list[Record] = []
        for value in _contents(files) if files else _lines(sys.stdin.buffer):
            batch.append(shape.record(value, is_line=not files))
            if len(batch) == BATCH:
                store.topic(topic).write_many(batch, partition=partition)
                count += len(batch)
                batch = []
        if batch:
            store.topic(topic).write_many(batch, partition=partition)
            count += len(batch)
    typer.echo(f"wrote {count} records to {topic}", err=True)


class _Shape:
    """What every record of one command has in common."""

    def __init__(
        self,
        key: bytes | None,
        tags: tuple[str, ...],
        headers: tuple[tuple[str, bytes | None], ...],
        separator: str | None,
    ) -> None:
        if key is not None and separator is not None:
            raise BadRequestError("give --key or --key-separator, not both")
        self._key = key
        self._tags = tags
        self._headers = headers
        self._separator = None if separator is None else separator.encode()

    def record(self, value: bytes, *, is_line: bool) -> Record:
        key = self._key
        if is_line and self._separator is not None:
            found, separator, rest = value.partition(self._separator)
            if separator:
                key, value = found, rest
        return Record(value, key, self._tags, self._headers)


def _headers(given: list[str]) -> tuple[tuple[str, bytes | None], ...]:
    pairs = []
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            raise BadRequestError(f"{pair!r} is no header; write NAME=VALUE")
        pairs.append((name, value.encode("utf-8", "surrogateescape")))
    return tuple(pairs)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _contents(paths: list[str]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as file:
            yield file.read()


def consume(
    topic: TopicName,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Go on where this group stopped, and commit."),
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, help="Begin at this offset.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Begin at this time (ISO, or milliseconds).")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Only records of this key.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Only records with this tag.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Stop after so many records.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Print the records of a topic: their values, or everything as JSON.

    penstock consume orders --group billing --follow
    """
    with open_target(server, data, namespace) as store:
        found = _select(store, topic, group, offset, read_time(since), partition, follow=follow)
        matching = _matching(found, read_key(key, None), tag)
        for message in islice(matching, limit):
            _print(message, as_json=as_json)
        matching.close()
        found.close()


def _matching(
    messages: Iterator[Message], key: bytes | None, tag: str | None
) -> Generator[Message, None, None]:
    for message in messages:
        record = message.record
        if key in (None, record.key) and (tag is None or tag in record.tags):
            yield message


def _select(
    store: Store,
    topic: str,
    group: str | None,
    offset: int | None,
    since_ms: int | None,
    partition: int | None,
    *,
    follow: bool,
) -> Generator[Message, None, None]:
    if group is not None and (offset is not None or since_ms is not None):
        raise BadRequestError("a group goes on where it stopped; use `penstock groups reset`")
    if group is not None:
        with store.consumer(group, [topic]) as consumer:
            # Committed when the next one is asked for, or no more are: it was printed by then.
            for message in consumer.follow() if follow else iter(consumer):
                try:
                    yield message
                except GeneratorExit:
                    consumer.commit({(topic, message.partition): message.record.offset + 1})
                    raise
                consumer.commit({(topic, message.partition): message.record.offset + 1})
        return
    handle = store.topic(topic)
    start: dict[int, int] = dict.fromkeys(range(handle.partitions), offset or 0)
    if since_ms is not None:
        start = {one: int(at) for one, at in handle.offsets_at(since_ms).items()}
    positions = dict(start)
    for message in handle.records(partition, start=start):
        positions[message.partition] = message.record.offset + 1
        yield message
    while follow:
        yield from _new(store, topic, partition, positions)


def _new(
    store: Store, topic: str, partition: int | None, positions: dict[int, int]
) -> Iterator[Message]:
    store.topic(topic).wait(positions, seconds=1.0)
    for one in positions if partition is None else (partition,):
        for record in store.topic(topic).read(one, positions[one]):
            positions[one] = record.offset + 1
            yield Message(topic, one, record)


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


def retention_run(
    server: Server = None, data: Data = None, namespace: Namespace = "default"
) -> None:
    """Delete what the topics' retention no longer keeps, at once."""
    with open_target(server, data, namespace) as store:
        store.run_upkeep()
    print_line("retention, compaction and sealing done")
