"""`penstock cluster up`: a cluster of several processes on this machine, for trying."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, Final

import typer

from penstock.cli.local_cluster.directory import (
    NODES_DEFAULT,
    NODES_MAX,
    ClusterDirectory,
    parse_overrides,
)
from penstock.cli.local_cluster.display import choose_display
from penstock.cli.local_cluster.running import Patience, run_until_signal
from penstock.cli.local_cluster.supervisor import LocalCluster
from penstock.cli.output import print_line

_PORTS_EACH: Final = 10


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
            max=65_530,
            help=f"First port; each node takes six of the next {_PORTS_EACH}. Default: free ones.",
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
        for ports in directory.nodes:
            directory.write_config(ports, settings)
        run_until_signal(
            directory,
            choose_display(),
            Patience(wait, stop_wait),
            restarts=restart,
            on_ready=lambda cluster: _print_addresses(cluster, directory),
        )


def _print_addresses(cluster: LocalCluster, directory: ClusterDirectory) -> None:
    ports = [node.ports for node in cluster.nodes]
    storage = ",".join(node_ports.storage_address for node_ports in ports)
    kafka = ",".join(node_ports.kafka_address for node_ports in ports)
    print_line(f"A cluster of {len(ports)} nodes serves {directory.path}")
    for node in cluster.nodes:
        own = node.ports
        print_line(
            f"  node {own.node}  storage API {own.storage_address}  Kafka {own.kafka_address}  "
            f"MQTT {own.mqtt_address}  http://{own.http_address}/health  process {node.pid}"
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
