"""Output of commands: tables for people, JSON lines for programs, progress on stderr.

Text prints control characters escaped, so that records and names cannot inject terminal escape
sequences. In JSON, bytes that are not UTF-8 are `{"base64": …}`.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from penstock.record import ShardId, StoredRecord

if TYPE_CHECKING:
    # Imported by the functions that need it: commands without a table start sooner.
    from rich.console import Console
    from rich.text import Text

PREVIEW_MAX: Final = 60
"""Characters of a key or a value in a table."""

Cell: TypeAlias = "str | int | Text | None"
ShowProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a step, the work done and the total."""


def print_json(items: Iterable[object]) -> None:
    """Print one line of JSON for each item."""
    for item in items:
        sys.stdout.buffer.write(msgspec.json.encode(item) + b"\n")
    sys.stdout.buffer.flush()


def print_table(columns: Iterable[str], rows: Iterable[Iterable[Cell]], title: str = "") -> None:
    """Print a table. Columns whose name begins with `#` hold numbers and are aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=_title(title), title_justify="left", pad_edge=False)
    for name in columns:
        number = name.startswith("#")
        # Never wrap a number; only text columns fold on a narrow terminal.
        table.add_column(
            name.removeprefix("#"),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console().print(table)


def print_fields(fields: Iterable[tuple[str, Cell]], title: str = "") -> None:
    """Print names and values, one pair per line."""
    from rich.table import Table

    table = Table(box=None, show_header=False, title=_title(title), title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(_cell(name), _cell(value))
    console().print(table)


def print_line(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")


def console() -> Console:
    """Return a console for the current stdout. In a pipe, lines are not wrapped."""
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=10_000)


def _cell(value: Cell) -> Text:
    # Never a plain string: rich would parse markup in it.
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return Text("" if value is None else printable(str(value)))


def _title(text: str) -> Text | None:
    from rich.text import Text

    return Text(printable(text), style="table.title") if text else None


@contextmanager
def progress_bar() -> Iterator[ShowProgress | None]:
    """Show a progress bar on stderr if it is a terminal."""
    from rich import progress as bars
    from rich.console import Console

    target = Console(stderr=True)
    if not target.is_terminal:
        yield None
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=target, transient=True) as progress:
        tasks = {"": progress.add_task("", total=None, visible=False)}

        def show(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = progress.add_task(task, total=total)
            progress.update(tasks[task], completed=done, total=total)

        yield show


def step_progress(show: ShowProgress | None, step: str) -> Callable[[int, int], None] | None:
    """Return the progress callback of a single step; None without a progress bar."""
    return None if show is None else lambda done, total: show(step, done, total)


def printable(data: bytes | str | None, limit: int | None = None) -> str:
    """Return text for a terminal with unprintable characters escaped."""
    if data is None:
        return ""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def value_text(value: bytes | None, limit: int | None = None) -> Text:
    """Return a value for a terminal; null differs from an empty value."""
    from rich.text import Text

    if value is None:
        return Text("(null)", style="dim")
    return Text(printable(value, limit))


def count_text(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def size_text(size: int) -> str:
    """Return a size with a binary unit."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def time_text(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return ""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def json_bytes(data: bytes | str | None) -> str | dict[str, str] | None:
    """Return bytes as a JSON string, or base64 if they are not UTF-8."""
    if data is None:
        return None
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def json_record(shard: ShardId, record: StoredRecord) -> dict[str, object]:
    """Return all fields of a record for JSON."""
    return {
        "shard": shard.name,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "tags": [json_bytes(tag) for tag in record.tags],
        "headers": [[json_bytes(name), json_bytes(value)] for name, value in record.headers],
        "expires_at_ms": record.expires_at_ms,
        "store_timestamp_ms": record.store_timestamp_ms,
        "leader_epoch": record.leader_epoch,
    }
