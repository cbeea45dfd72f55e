"""`penstock consume`: print the records of a topic."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from msgspec import Struct

from penstock.adapter import Message
from penstock.api import Consumer, Store, Topic, TopicInfo
from penstock.cli.arguments import AsJson, TopicName, read_key, read_offset, read_time
from penstock.cli.output import json_bytes, print_json
from penstock.cli.signals import Interrupts, interrupts
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError, UnknownTopicError
from penstock.record import Offset

COMMIT_RECORDS: Final = 500
RECREATE_WAIT_S: Final = 5.0
"""How long `--follow` waits for a deleted topic to be created again."""
COMMIT_INTERVAL_S: Final = 1.0
"""Offsets are committed after this many records or seconds, and at the end. After a kill, records
printed since the last commit are printed again."""


class Selection(Struct, frozen=True, kw_only=True):
    """The records to print."""

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
        typer.Option(
            "--group",
            "-g",
            help="Resume at the committed offsets of this consumer group, and commit.",
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", help="Start offset: a number, earliest or latest."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Start time: 2026-01-31T12:00, or milliseconds since 1970."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Read only this partition.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Print only records with this key.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Print only records with this tag.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Exit after this many records.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Keep waiting for new records until Ctrl-C or SIGTERM."
        ),
    ] = False,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Print the values of a topic's records, or all fields with --json.

    penstock consume orders --group billing --follow
    """
    selection = Selection(
        group=group,
        offset=offset,
        since_ms=read_time(since),
        partition=partition,
        key=read_key(key, None),
        tag=tag,
        follow=follow,
    )
    _check(selection)
    output = _Output(selection, limit, as_json=as_json)
    with (
        contextlib.suppress(*([KeyboardInterrupt] if follow else [])),
        interrupts() as signals,
        open_target(server, data, namespace) as store,
    ):
        if group is not None:
            _print_for_group(_Reader(store, group, topic), output, signals, follow=follow)
            return
        for message in _topic_messages(store.topic(topic), selection):
            output.print(message)
            if output.is_full:
                break


def _check(selection: Selection) -> None:
    if selection.group is not None:
        if selection.offset is not None or selection.since_ms is not None:
            raise BadRequestError(
                "--group resumes at its committed offsets: drop --offset and --since, or run "
                "`penstock groups reset`"
            )
        if selection.partition is not None:
            raise BadRequestError("--group reads all partitions: drop --partition")
    if selection.offset is None:
        return
    if selection.since_ms is not None:
        raise BadRequestError("give --offset or --since, not both")
    if selection.offset not in ("earliest", "latest") and read_offset(selection.offset) is None:
        raise BadRequestError(
            f"{selection.offset!r} is not an offset; write earliest, latest or a number from 0"
        )


class _Output:
    """Prints the selected records, up to the limit."""

    def __init__(self, selection: Selection, limit: int | None, *, as_json: bool) -> None:
        self._selection: Final = selection
        self._left = limit
        self._as_json: Final = as_json

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def print(self, message: Message) -> None:
        """Print and flush a record that is selected."""
        if not self._selection.matches(message):
            return
        _print(message, as_json=self._as_json)
        if self._left is not None:
            self._left -= 1


class _Progress:
    """Tracks the printed and the committed offsets of a group."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer: Final = consumer
        # All partitions, also those without records, so that their lag is known.
        self._printed = dict(consumer.positions)
        self._saved: dict[tuple[str, int], Offset] = {}
        self._count, self._saved_at = 0, time.monotonic()

    def begin(self, page: Sequence[Message]) -> None:
        """Begin a page; all records before it are printed. The consumer's positions are after the
        page and include new partitions, deleted records and a recreated topic."""
        self._printed = dict(self._consumer.positions)
        for message in reversed(page):
            self._printed[message.topic, message.partition] = message.offset

    def mark_printed(self, message: Message) -> None:
        self._printed[message.topic, message.partition] = Offset(message.offset + 1)
        self._count += 1
        if self._count >= COMMIT_RECORDS:
            self.save()

    def save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= COMMIT_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Commit the printed offsets. A member that exceeded its session has lost its partitions;
        their records are printed again by other members."""
        if self._saved != self._printed:
            if not self._consumer.commit_handled(self._printed):
                self._printed = dict(self._consumer.positions)
            self._saved = dict(self._printed)
        self._count, self._saved_at = 0, time.monotonic()


class _Reader:
    """A group consumer that commits the printed offsets before its partitions are revoked."""

    def __init__(self, store: Store, group: str, topic: str) -> None:
        self._begun = False
        self.consumer: Final = store.consumer(
            group, [topic], on_revoked=self._save, on_lost=lambda _: None
        )
        self.progress: Final = _Progress(self.consumer)
        self._begun = True

    def _save(self, _partitions: list[tuple[str, int]]) -> None:
        if self._begun:
            self.progress.save()


def _print_for_group(
    reader: _Reader, output: _Output, signals: Interrupts, *, follow: bool
) -> None:
    """Print the records after a group's committed offsets, and commit them once printed."""
    consumer, progress = reader.consumer, reader.progress
    with consumer:
        try:
            while page := _next_page(consumer, progress, follow=follow):
                for message in page:
                    with signals.held():  # a printed record is always counted
                        output.print(message)
                        progress.mark_printed(message)
                    if output.is_full:
                        return
                    progress.save_if_due()
        finally:
            progress.save()


def _next_page(consumer: Consumer, progress: _Progress, *, follow: bool) -> list[Message]:
    while True:
        page = consumer.poll(COMMIT_INTERVAL_S if follow else 0.0)
        progress.begin(page)
        if not page and not follow:
            consumer.check_errors()
        if page or not follow:
            return page
        progress.save()


def _topic_messages(topic: Topic, selection: Selection) -> Iterator[Message]:
    topic_id = topic.describe().topic_id
    positions = _start_offsets(topic, selection)
    for message in topic.records(selection.partition, start=dict(positions), tag=selection.tag):
        positions[message.partition] = message.record.offset + 1
        yield message
    while selection.follow:
        page, info = _next_topic_page(topic, positions)
        if info.topic_id != topic_id:
            # Offsets of the old topic, and the page just read, do not apply to the new one.
            typer.echo(
                f"{topic.name} was deleted and created again; reading from its start", err=True
            )
            topic_id = info.topic_id
            positions = dict.fromkeys(positions, 0)
            continue
        for message in page:
            positions[message.partition] = message.record.offset + 1
            yield message
        if selection.partition is None:
            for partition in range(len(positions), info.partition_count):
                positions[partition] = 0


def _start_offsets(topic: Topic, selection: Selection) -> dict[int, int]:
    """Return the start offsets by partition."""
    if selection.since_ms is not None:
        starts = {
            partition: int(offset)
            for partition, offset in topic.offsets_at(selection.since_ms).items()
        }
    elif selection.offset == "latest":
        starts = {
            partition.partition: int(partition.commit) for partition in topic.describe().bounded
        }
    else:
        first = read_offset(selection.offset or "") or 0
        starts = dict.fromkeys(range(topic.partitions), first)
    if selection.partition is None:
        return starts
    if selection.partition not in starts:
        raise BadRequestError(
            f"topic {topic.name!r} has no partition {selection.partition}: it has {len(starts)} "
            "partitions, numbered from 0"
        )
    return {selection.partition: starts[selection.partition]}


def _next_topic_page(topic: Topic, positions: dict[int, int]) -> tuple[list[Message], TopicInfo]:
    """Return new records and the topic's state; wait a while for a deleted topic to return."""
    until = time.monotonic() + RECREATE_WAIT_S
    while True:
        try:
            return _wait_for_page(topic, positions), topic.describe()
        except UnknownTopicError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)


def _wait_for_page(topic: Topic, positions: dict[int, int]) -> list[Message]:
    """Wait up to a second for records, and return them."""
    if not topic.wait(positions, seconds=1.0):
        return []
    ends = {partition.partition: partition.commit for partition in topic.describe().bounded}
    page: list[Message] = []
    for partition, position in list(positions.items()):
        records = topic.read(partition, position)
        page += [Message(topic.name, partition, record) for record in records]
        if not records:
            # The records were deleted; waiting at this position would return immediately.
            positions[partition] = max(position, ends.get(partition, 0))
    return page


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
                "tags": [json_bytes(tag) for tag in record.tags],
                "headers": [
                    [json_bytes(name), json_bytes(value)] for name, value in record.headers
                ],
            }
        ]
    )
