"""The section `mqtt_bridge`: connections to other MQTT brokers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import Milliseconds


class MqttBridgeTopic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt_bridge.connections.topics]]` table, like a `topic` line of Mosquitto."""

    filter: Annotated[str, Meta(min_length=1, max_length=1024)]
    direction: Literal["in", "out", "both"] = "out"
    """`out`: to the remote broker; `in`: from it."""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    local_prefix: Annotated[str, Meta(max_length=512)] = ""
    """Before the filter here; the remote topic does not have it."""
    remote_prefix: Annotated[str, Meta(max_length=512)] = ""
    """Before the filter at the remote broker."""


class MqttBridgeConnection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt_bridge.connections]]` table."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9._-]+$")]
    """Unique; part of the client ids."""
    address: Annotated[str, Meta(min_length=1)]
    """`HOST:PORT` of the remote broker."""
    topics: tuple[MqttBridgeTopic, ...] = ()
    version: Literal["5", "3.1.1"] = "5"
    """Protocol towards the remote broker. With 3.1.1 a topic has one direction."""
    username: str = ""
    password_file: str = ""
    """File whose first line is the password."""
    tls_ca_file: str = ""
    """Certificates that the remote broker's is checked against; empty: no TLS."""
    client_id: Annotated[str, Meta(max_length=128)] = ""
    """At the remote broker; empty: `penstock-bridge-NAME`."""
    keep_alive_s: Annotated[int, Meta(ge=5, le=65_535)] = 60
    session_expiry_s: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 7 * 24 * 3600
    """For which both brokers keep messages while the bridge is interrupted."""


class MqttBridgeSettings(Struct, frozen=True, kw_only=True):
    """Bridges to other MQTT brokers."""

    connections: Annotated[
        tuple[MqttBridgeConnection, ...],
        Meta(description="Tables `[[mqtt_bridge.connections]]`: one for each remote broker."),
    ] = ()
    connect_timeout_ms: Annotated[
        Milliseconds, Meta(ge=100, description="Maximum time of an attempt to connect.")
    ] = 10_000
    retry_min_ms: Annotated[
        Milliseconds, Meta(ge=10, description="Pause before the first new attempt.")
    ] = 1_000
    retry_max_ms: Annotated[
        Milliseconds,
        Meta(ge=10, description="Maximum pause between attempts; the pause doubles up to it."),
    ] = 30_000
