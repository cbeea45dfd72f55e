"""The section `mqtt`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import MIB, Large, Milliseconds

_HOUR_S = 3_600
_DAY_S = 24 * _HOUR_S


class MqttMapRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[mqtt.map]]` table: the stored topic of the MQTT topics that a filter matches."""

    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="MQTT topic filter. The first rule whose filter matches a topic decides.",
        ),
    ]
    topic: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Name of the stored topic; `{1}` stands for the text of the first "
            "wildcard, `{topic}` for the whole topic.",
        ),
    ]
    partitions: Annotated[
        int, Meta(ge=1, le=10_000, description="Partitions of a stored topic that is created.")
    ] = 8
    storage: Annotated[
        Literal["memory", "rocksdb", "segment"],
        Meta(description="Storage engine of a stored topic that is created."),
    ] = "segment"
    retention_ms: Annotated[
        int,
        Meta(ge=-1, description="How long messages are kept; 0: the node's default; -1: no limit."),
    ] = 0
    flush: Annotated[
        Literal["", "ASYNC_FLUSH", "SYNC_FLUSH"],
        Meta(description="When a message is acknowledged; empty: the node's default."),
    ] = ""
    cleanup: Annotated[
        Literal["delete", "compact", "compact,delete"],
        Meta(description="`compact` keeps the last message of each MQTT topic."),
    ] = "delete"
    qos0: Annotated[
        Literal["store", "pass"],
        Meta(description="`pass`: QoS 0 messages go to connected subscribers and are not stored."),
    ] = "store"
    topics_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Stored topics that the rule creates at most.")
    ] = 1_000
    name: Annotated[
        str,
        Meta(
            description="MQTT topic of records that have another key, or none; empty: the filter "
            "without wildcards, or the stored name with `.` as `/`."
        ),
    ] = ""


class MqttSettings(Struct, frozen=True, kw_only=True):
    """The MQTT front end of `penstock serve`."""

    enabled: Annotated[
        bool,
        Meta(
            description="Enables the MQTT front end. In a cluster, set it on all nodes or on none: "
            "any of them may run the session of a client."
        ),
    ] = True
    host: Annotated[str, Meta(description="Address to listen on; empty: `server.host`.")] = ""
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on; 0: any free port.")
    ] = 1883
    websocket: Annotated[bool, Meta(description="Serves MQTT over WebSocket as well.")] = True
    websocket_port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Port of MQTT over WebSocket; 0: any free port."),
    ] = 8083
    websocket_path: Annotated[
        str, Meta(min_length=1, description="Path of the URL of MQTT over WebSocket.")
    ] = "/mqtt"
    websocket_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Values of `Origin` that are accepted, such as `https://example.com`; "
            "empty: any."
        ),
    ] = ()
    websocket_forwarded_for: Annotated[
        bool,
        Meta(
            description="The last address in the header `X-Forwarded-For` is that of the client; "
            "only for a port that clients reach through a proxy alone."
        ),
    ] = False
    proxy_protocol: Annotated[
        bool,
        Meta(
            description="Connections begin with a PROXY protocol header, version 1 or 2, that "
            "names the address of the client; others are refused."
        ),
    ] = False
    map: Annotated[
        tuple[MqttMapRule, ...],
        Meta(
            description="Rules `[[mqtt.map]]`: which stored topic has the messages of which MQTT "
            "topics. The last rule, `#` to the topic `mqtt` with 8 partitions, is built in."
        ),
    ] = ()
    packet_size_max: Annotated[
        int,
        Meta(ge=256, le=268_435_460, description="Maximum bytes of a packet of a client."),
    ] = 2_000_000
    topic_levels_max: Annotated[
        int, Meta(ge=1, le=32_768, description="Maximum levels of a topic or filter.")
    ] = 128
    topic_size_max: Annotated[
        int, Meta(ge=1, le=65_535, description="Maximum bytes of a topic or filter.")
    ] = 1_024
    connections_max: Annotated[
        Large, Meta(ge=1, description="Maximum concurrent connections; further ones are closed.")
    ] = 20_000
    connections_per_address_max: Annotated[
        Large,
        Meta(
            ge=0, description="Maximum concurrent connections of one client address; 0: no limit."
        ),
    ] = 1_000
    connect_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Time within which CONNECT must arrive."),
    ] = 10_000
    slow_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Maximum time for which a client receives nothing it is sent."),
    ] = 300_000
    sweep_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Interval of the check of keep-alives and timeouts."),
    ] = 1_000
    keep_alive_max_s: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Maximum keep-alive, assigned to MQTT 5 clients that ask for more or for "
            "none; 0: no limit.",
        ),
    ] = 0
    buffer_size_max: Annotated[
        Large,
        Meta(ge=MIB, description="Maximum bytes of all partially received packets."),
    ] = 512 * MIB
    output_size_max: Annotated[
        Large,
        Meta(
            ge=MIB,
            description="Maximum bytes of all output that waits for slow clients; connections that "
            "add to it are ended.",
        ),
    ] = 1024 * MIB
    unacknowledged_size_max: Annotated[
        Large,
        Meta(
            ge=1024,
            description="Bytes of publishes of one connection that wait for the storage, or of "
            "output that waits for the client, at which reading from it stops.",
        ),
    ] = MIB
    receive_maximum: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="QoS 1 and 2 publishes of one client that may be unacknowledged.",
        ),
    ] = 1_000
    receive_maximum_strict: Annotated[
        bool,
        Meta(
            description="Disconnects clients that exceed the receive maximum; `false`: logs them."
        ),
    ] = True
    inflight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="Maximum QoS 1 and 2 messages that are in flight to one client.",
        ),
    ] = 1_000
    topic_aliases_max: Annotated[
        int, Meta(ge=0, le=65_535, description="Topic aliases that a client may use; 0: none.")
    ] = 10
    subscriptions_per_session_max: Annotated[
        Large, Meta(ge=1, description="Maximum subscriptions of one session.")
    ] = 1_000
    subscriptions_max: Annotated[
        Large, Meta(ge=1, description="Maximum subscriptions of all sessions of the node.")
    ] = 2_000_000
    share_strategy: Annotated[
        Literal["round_robin", "random", "sticky", "hash_client", "hash_topic", "local"],
        Meta(
            description="Which member of a shared subscription gets a message, as far as it has "
            "room: each in turn, any, the same as before, by the publisher, by the topic, or one "
            "of this node."
        ),
    ] = "round_robin"
    sessions_max: Annotated[Large, Meta(ge=1, description="Maximum sessions of the node.")] = (
        1_000_000
    )
    session_expiry_max_s: Annotated[
        int,
        Meta(
            ge=0,
            le=0xFFFF_FFFE,
            description="Maximum time for which the session of a disconnected client is kept.",
        ),
    ] = 7 * _DAY_S
    queue_qos0: Annotated[
        bool,
        Meta(
            description="Delivers QoS 0 messages that arrived while a persistent session was "
            "disconnected."
        ),
    ] = False
    retained_topics_max: Annotated[
        Large, Meta(ge=0, description="Maximum topics with a retained message.")
    ] = 1_000_000
    retained_size_max: Annotated[
        Large,
        Meta(
            ge=0,
            description="Maximum bytes of all retained messages, which are kept in memory.",
        ),
    ] = 1024 * MIB
    route_cache_max: Annotated[
        Large, Meta(ge=1, description="Topics whose subscribers are remembered.")
    ] = 65_536
    catch_up_readers_max: Annotated[
        int,
        Meta(
            ge=1,
            le=4_096,
            description="Sessions that read older messages from the storage concurrently.",
        ),
    ] = 64
    topics_created_per_minute: Annotated[
        int,
        Meta(ge=1, le=60_000, description="Stored topics that publishes create per minute."),
    ] = 60
    no_subscribers_reason: Annotated[
        bool,
        Meta(
            description="Acknowledges MQTT 5 publishes that have no subscriber with reason code "
            "0x10."
        ),
    ] = False
    response_topic_prefix: Annotated[
        str,
        Meta(
            max_length=512,
            description="Response information for MQTT 5 clients that ask for it: this prefix and "
            "the client id; empty: none.",
        ),
    ] = ""
