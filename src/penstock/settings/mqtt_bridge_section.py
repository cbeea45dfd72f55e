"""The section `mqtt_bridge`: connections to other MQTT brokers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import Milliseconds


class MqttBridgeConnection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt_bridge.connections]]` table: a remote broker."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            pattern="^[A-Za-z0-9._-]+$",
            description="Unique name, part of the client ids.",
        ),
    ]
    address: Annotated[str, Meta(min_length=1, description="`HOST:PORT` of the remote broker.")]
    version: Annotated[
        Literal["5", "3.1.1"],
        Meta(
            description="Protocol towards the remote broker. Only 5 has No Local, which a topic "
            "in both directions needs."
        ),
    ] = "5"
    client_id: Annotated[
        str,
        Meta(
            max_length=128,
            description="Client id at the remote broker; empty: `penstock-bridge-` and the name.",
        ),
    ] = ""
    username: Annotated[str, Meta(description="User name at the remote broker.")] = ""
    password_file: Annotated[
        str, Meta(description="File whose first line is the password at the remote broker.")
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="Certificates that verify the remote broker; empty: a connection without "
            "TLS."
        ),
    ] = ""
    keep_alive_s: Annotated[
        int, Meta(ge=5, le=65_535, description="Keep-alive towards the remote broker.")
    ] = 60
    session_expiry_s: Annotated[
        int,
        Meta(
            ge=0,
            le=0xFFFF_FFFF,
            description="How long both brokers keep messages while the bridge is interrupted.",
        ),
    ] = 7 * 24 * 3600


class MqttBridgeTopic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt_bridge.topics]]` table, like a `topic` line of Mosquitto."""

    connection: Annotated[str, Meta(min_length=1, description="Name of the connection.")]
    filter: Annotated[
        str, Meta(max_length=1024, description="Topic filter, the same on both sides.")
    ]
    direction: Annotated[
        Literal["in", "out", "both"],
        Meta(description="`out`: to the remote broker; `in`: from it."),
    ] = "out"
    qos: Annotated[int, Meta(ge=0, le=2, description="Maximum QoS.")] = 1
    local_prefix: Annotated[
        str, Meta(max_length=512, description="Text before the filter here.")
    ] = ""
    remote_prefix: Annotated[
        str, Meta(max_length=512, description="Text before the filter at the remote broker.")
    ] = ""


class MqttBridgeSettings(Struct, frozen=True, kw_only=True):
    """Bridges to other MQTT brokers."""

    connections: Annotated[
        tuple[MqttBridgeConnection, ...],
        Meta(description="Tables `[[mqtt_bridge.connections]]`: one for each remote broker."),
    ] = ()
    topics: Annotated[
        tuple[MqttBridgeTopic, ...],
        Meta(description="Tables `[[mqtt_bridge.topics]]`: what the bridges transfer."),
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
