"""`penstock serve --workers N`: N nodes of one cluster, supervised by this process."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.cli.local_cluster.display import LineDisplay, choose_display
from penstock.cli.local_cluster.running import Patience, run_until_signal
from penstock.cli.local_cluster.supervisor import LocalCluster
from penstock.cli.local_cluster.workers_directory import WorkersDirectory
from penstock.cli.output import print_line
from penstock.platform.log import configure_program, get_logger
from penstock.platform.service_manager import READY, STOPPING, notify
from penstock.settings import Settings

_PATIENCE: Final = Patience(start_s=float("inf"), stop_s=50.0, each_s=15.0)
"""All workers stop within the minute that `deploy/penstock.service` grants."""
_COPIES_MAX: Final = 3

_log: Final = get_logger(__name__)


class _JsonDisplay(LineDisplay):
    """Passes JSON lines of the workers on, each with the number of its worker."""

    def state(self, node: int, text: str) -> None:
        _log.info("worker_state", worker=node, state=text)

    def output(self, node: int, line: str) -> None:
        is_object = re.match(r'\{"', line) is not None
        sys.stderr.write((f'{{"worker":{node},' + line[1:] if is_object else line) + "\n")
        sys.stderr.flush()

    def event(self, text: str) -> None:
        _log.warning("workers", message=text)


def serve_workers(data: str, workers: int, settings: Settings, options: list[str]) -> None:
    """Run `workers` nodes on the sub-directories of `data` until SIGINT or SIGTERM; `options` are
    the arguments of `penstock serve` that all have in common, `settings` follow from them."""
    as_json = settings.log.format == "json"
    configure_program(level=settings.log.level, as_json=as_json)
    with closing(WorkersDirectory(data, workers, settings, options)) as directory:
        display = _JsonDisplay() if as_json else choose_display()
        if 0 < directory.workers_before < workers:
            display.event(
                f"workers {directory.workers_before + 1} to {workers} are new: topics that exist "
                "stay where they are, shards of new topics are spread over all"
            )
        run_until_signal(
            directory,
            display,
            _PATIENCE,
            restarts=True,
            on_ready=lambda cluster: _report_ready(cluster, directory, as_json=as_json),
            on_stopping=_report_stopping,
        )


def serve_options(config: str | None, host: str | None, overrides: list[str]) -> list[str]:
    """Return the arguments of `penstock serve` that all workers have in common."""
    options: list[str] = []
    if config is not None:
        options += ["--config", str(Path(config).absolute())]
    if host is not None:
        options += ["--host", host]
    for pair in overrides:
        options += ["--set", pair]
    return options


def _report_stopping() -> None:
    notify(STOPPING)


def _report_ready(cluster: LocalCluster, directory: WorkersDirectory, *, as_json: bool) -> None:
    notify(READY, f"serving {directory.path} with {len(cluster.nodes)} workers")
    if as_json:
        for node in cluster.nodes:
            ports = node.ports
            _log.info(
                "serving",
                worker=ports.node,
                process=node.pid,
                api=ports.storage_address,
                http_port=ports.http,
                kafka=ports.kafka_address if ports.kafka else None,
                mqtt=ports.mqtt_address if ports.mqtt else None,
            )
    else:
        _print_banner(cluster, directory)


def _print_banner(cluster: LocalCluster, directory: WorkersDirectory) -> None:
    nodes = [node.ports for node in cluster.nodes]
    print_line(f"Penstock is serving {directory.path} with {len(nodes)} workers")
    for node in cluster.nodes:
        own = node.ports
        kafka = f"Kafka {own.kafka_address}  " if own.kafka else ""
        mqtt = f"MQTT {own.mqtt_address}  " if own.mqtt else ""
        print_line(
            f"  node {own.node}  storage API {own.storage_address}  {kafka}{mqtt}"
            f"http://{own.http_address}/health  process {node.pid}"
        )
    copies = min(_COPIES_MAX, len(nodes))
    lines = [
        "Try, in another terminal:",
        f"  export PENSTOCK_SERVER={','.join(ports.storage_address for ports in nodes)}",
        f"  penstock topic create orders --partitions {2 * len(nodes)} --replication {copies}",
        '  echo "3 apples" | penstock produce orders --key o-17',
        "  penstock consume orders --follow",
        "  penstock cluster status",
    ]
    if nodes[0].kafka:
        addresses = ",".join(ports.kafka_address for ports in nodes)
        lines.append(
            f"Kafka clients: bootstrap.servers={addresses}; one address is enough, it names the "
            "others"
        )
    lines.append("A worker that dies is started again. Stop with Ctrl-C.")
    for line in lines:
        print_line(line)
    sys.stdout.flush()
