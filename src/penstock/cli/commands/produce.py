"""`penstock produce`: write records from stdin or files."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from penstock.cli.arguments import TopicName, read_key
from penstock.cli.commands.line_batches import batches_of_files, batches_of_lines
from penstock.cli.exit_codes import INTERRUPTED
from penstock.cli.output import count_text, printable
from penstock.cli.signals import stopping
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError, UnknownTopicError
from penstock.record import Record

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Files to send, one record per file; without files, one record per stdin line.",
    ),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        help="Text between key and value in each line.",
    ),
]
Tags = Annotated[list[str], typer.Option("--tag", "-t", help="Tag of every record (repeatable).")]
HeaderPairs = Annotated[
    list[str],
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="Header of every record (repeatable)."
    ),
]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        min=0,
        help="Partition to write to.",
        show_default="chosen by the topic's partitioner",
    ),
]


def produce(
    topic: TopicName,
    files: Files = None,
    key: Key = None,
    separator: KeySeparator = None,
    tags: Tags = [],  # noqa: B006 - typer's way to say "none given"
    headers: HeaderPairs = [],  # noqa: B006 - as above
    partition: Partition = None,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Write records to a topic, one per line of stdin or one per file.

    Lines are batched for up to 100 ms. On Ctrl-C or SIGTERM the lines read so far are written.

    echo "3 apples" | penstock produce orders --key o-17 --tag eu

    tail -f access.log | penstock produce logs
    """
    builder = _RecordBuilder(read_key(key, None), tuple(tags), _headers(headers), separator)
    written = 0
    with open_target(server, data, namespace) as store, stopping() as stop:
        try:
            for batch in (
                batches_of_files(files, stop) if files else batches_of_lines(sys.stdin.buffer, stop)
            ):
                records = [builder.record(value, is_line=not files) for value in batch]
                written += len(store.topic(topic).write_many(records, partition=partition))
        except UnknownTopicError as error:
            hint = f"create it: penstock topic create {shlex.quote(topic)}"
            raise BadRequestError(f"{error}; {hint}") from error
        except BaseException:
            if written:
                _print_summary(written, topic)
            raise
    _print_summary(written, topic)
    if stop.is_asked:
        raise typer.Exit(INTERRUPTED)


def _print_summary(written: int, topic: str) -> None:
    typer.echo(f"wrote {count_text(written, 'record')} to {printable(topic)}", err=True)


class _RecordBuilder:
    """Builds the records of a command from its options."""

    def __init__(
        self,
        key: bytes | None,
        tags: tuple[str, ...],
        headers: tuple[tuple[str, bytes | None], ...],
        separator: str | None,
    ) -> None:
        if key is not None and separator is not None:
            raise BadRequestError("give --key or --key-separator, not both")
        if separator == "":
            raise BadRequestError("--key-separator must not be empty")
        self._key = key
        self._tags = tags
        self._headers = headers
        self._separator = (
            None if separator is None else separator.encode("utf-8", "surrogateescape")
        )

    def record(self, value: bytes, *, is_line: bool) -> Record:
        key = self._key
        if is_line and self._separator is not None:
            line_key, separator, rest = value.partition(self._separator)
            if separator:
                key, value = line_key, rest
        return Record(value, key, self._tags, self._headers)


def _headers(given: list[str]) -> tuple[tuple[str, bytes | None], ...]:
    pairs = []
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            raise BadRequestError(f"{pair!r} is not a header; write NAME=VALUE")
        pairs.append((name, value.encode("utf-8", "surrogateescape")))
    return tuple(pairs)
