"""The sections `node`, `server`, `kafka` and `log`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import MIB, Large, Milliseconds


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Identity of the node, and its cluster."""

    id: Annotated[
        int,
        Meta(
            ge=1,
            lt=1 << 31,
            description="Unique id of this node; fixed when its data directory is created.",
        ),
    ] = 1
    peers: Annotated[
        tuple[str, ...],
        Meta(
            description="Nodes that replicate the cluster's metadata, as `NODE@HOST:PORT`, "
            "including this one; empty: standalone. Without the role `meta`: the "
            "storage API addresses of those nodes."
        ),
    ] = ()
    meta_listen: Annotated[
        str,
        Meta(
            description="`HOST:PORT` of the internal port to listen on; empty: the address of "
            "this node in `peers`. A node without the role `meta` needs it, and the secret, to "
            "have replicas."
        ),
    ] = ""
    roles: Annotated[
        tuple[str, ...],
        Meta(
            description="`meta`: this node replicates the cluster's metadata. Every node stores "
            "records."
        ),
    ] = ("meta",)
    rack: Annotated[
        str,
        Meta(
            max_length=255,
            description="The rack or zone of this node. Replicas are spread over racks, and Kafka "
            "consumers with the same `client.rack` read from replicas there; empty: none.",
        ),
    ] = ""
    offset_groups: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Number of Raft groups for offsets; fixed when the cluster is "
            "bootstrapped.",
        ),
    ] = 1
    catch_up_rate: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Bytes per second that the node copies of shards of which it is not in "
            "sync; 0: no limit.",
        ),
    ] = 0
    secret: Annotated[
        str,
        Meta(
            description="Shared secret that authenticates the nodes of a cluster, at least 16 "
            "characters; set it as `PENSTOCK_NODE__SECRET`. Without it and "
            "`secret_file`, the cluster generates a key at its bootstrap, and a node "
            "that joins later needs a token."
        ),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(
            description="File with the secret, instead of `secret`. With several lines, the "
            "first is used and all are accepted, so that the secret can be rotated "
            "node by node."
        ),
    ] = ""
    join_token: Annotated[
        str,
        Meta(
            description="One-time token of `penstock cluster add` for joining a cluster without "
            "a secret."
        ),
    ] = ""
    handover_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="Maximum seconds for which a node that stops hands its shards over: other "
            "nodes lead them before its ports close; 0: it does not.",
        ),
    ] = 10.0


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Where `penstock serve` listens."""

    host: Annotated[str, Meta(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of the storage API (gRPC); 0: any free port.")
    ] = 9190
    http_port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Port of `/metrics` and `/health`; 0: any free port."),
    ] = 9191
    advertised_host: Annotated[
        str,
        Meta(
            description="Host of the storage API advertised to the other nodes; empty: `host`, "
            "or the machine's name if that is a wildcard address."
        ),
    ] = ""
    advertised_port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Port advertised to the other nodes; 0: `port`."),
    ] = 0
    read_memory_max: Annotated[
        Large,
        Meta(
            ge=64 * MIB,
            description="Maximum bytes of all replies to readers of the storage API in memory; "
            "further reads wait.",
        ),
    ] = 1024 * MIB


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """The Kafka front end of `penstock serve`."""

    enabled: Annotated[bool, Meta(description="Enables the Kafka front end.")] = True
    host: Annotated[str, Meta(description="Address to listen on; empty: `server.host`.")] = ""
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on; 0: any free port.")
    ] = 9092
    advertised_host: Annotated[
        str,
        Meta(
            description="Host advertised to clients; empty: the one listened on, or the "
            "machine's name if that is a wildcard address."
        ),
    ] = ""
    advertised_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port advertised to clients; 0: the one listened on.")
    ] = 0
    auto_create_topics: Annotated[
        bool,
        Meta(description="Creates a missing topic when a client names it."),
    ] = True
    auto_create_topics_max: Annotated[
        Large,
        Meta(
            ge=0,
            description="Number of topics at which automatic creation stops; CreateTopics still "
            "works.",
        ),
    ] = 10_000
    auto_create_rate: Annotated[
        float,
        Meta(
            gt=0,
            le=1e6,
            description="Maximum automatically created topics per second and node, half of it "
            "per connection; bursts of ten seconds' worth are allowed.",
        ),
    ] = 20.0
    request_size_max: Annotated[
        int,
        Meta(
            ge=1024,
            lt=1 << 31,
            description="Maximum bytes of a request; a larger one closes the connection.",
        ),
    ] = 100 * MIB
    connections_max: Annotated[
        Large, Meta(ge=1, description="Maximum concurrent connections; further ones are closed.")
    ] = 20_000
    idle_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Idle time after which a connection is closed."),
    ] = 600_000
    slow_timeout_ms: Annotated[
        Milliseconds,
        Meta(
            ge=1, description="Maximum time for a client to send a request or receive a response."
        ),
    ] = 300_000
    sweep_interval_ms: Annotated[
        Milliseconds, Meta(ge=1, description="Interval of the check for idle and slow connections.")
    ] = 5_000
    buffer_size_max: Annotated[
        Large,
        Meta(ge=MIB, description="Maximum bytes of all partially received requests."),
    ] = 512 * MIB
    batch_inflated_size_max: Annotated[
        int,
        Meta(
            ge=MIB,
            le=256 * MIB,
            description="Maximum decompressed bytes of a batch; a larger batch is rejected. With "
            "a compression ratio above 256 the limit is 16 MiB.",
        ),
    ] = 64 * MIB
    tag_header: Annotated[
        str, Meta(description="Header whose values become the tags of a record; empty: no tags.")
    ] = "tag"
    converted_cache_size: Annotated[
        Large,
        Meta(
            ge=0,
            description="Bytes of the cache of batches converted from records of other interfaces.",
        ),
    ] = 16 * MIB
    offsets_cached: Annotated[
        bool,
        Meta(
            description="Commits of Kafka clients go to the cache of `offsets.enable_cache`; "
            "`false`: each commit is in the log of the meta service before it is "
            "acknowledged, many per entry."
        ),
    ] = False
    group_initial_delay_ms: Annotated[
        Milliseconds,
        Meta(
            ge=0,
            description="How long a new group waits for further members before its first "
            "rebalance.",
        ),
    ] = 500
    group_session_timeout_min_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Minimum session timeout of a member."),
    ] = 6_000
    group_session_timeout_max_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Maximum session timeout of a member."),
    ] = 1_800_000
    group_members_max: Annotated[
        Large, Meta(ge=1, description="Maximum members of a group; further ones are rejected.")
    ] = 2_000
    transaction_timeout_max_ms: Annotated[
        Milliseconds, Meta(ge=1, description="Maximum transaction timeout of a producer.")
    ] = 900_000
    transaction_check_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Interval of the check for timed-out transactions."),
    ] = 1_000


class LogSettings(Struct, frozen=True, kw_only=True):
    """Logging of the `penstock` command."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Minimum level of log lines."),
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="Log format: text or JSON lines.")
    ] = "text"
