"""`penstock cluster up`: a cluster of several processes on this machine, for trying."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.local_cluster.directory import (
    NODES_DEFAULT,
    NODES_MAX,
    ClusterDirectory,
    parse_overrides,
)
from penstock.cli.local_cluster.supervisor import LocalCluster
from penstock.cli.output import print_line, printable
from penstock.errors import DeadlineError
from penstock.platform.clock import SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PORTS_EACH: Final = 10


class _Lines:
    """Prints states and events as lines; states only when they change."""

    def state(self, node: int, text: str) -> None:
        self.event(f"node {node}: {text}")

    def output(self, node: int, line: str) -> None:
        self.event(f"node {node} | {line}")

    def event(self, text: str) -> None:
        typer.echo(printable(text), err=True)


class _Display(_Lines):
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


class _Signals:
    """The first SIGINT or SIGTERM asks to stop, the second one to hurry."""

    def __init__(self) -> None:
        self.stopping: Final = threading.Event()
        self.hurry: Final = threading.Event()

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        (self.hurry if self.stopping.is_set() else self.stopping).set()


def up(
    data: Annotated[
        str,
        typer.Option("--data", "-d", metavar="DIR", help="Directory of the cluster."),
    ],
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            "-n",
            min=1,
            max=NODES_MAX,
            help=f"Number of nodes of a new cluster. Default: {NODES_DEFAULT}.",
        ),
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            min=1024,
            max=65_532,
            help=f"First port; each node takes four of the next {_PORTS_EACH}. Default: free ones.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start nodes again that end by themselves.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", help="Maximum time until all nodes are ready."),
    ] = 120.0,
    stop_wait: Annotated[
        float,
        typer.Option(
            "--stop-wait", metavar="SECONDS", help="Time to stop in order; then nodes are killed."
        ),
    ] = 30.0,
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Setting of all nodes (repeatable)."
        ),
    ] = [],  # noqa: B006 - typer's way to say "none given"
) -> None:
    """Run a local cluster until Ctrl-C; the next run continues with the same directory.

    Each node is a `penstock serve` of its own. For trying and for tests: all nodes share this
    machine and its disk.
    """
    settings = parse_overrides(overrides)
    with closing(ClusterDirectory(data, nodes=nodes, port_base=port_base)) as directory:
        _run(directory, settings, restarts=restart, wait=wait, stop_wait=stop_wait)


def _run(
    directory: ClusterDirectory,
    settings: dict[str, dict[str, object]],
    *,
    restarts: bool,
    wait: float,
    stop_wait: float,
) -> None:
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signals.handle)
    display = _Display()
    cluster = LocalCluster(directory, display, signals.stopping, SystemClock(), restarts=restarts)
    try:
        if _start(cluster, display, settings, wait):
            _print_addresses(cluster, directory)
            cluster.watch()
        display.event("stopping all nodes")
    finally:
        killed = cluster.stop(stop_wait, signals.hurry)
    if killed:
        listed = ", ".join(str(node) for node in killed)
        raise DeadlineError(
            f"node {listed} did not stop within {stop_wait:g} s and was killed; its log in "
            f"{directory.path} says what it waited for"
        )
    display.event("stopped")


def _start(
    cluster: LocalCluster, display: _Display, settings: dict[str, dict[str, object]], wait: float
) -> bool:
    if not sys.stderr.isatty():
        cluster.start(settings)
        return cluster.wait_ready(wait)
    with display.starting():
        cluster.start(settings)
        return cluster.wait_ready(wait)


def _print_addresses(cluster: LocalCluster, directory: ClusterDirectory) -> None:
    ports = [node.ports for node in cluster.nodes]
    storage = ",".join(one.storage_address for one in ports)
    kafka = ",".join(one.kafka_address for one in ports)
    print_line(f"A cluster of {len(ports)} nodes serves {directory.path}")
    for node in cluster.nodes:
        one = node.ports
        print_line(
            f"  node {one.node}  storage API {one.storage_address}  Kafka {one.kafka_address}  "
            f"http://127.0.0.1:{one.http}/health  process {node.pid}"
        )
    last = cluster.nodes[-1]
    for line in (
        "Try, in another terminal:",
        f"  export PENSTOCK_SERVER={storage}",
        "  penstock cluster status",
        f"  penstock topic create orders --partitions {len(ports)}",
        '  echo "3 apples" | penstock produce orders --key o-17',
        "  penstock consume orders --follow",
        f"  kill -9 {last.pid}    # node {last.node}",
        f"Kafka clients: bootstrap.servers={kafka}",
        f"Logs: {directory.path}/node-*/log. Stop with Ctrl-C.",
    ):
        print_line(line)
    sys.stdout.flush()
