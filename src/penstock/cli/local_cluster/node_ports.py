"""The ports of the nodes of one machine: derived from a first one, checked before a node starts."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from random import SystemRandom
from typing import Final

from msgspec import Struct

from penstock.errors import BadRequestError, SetupError
from penstock.platform.addresses import explain, resolve, with_port

HOST: Final = "127.0.0.1"
PORT_STEP: Final = 10
"""Distance between the ports of two nodes: node 1 at the base, node 2 at base + 10."""
MQTT_STEP: Final = 4
"""From the port of the storage API to that of MQTT; the next one is for MQTT over WebSocket."""
WEBSOCKET_STEP: Final = 5
PORT_MAX: Final = 65_535
_BASES: Final = range(20_000, 29_900, 10)
"""Below the ports that the system gives to outgoing connections, so that a stopped node finds its
ports free again."""
_TRIES: Final = 50
_WILDCARDS: Final = {"0.0.0.0": HOST, "::": "::1", "[::]": "::1"}


class NodePorts(Struct, frozen=True, omit_defaults=True):
    """The ports of one node, and the hosts that it listens on."""

    node: int
    storage: int
    http: int
    kafka: int
    """0: the node does not serve Kafka clients."""
    internal: int
    host: str = HOST
    kafka_host: str = ""
    """Empty: `host`."""
    mqtt: int = 0
    """0: the node does not serve MQTT clients."""
    websocket: int = 0
    """0: no MQTT over WebSocket."""
    mqtt_host: str = ""
    """Empty: `host`."""

    @property
    def near_host(self) -> str:
        """The host at which this machine reaches the storage API and HTTP."""
        return _WILDCARDS.get(self.host, self.host)

    @property
    def near_kafka_host(self) -> str:
        host = self.kafka_host or self.host
        return _WILDCARDS.get(host, host)

    @property
    def storage_address(self) -> str:
        return with_port(self.near_host, self.storage)

    @property
    def http_address(self) -> str:
        return with_port(self.near_host, self.http)

    @property
    def kafka_address(self) -> str:
        return with_port(self.near_kafka_host, self.kafka)

    @property
    def mqtt_address(self) -> str:
        host = self.mqtt_host or self.host
        return with_port(_WILDCARDS.get(host, host), self.mqtt)

    @property
    def internal_address(self) -> str:
        return f"{HOST}:{self.internal}"

    @property
    def listening(self) -> list[tuple[str, str, int]]:
        """Purpose, host and port of each listener."""
        listed = [
            ("the storage API", self.host, self.storage),
            ("HTTP", self.host, self.http),
            ("the other nodes", HOST, self.internal),
        ]
        if self.kafka:
            listed.append(("Kafka", self.kafka_host or self.host, self.kafka))
        if self.mqtt:
            listed.append(("MQTT", self.mqtt_host or self.host, self.mqtt))
        if self.websocket:
            listed.append(("MQTT over WebSocket", self.mqtt_host or self.host, self.websocket))
        return listed


def ports_from(base: int, nodes: int) -> tuple[NodePorts, ...]:
    return tuple(
        NodePorts(
            node,
            first,
            first + 1,
            first + 2,
            first + 3,
            mqtt=first + MQTT_STEP,
            websocket=first + WEBSOCKET_STEP,
        )
        for node, first in (
            (number, base + PORT_STEP * (number - 1)) for number in range(1, nodes + 1)
        )
    )


def choose_ports(
    nodes: int,
    base: int | None,
    others: Sequence[NodePorts] = (),
    *,
    preferred: int | None = None,
) -> tuple[NodePorts, ...]:
    """Return the ports of new nodes: from `base` on; without it from `preferred` on, or elsewhere,
    where all of them are free, and none is one of `others`."""
    if base is not None:
        chosen = ports_from(base, nodes)
        if chosen[-1].websocket > PORT_MAX:
            raise BadRequestError(
                f"--port-base {base} leaves no ports for {nodes} nodes, which need "
                f"{PORT_STEP} each: the highest possible one is "
                f"{PORT_MAX - PORT_STEP * (nodes - 1) - WEBSOCKET_STEP}"
            )
        check_ports(chosen)
        return chosen
    taken = {port for ports in others for _, _, port in ports.listening}
    bases = SystemRandom().sample(_BASES, _TRIES)
    if preferred is not None:
        bases.insert(0, preferred)
    for candidate in bases:
        chosen = ports_from(candidate, nodes)
        if taken & {port for ports in chosen for _, _, port in ports.listening}:
            continue
        try:
            check_ports(chosen)
        except SetupError:
            continue
        return chosen
    raise SetupError(
        f"{len(bases)} ranges of ports were tried, and each had a port in use; choose one with "
        "--port-base"
    )


def first_in_use(listeners: Sequence[tuple[str, str, int]]) -> str | None:
    """Return which of some listeners has its port in use; None: none."""
    for purpose, host, port in listeners:
        family, address = resolve(host, port)
        try:
            _try(family, address)
        except OSError as error:
            return f"port {port}, for {purpose}: {error.strerror}"
    return None


def _try(
    family: socket.AddressFamily, address: tuple[str, int] | tuple[str, int, int, int]
) -> None:
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)
        trial.listen()


def check_ports(nodes: Sequence[NodePorts], option: str = "another --port-base") -> None:
    """Raise `SetupError` that names the first port which is in use, and what it is for."""
    for ports in nodes:
        for purpose, host, port in ports.listening:
            family, address = resolve(host, port)
            try:
                _try(family, address)
            except OSError as error:
                choose = (
                    f"{option}, or end the process that has it: node {ports.node} "
                    f"needs it for {purpose}"
                )
                raise explain(host, port, error, choose=choose) from error
