"""`penstock serve` runs a server; `penstock config` prints its effective settings."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock.cli.descriptors import fit_connections, raise_limit
from penstock.cli.gc_tuning import limit_gc_pauses
from penstock.cli.output import print_line
from penstock.cli.startup import gc_disabled
from penstock.errors import NotAStoreError, RetryableError
from penstock.meta.raft import StartEvent
from penstock.platform.addresses import with_port
from penstock.platform.log import configure_program, get_logger
from penstock.platform.service_manager import READY, STOPPING, notify
from penstock.remote.server.node_server import Server
from penstock.settings import Settings, load_settings, redact_setting

if TYPE_CHECKING:
    from penstock.brokers.mqtt import MqttServer

_log: Final = get_logger(__name__)
_SIGNAL_WAIT_S: Final = 0.5
_WORKERS_MAX: Final = 64
_WORKERS: Final = "cluster.json"
"""A file of directories that hold several nodes: see `local_cluster.supervised_directory`."""

Config = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="TOML settings file.")
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a setting, for example broker.file_reserved_time=24 (repeatable).",
    ),
]


def effective_settings(config: str | None, overrides: list[str], **flags: object) -> Settings:
    """Return the effective settings: defaults, file, environment, then flags."""
    given: dict[str, object] = {}
    for pair in overrides:
        name, separator, text = pair.partition("=")
        if not separator or "." not in name:
            raise typer.BadParameter(f"{pair!r} is not a setting: write SECTION.KEY=VALUE")
        given[name] = _value(text)
    given |= {name.replace("__", "."): value for name, value in flags.items() if value is not None}
    return load_settings(config, overrides=given)


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text, type=object)
    except msgspec.DecodeError:
        return text


def serve(
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="DIR", help="Data directory.")
    ] = "data",
    config: Config = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port of the gRPC storage API.")
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", help="Port of the HTTP endpoints /metrics and /health."),
    ] = None,
    kafka_port: Annotated[
        int | None, typer.Option("--kafka-port", help="Port of the Kafka protocol.")
    ] = None,
    mqtt_port: Annotated[
        int | None, typer.Option("--mqtt-port", help="Port of the MQTT protocol.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            max=_WORKERS_MAX,
            help="Run N nodes of one cluster on this machine, in DIR/node-1 to DIR/node-N. Node 2 "
            "has the ports of node 1 plus 10, and so on. A node that dies is started again.",
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006 - typer's way to say "none given"
) -> None:
    """Run a node, or several, on a data directory until SIGINT or SIGTERM.

    Example: [b]penstock serve --data data --set broker.flush_disk_type=SYNC_FLUSH[/b]

    Example: [b]penstock serve --data data --workers 3[/b]
    """
    settings = effective_settings(
        config,
        overrides,
        server__host=host,
        server__port=port,
        server__http_port=http_port,
        kafka__port=kafka_port,
        mqtt__port=mqtt_port,
    )
    os.umask(0o077)  # for RocksDB, which creates its files with the process's mask
    if workers is not None:
        from penstock.cli.commands.serve_workers import serve_options, serve_workers

        serve_workers(data, workers, settings, serve_options(config, host, overrides))
    else:
        _serve_node(data, settings)


def _serve_node(data: str, settings: Settings) -> None:
    if os.path.isfile(os.path.join(data, _WORKERS)):
        raise NotAStoreError(
            f"{data} holds the nodes of several workers; add --workers N, or name the directory "
            "of one node"
        )
    as_json = settings.log.format == "json"
    configure_program(level=settings.log.level, as_json=as_json)
    settings = fit_connections(settings, raise_limit())
    stopping = StartEvent()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        with gc_disabled():
            started = Server(data, settings, stopping=stopping)
    except RetryableError:
        if not stopping.is_set():
            raise
        _print_event("stopped", "while waiting for the other nodes of the cluster", as_json=as_json)
        return
    limit_gc_pauses()
    with started as server:
        if as_json:
            kafka = with_port(*server.kafka.advertised) if server.kafka is not None else None
            address = f"{server.host}:{server.port}"
            mqtt = with_port(server.mqtt.host, server.mqtt.port) if server.mqtt else None
            _log.info(
                "serving",
                data=data,
                api=address,
                http_port=server.http_port,
                kafka=kafka,
                mqtt=mqtt,
            )
        else:
            _print_banner(server, data)
        if server.mqtt is not None and server.mqtt.has_access_files:
            _reload_on_signal(server.mqtt)
        notify(READY, f"serving {data}")
        _wait_for_signal(stopping)
        notify(STOPPING)
        _print_event("stopping", "finishing calls, syncing to disk", as_json=as_json)
    _print_event("stopped", "", as_json=as_json)


def _reload_on_signal(mqtt: MqttServer) -> None:
    """Let SIGHUP read the password file and the access rules of MQTT clients again."""

    def reload(_number: int, _frame: FrameType | None) -> None:
        mqtt.reload_access_files()

    signal.signal(signal.SIGHUP, reload)


def _wait_for_signal(stopping: threading.Event) -> None:
    # Without a timeout this thread would sleep on when the kernel delivers the signal to another
    # one, as it may after SIGSTOP: handlers run in this thread, when it runs.
    while not stopping.wait(_SIGNAL_WAIT_S):
        pass


def _print_event(event: str, more: str, *, as_json: bool) -> None:
    if as_json:
        _log.info(event)
    else:
        typer.echo(f"{event}: {more}" if more else event, err=True)


def _print_banner(server: Server, data: str) -> None:
    address = f"{server.host}:{server.port}"
    lines = [
        f"Penstock is serving {data}",
        f"  storage API  {address}",
        f"  metrics      http://{server.host}:{server.http_port}/metrics  and /health",
        "Try:",
        f"  penstock topic create -s {address} orders",
        f'  echo "3 apples" | penstock produce -s {address} orders --key o-17',
        f"  penstock consume -s {address} orders --follow",
        f"  python -c \"import penstock; print(penstock.connect('{address}').topics())\"",
    ]
    if server.kafka is not None:
        host, port = server.kafka.advertised
        kafka = with_port(host, port)
        lines[2:2] = [f"  Kafka        {kafka}"]
        client = f"import confluent_kafka as k; p = k.Producer({{'bootstrap.servers': '{kafka}'}})"
        lines += [
            f'  echo "3 apples" | kcat -b {kafka} -t orders -P',
            f"  python -c \"{client}; p.produce('orders', b'3 apples'); p.flush()\"",
        ]
    if server.mqtt is not None:
        lines[3:3] = [f"  MQTT         {_mqtt_addresses(server.mqtt)}"]
    lines.append("Stop with Ctrl-C.")
    typer.echo("\n".join(lines))


def _mqtt_addresses(mqtt: MqttServer) -> str:
    address = with_port(mqtt.host, mqtt.port)
    if mqtt.websocket_port is None:
        return address
    return f"{address}  and ws://{with_port(mqtt.host, mqtt.websocket_port)}/mqtt"


def show_config(config: Config = None, overrides: Overrides = []) -> None:  # noqa: B006 - as above
    """Print the effective settings as TOML, merged from defaults, file, environment and flags.

    Secrets in URLs are printed as ***.
    """
    tree = msgspec.to_builtins(effective_settings(config, overrides))
    for section, values in tree.items():
        print_line(f"[{section}]")
        for name, value in values.items():
            shown = redact_setting(name, value)
            print_line(f"{name} = {_as_toml(shown)}")
        print_line("")


def _as_toml(value: object) -> str:
    """Return a value as TOML writes it; a table stands in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_as_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_as_toml(item) for item in value) + "]"
    return msgspec.json.encode(value).decode()
