"""`penstock consume`: records out by the command line."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from msgspec import Struct

from penstock.adapter.locations import Message
from penstock.api import Consumer, Store, Topic, TopicInfo
from penstock.cli.arguments import AsJson, TopicName, read_key, read_offset, read_time
from penstock.cli.output import json_bytes, print_json
from penstock.cli.signals import Interrupts, interrupts
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError, UnknownTopicError
from penstock.record import Offset

COMMIT_RECORDS: Final = 500
GONE_S: Final = 5.0
"""How long a topic that is followed may be missing: it may be made anew."""
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
        bool, typer.Option("--follow", "-f", help="Wait for new records, until Ctrl-C or SIGTERM.")
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
    output = _Output(wanted, limit, as_json=as_json)
    with (
        contextlib.suppress(*([KeyboardInterrupt] if follow else [])),
        interrupts() as signals,
        open_target(server, data, namespace) as store,
    ):
        if group is not None:
            _print_for_group(_Reader(store, group, topic), output, signals, follow=follow)
            return
        for message in _of_topic(store.topic(topic), wanted):
            output.take(message)
            if output.is_full:
                break


def _check(wanted: Wanted) -> None:
    if wanted.group is not None:
        if wanted.offset is not None or wanted.since_ms is not None:
            raise BadRequestError("a group goes on where it stopped; use `penstock groups reset`")
        if wanted.partition is not None:
            raise BadRequestError("a group shares all partitions; leave --partition out")
    if wanted.offset is None:
        return
    if wanted.since_ms is not None:
        raise BadRequestError("give --offset or --since, not both")
    if wanted.offset not in ("earliest", "latest") and read_offset(wanted.offset) is None:
        raise BadRequestError(
            f"{wanted.offset!r} is no place; say earliest, latest or an offset from 0 on"
        )


class _Output:
    """Prints the records that are wanted, until there are enough."""

    def __init__(self, wanted: Wanted, limit: int | None, *, as_json: bool) -> None:
        self._wanted: Final = wanted
        self._left = limit
        self._as_json: Final = as_json

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def take(self, message: Message) -> None:
        """When this returns, the record is out, or is not wanted."""
        if not self._wanted.matches(message):
            return
        _print(message, as_json=self._as_json)
        if self._left is not None:
            self._left -= 1


class _Progress:
    """How far a group's records are out, and what the group has saved of that."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer: Final = consumer
        # All partitions, those without a record, too: then its lag is known.
        self._printed = dict(consumer.positions)
        self._saved: dict[tuple[str, int], Offset] = {}
        self._count, self._saved_at = 0, time.monotonic()

    def begin(self, page: Sequence[Message]) -> None:
        """Everything before a page is out. The consumer stands behind it, and has seen partitions
        that are new, deleted records, and a topic that was made anew."""
        self._printed = dict(self._consumer.positions)
        for message in reversed(page):
            self._printed[message.topic, message.partition] = message.offset

    def is_out(self, message: Message) -> None:
        self._printed[message.topic, message.partition] = Offset(message.offset + 1)
        self._count += 1
        if self._count >= COMMIT_RECORDS:
            self.save()

    def save_in_time(self) -> None:
        if time.monotonic() - self._saved_at >= COMMIT_S:
            self.save()

    def save(self) -> None:
        """Commit what is out; a member that was away too long has lost its partitions, whose
        records are printed again by the others."""
        if self._saved != self._printed:
            if not self._consumer.commit_handled(self._printed):
                self._printed = dict(self._consumer.positions)
            self._saved = dict(self._printed)
        self._count, self._saved_at = 0, time.monotonic()


class _Reader:
    """A consumer of a group that saves what is out before its partitions go to another member."""

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
    """Print what a group has not had yet, and commit it: a record that could not be printed is
    not committed."""
    consumer, progress = reader.consumer, reader.progress
    with consumer:
        try:
            while page := _next_page(consumer, progress, follow=follow):
                for message in page:
                    with signals.held():  # what is out is not printed again
                        output.take(message)
                        progress.is_out(message)
                    if output.is_full:
                        return
                    progress.save_in_time()
        finally:
            progress.save()


def _next_page(consumer: Consumer, progress: _Progress, *, follow: bool) -> list[Message]:
    while True:
        page = consumer.poll(COMMIT_S if follow else 0.0)
        progress.begin(page)
        if not page and not follow:
            consumer.check_errors()
        if page or not follow:
            return page
        progress.save()


def _of_topic(topic: Topic, wanted: Wanted) -> Iterator[Message]:
    topic_id = topic.describe().topic_id
    positions = _starts(topic, wanted)
    for message in topic.records(wanted.partition, start=dict(positions), tag=wanted.tag):
        positions[message.partition] = message.record.offset + 1
        yield message
    while wanted.follow:
        page, info = _next(topic, positions)
        if info.topic_id != topic_id:
            # Offsets of the old topic mean nothing in the new one, nor does what was just read.
            typer.echo(f"{topic.name} was deleted and created again: read from its start", err=True)
            topic_id = info.topic_id
            positions = dict.fromkeys(positions, 0)
            continue
        for message in page:
            positions[message.partition] = message.record.offset + 1
            yield message
        if wanted.partition is None:
            for one in range(len(positions), info.partition_count):
                positions[one] = 0


def _starts(topic: Topic, wanted: Wanted) -> dict[int, int]:
    """Return where to begin, by partition."""
    if wanted.since_ms is not None:
        found = {one: int(at) for one, at in topic.offsets_at(wanted.since_ms).items()}
    elif wanted.offset == "latest":
        found = {one.partition: int(one.commit) for one in topic.describe().bounded}
    else:
        first = read_offset(wanted.offset or "") or 0
        found = dict.fromkeys(range(topic.partitions), first)
    if wanted.partition is None:
        return found
    if wanted.partition not in found:
        raise BadRequestError(
            f"topic {topic.name!r} has {len(found)} partitions, from 0 on; none is "
            f"{wanted.partition}"
        )
    return {wanted.partition: found[wanted.partition]}


def _next(topic: Topic, positions: dict[int, int]) -> tuple[list[Message], TopicInfo]:
    """Return what came, and the topic after that: one that is gone is waited for, a moment."""
    until = time.monotonic() + GONE_S
    while True:
        try:
            return _new(topic, positions), topic.describe()
        except UnknownTopicError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)


def _new(topic: Topic, positions: dict[int, int]) -> list[Message]:
    """Wait a moment, and return what came."""
    if not topic.wait(positions, seconds=1.0):
        return []
    ends = {one.partition: one.commit for one in topic.describe().bounded}
    found: list[Message] = []
    for one, position in list(positions.items()):
        records = topic.read(one, position)
        found += [Message(topic.name, one, record) for record in records]
        if not records:
            # What was there is deleted: waiting for it again would end at once.
            positions[one] = max(position, ends.get(one, 0))
    return found


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
