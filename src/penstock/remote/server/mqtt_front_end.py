"""Starts the MQTT front end of a server, if it is wanted and possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.errors import SetupError
from penstock.meta import PeerNetwork
from penstock.node.node import Node
from penstock.platform.log import get_logger
from penstock.settings import SERVE, MqttSettings, Settings

if TYPE_CHECKING:
    from penstock.brokers.mqtt import MqttServer

_log: Final = get_logger(__name__)


def is_asked_for(settings: MqttSettings) -> bool:
    """Say whether settings of the front end ask for it. A server goes on without a front end that
    is only enabled by default."""
    # `cli.descriptors` lowers the number of connections on its own.
    given = replace(settings, connections_max=SERVE.mqtt.connections_max)
    return settings.enabled and given != SERVE.mqtt


def serve_mqtt(node: Node, settings: Settings) -> MqttServer | None:
    """Start the front end. Raises `SetupError` when it was asked for and cannot be served."""
    mqtt = settings.mqtt
    if not mqtt.enabled:
        return None
    from penstock.brokers.mqtt import Peers, start_server

    meta = node.meta
    peers = Peers(meta, meta) if settings.node.peers and isinstance(meta, PeerNetwork) else None
    try:
        return start_server(node.driver_manager, node.clock, settings, node.registry, peers)
    except SetupError as error:
        if is_asked_for(mqtt):
            raise
        _log.warning(
            "mqtt_not_served",
            reason=str(error),
            hint="set mqtt.port and mqtt.websocket_port, or mqtt.enabled = false",
        )
        return None
