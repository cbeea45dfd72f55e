"""Shows what happens to supervised nodes: one rewritten line per node while they start on a
terminal, else and afterwards a line per event."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from penstock.cli.output import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class LineDisplay:
    """Prints states and events as lines; states only when they change."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        yield

    def state(self, node: int, text: str) -> None:
        self.event(f"node {node}: {text}")

    def output(self, node: int, line: str) -> None:
        self.event(f"node {node} | {line}")

    def event(self, text: str) -> None:
        typer.echo(printable(text), err=True)


class TerminalDisplay(LineDisplay):
    """Shows a line per node that is rewritten while the nodes start, then prints lines."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[int, TaskID] = {}

    @contextmanager
    def starting(self) -> Iterator[None]:
        from rich import progress as bars
        from rich.console import Console

        columns = (
            bars.SpinnerColumn(finished_text="✓"),
            bars.TextColumn("{task.description}", markup=False),
            bars.TimeElapsedColumn(),
        )
        with bars.Progress(*columns, console=Console(stderr=True)) as progress:
            self._progress = progress
            try:
                yield
            finally:
                self._progress = None

    def state(self, node: int, text: str) -> None:
        progress = self._progress
        if progress is None:
            super().state(node, text)
            return
        if node not in self._tasks:
            self._tasks[node] = progress.add_task("", total=1)
        shown = printable(f"node {node}: {text}")
        done = 1 if text == "ready" else 0
        progress.update(self._tasks[node], description=shown, completed=done)

    def event(self, text: str) -> None:
        progress = self._progress
        if progress is None:
            super().event(text)
            return
        progress.console.print(printable(text), markup=False, highlight=False)


def choose_display() -> LineDisplay:
    return TerminalDisplay() if sys.stderr.isatty() else LineDisplay()
