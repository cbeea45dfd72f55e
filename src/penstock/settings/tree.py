"""All settings: their defaults, units, bounds and meaning, declared once.

The tree is what the code reads, what `load_settings` checks against, and what
`docs/configuration.md` is made from. Units are part of names; a key without one counts things.
The defaults below are those of a server (`SERVE`); `EMBEDDED` has the few that differ for a store
inside a program, where small files and little memory matter more.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

MIB: Final = 1 << 20

# Upper bounds of each kind of number. Larger values are mistakes that clocks, formats and libraries
# handle differently; infinity and NaN exceed every bound.
Percent = Annotated[int, Meta(ge=1, le=100)]
Milliseconds = Annotated[int, Meta(le=366 * 24 * 3_600_000)]
"""A year."""
Hours = Annotated[float, Meta(gt=0, le=1_000_000)]
"""More than a century."""
Large = Annotated[int, Meta(le=1 << 60)]
"""Bytes, and things of which there may be any number: with room below 64 bits to reckon."""

# A slot takes 4 bytes and an entry 20; RocketMQ's files end below 2 GiB, and so do these.
_INDEX_SLOTS_MAX: Final = 100_000_000
_INDEX_ENTRIES_MAX: Final = 80_000_000


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Which node this is."""

    id: Annotated[
        int,
        Meta(ge=1, lt=1 << 31, description="Number of this node; fixed when its data is created."),
    ] = 1
    peers: Annotated[
        tuple[str, ...],
        Meta(
            description="The nodes that keep the cluster's metadata, `NODE@HOST:PORT` each, this "
            "one among them; empty: this node is alone. Without the role `meta`: the addresses of "
            "those nodes' storage API."
        ),
    ] = ()
    meta_listen: Annotated[
        str,
        Meta(description="`HOST:PORT` that the peers reach; empty: as `peers` says of this node."),
    ] = ""
    roles: Annotated[
        tuple[str, ...],
        Meta(
            description="`meta`: takes part in keeping the cluster's metadata. Every node keeps "
            "records."
        ),
    ] = ("meta",)
    offset_groups: Annotated[
        int,
        Meta(ge=1, le=64, description="Raft groups for offsets; fixed when a cluster begins."),
    ] = 1
    secret: Annotated[
        str,
        Meta(
            description="What the nodes of a cluster share and prove to each other, at least 16 "
            "characters; best given as `PENSTOCK_NODE__SECRET`. Empty, and no `secret_file`: the "
            "cluster generates a key when it begins, and a node that joins later needs a token."
        ),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(
            description="A file with the secret, instead of `secret`. Of several lines the first "
            "is used and all are accepted, so that a secret can be replaced node by node."
        ),
    ] = ""
    join_token: Annotated[
        str,
        Meta(
            description="The token of `penstock cluster add` with which this node joins a cluster "
            "without a secret; used once."
        ),
    ] = ""


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Where `penstock serve` listens."""

    host: Annotated[str, Meta(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of the storage API (gRPC); 0 takes any.")
    ] = 9190
    http_port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Port of `/metrics` and `/health`; 0 takes any."),
    ] = 9191
    advertised_host: Annotated[
        str,
        Meta(
            description="Host at which the cluster's other nodes reach the storage API; empty: "
            "`host`, or this machine's name when that is all addresses."
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
            description="Bytes of memory for replies to readers of the storage API, all together; "
            "further reads wait.",
        ),
    ] = 1024 * MIB


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """The Kafka front end of `penstock serve`."""

    enabled: Annotated[bool, Meta(description="Whether Kafka clients are served.")] = True
    host: Annotated[
        str, Meta(description="Address to listen on; empty: that of `server.host`.")
    ] = ""
    port: Annotated[int, Meta(ge=0, le=65535, description="Port; 0 takes any.")] = 9092
    advertised_host: Annotated[
        str,
        Meta(
            description="Host advertised to clients; empty: the one listened on, or "
            "this machine's name when that is all addresses."
        ),
    ] = ""
    advertised_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port advertised to clients; 0: the one listened on.")
    ] = 0
    auto_create_topics: Annotated[
        bool,
        Meta(description="Whether a topic that a client names, and that is not there, is made."),
    ] = True
    auto_create_topics_max: Annotated[
        Large,
        Meta(
            ge=0,
            description="Topics at which clients create no more by naming them; CreateTopics still "
            "does.",
        ),
    ] = 10_000
    auto_create_rate: Annotated[
        float,
        Meta(
            gt=0,
            le=1e6,
            description="Topics a second that clients of a node create by naming them, those of "
            "one connection half as many; ten seconds' worth may come together.",
        ),
    ] = 20.0
    request_size_max: Annotated[
        int, Meta(ge=1024, lt=1 << 31, description="Bytes of one request; a larger one closes it.")
    ] = 100 * MIB
    connections_max: Annotated[
        Large, Meta(ge=1, description="Maximum concurrent connections; further ones are closed.")
    ] = 20_000
    idle_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How long a connection may be silent before it is closed."),
    ] = 600_000
    slow_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How long a client may take to send a request, or take an answer."),
    ] = 300_000
    sweep_interval_ms: Annotated[
        Milliseconds, Meta(ge=1, description="How often silent connections are looked for.")
    ] = 5_000
    buffer_size_max: Annotated[
        Large,
        Meta(ge=MIB, description="Bytes of requests that are only partly there, all together."),
    ] = 512 * MIB
    batch_inflated_size_max: Annotated[
        int,
        Meta(
            ge=MIB,
            le=256 * MIB,
            description="Bytes that the records of one compressed batch may have when they are "
            "inflated; a larger batch is refused. A batch that grows more than 256-fold may have "
            "16 MiB.",
        ),
    ] = 64 * MIB
    tag_header: Annotated[
        str, Meta(description="Header whose values are a record's tags; empty: none are.")
    ] = "tag"
    converted_cache_size: Annotated[
        Large,
        Meta(ge=0, description="Bytes of batches kept that were made of records of other doors."),
    ] = 16 * MIB
    offsets_cached: Annotated[
        bool,
        Meta(
            description="Commits of Kafka clients go to the cache of `offsets.enable_cache`; "
            "`false`: each is in the log of the meta service before it is answered, many in one "
            "entry."
        ),
    ] = False
    group_initial_delay_ms: Annotated[
        Milliseconds,
        Meta(ge=0, description="How long an empty group waits for further members to join."),
    ] = 500
    group_session_timeout_min_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="The shortest session timeout that a member may ask for."),
    ] = 6_000
    group_session_timeout_max_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="The longest session timeout that a member may ask for."),
    ] = 1_800_000
    group_members_max: Annotated[
        Large, Meta(ge=1, description="Members of one group; further ones are refused.")
    ] = 2_000
    transaction_timeout_max_ms: Annotated[
        Milliseconds, Meta(ge=1, description="The longest transaction that a producer may ask for.")
    ] = 900_000
    transaction_check_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How often transactions are looked at for their timeout."),
    ] = 1_000


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """The segment store of this node. The keys and their defaults are RocketMQ-Rust's."""

    commit_log_file_size: Annotated[
        int,
        Meta(
            ge=4096,
            lt=1 << 31,
            description="Bytes of one commit log file. Counts when the store is created. The "
            "default is the most: a disk with less than eight times as much free gets smaller "
            "files.",
        ),
    ] = 1024 * MIB
    consume_queue_file_size: Annotated[
        int,
        Meta(
            ge=20,
            lt=1 << 31,
            description="Bytes of one consume queue file, rounded up to whole units of 20 bytes "
            "as RocketMQ does. Counts when the store is created.",
        ),
    ] = 31_457_280
    flush_disk_type: Annotated[
        Literal["ASYNC_FLUSH", "SYNC_FLUSH"],
        Meta(
            description="When a write is acknowledged, for topics that do not say: in the page "
            "cache (survives this process), or on the device (survives a power cut)."
        ),
    ] = "ASYNC_FLUSH"
    delete_when: Annotated[
        str,
        Meta(
            pattern=r"^(DiskFull|[01][0-9]|2[0-3]|[0-9])$",
            description="When expired files go: `DiskFull` (as soon as they may, and the oldest "
            "when the disk fills up), or the hour of the day, like `04`.",
        ),
    ] = "DiskFull"
    file_reserved_time: Annotated[
        Hours,
        Meta(description="Hours that a topic without a retention of its own is kept."),
    ] = 72
    disk_max_used_space_ratio: Annotated[
        Percent,
        Meta(description="Percent of the disk in use at which the oldest files go."),
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        Percent,
        Meta(description="Percent of the disk in use at which writes are refused."),
    ] = 90


class EngineSettings(Struct, frozen=True, kw_only=True):
    """The engines of this node, and what they have in common."""

    record_size_max: Annotated[
        int,
        Meta(ge=1, lt=1 << 30, description="Bytes of a record that any topic may allow."),
    ] = 4 * MIB
    flush_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How long an ASYNC_FLUSH write stays in the page cache alone."),
    ] = 500
    segment_size: Annotated[
        Large, Meta(ge=1, description="Bytes after which a shard's segment is sealed.")
    ] = 1024 * MIB
    segment_age_h: Annotated[
        Hours, Meta(description="Hours after which a shard's segment is sealed.")
    ] = 24
    upkeep_interval_ms: Annotated[
        Milliseconds, Meta(ge=1, description="How often segments and retention are looked at.")
    ] = 10_000
    compact_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How often topics with `cleanup = compact` are compacted."),
    ] = 60_000
    commit_log_path: Annotated[
        str,
        Meta(
            description="Directory of the commit log, to have it on another disk; empty: "
            "`segment/commitlog` in the data directory. Each store needs one of its own. To move "
            "an existing log: stop the node, move the directory, and name it here."
        ),
    ] = ""
    index_slots: Annotated[
        int,
        Meta(
            ge=1,
            le=_INDEX_SLOTS_MAX,
            description="Hash slots of a key index file. Counts when the store is created. By "
            "default an index file takes no more room than a commit log file.",
        ),
    ] = 5_000_000
    index_entries_max: Annotated[
        int,
        Meta(
            ge=2,
            le=_INDEX_ENTRIES_MAX,
            description="Entries of a key index file, at most one for every 50 bytes of a commit "
            "log file. Counts when the store is created.",
        ),
    ] = 20_000_000
    mapped_bytes_max: Annotated[
        Large, Meta(ge=1, description="Maximum bytes of concurrently mapped log files.")
    ] = 4096 * MIB
    memory_records_max: Annotated[
        Large, Meta(ge=1, description="Records of one shard of a memory topic that does not say.")
    ] = 1_000_000
    memory_bytes_max: Annotated[
        Large, Meta(ge=1, description="Bytes of one shard of a memory topic that does not say.")
    ] = 256 * MIB
    memory_evict: Annotated[
        bool,
        Meta(
            description="At its limit a memory shard drops its oldest records; `false`: it "
            "refuses writes."
        ),
    ] = True
    rocksdb_block_cache_size: Annotated[
        Large, Meta(ge=0, description="Bytes of RocksDB's block cache.")
    ] = 64 * MIB
    rocksdb_write_buffer_size: Annotated[
        int,
        Meta(ge=64 << 10, le=64 << 30, description="Bytes of one of RocksDB's write buffers."),
    ] = 32 * MIB
    threads: Annotated[
        int, Meta(ge=1, le=1024, description="Threads for calls that may block.")
    ] = 8


class OffsetSettings(Struct, frozen=True, kw_only=True):
    """What groups of consumers have read."""

    enable_cache: Annotated[
        bool,
        Meta(
            description="Commits go to a local cache and are saved in batches; `false`: each is "
            "saved before it is answered."
        ),
    ] = True
    flush_interval_ms: Annotated[
        Milliseconds, Meta(ge=1, description="How often cached commits are saved.")
    ] = 100
    pending_max: Annotated[
        Large, Meta(ge=1, description="Cached offsets that may wait to be saved.")
    ] = 10_000
    commit_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How long a commit waits for room before it is refused."),
    ] = 30_000
    idle_group_h: Annotated[
        Hours,
        Meta(description="Hours after its last commit at which a group is forgotten."),
    ] = 7 * 24


class TopicSettings(Struct, frozen=True, kw_only=True):
    """What a topic is created with when its creator does not say."""

    storage: Annotated[
        Literal["memory", "rocksdb", "segment"],
        Meta(description="The engine that keeps its records."),
    ] = "segment"
    partitions: Annotated[int, Meta(ge=1, le=10_000, description="Its partitions.")] = 1
    replication: Annotated[
        int,
        Meta(ge=1, le=100, description="Nodes that keep each record; more than 1 is refused yet."),
    ] = 1
    partitioner: Annotated[
        Literal["round_robin", "key"],
        Meta(description="How a record without a partition gets one."),
    ] = "round_robin"
    queue: Annotated[
        Literal["simple", "batch"],
        Meta(
            description="How the segment engine lists its records: one by one, or by batch, which "
            "costs Kafka clients less; topics made by Kafka clients have `batch`."
        ),
    ] = "simple"


class TieringSettings(Struct, frozen=True, kw_only=True):
    """Flat files that old records of segment topics live on in; see `docs/tiered.md`. A topic has
    them when its `tiering` option says so, or as `topics` says."""

    url: Annotated[
        str,
        Meta(
            description="Where they are: `file:///directory`, `s3://bucket/prefix`, `gs://…`, "
            "`az://…`; empty: the directory `tier` in the data directory."
        ),
    ] = ""
    topics: Annotated[
        Literal["chosen", "long", "all"],
        Meta(
            description="Which segment topics have flat files besides those that say so: none, "
            "those that keep records longer than `broker.file_reserved_time` and compacted ones, "
            "or all."
        ),
    ] = "long"
    uploader: Annotated[
        Literal["broker", "spark"],
        Meta(
            description="Uploader of committed records: this node, or a job "
            "(`penstock pipeline offload`); then for every topic."
        ),
    ] = "broker"
    upload_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How long a committed record waits at most to be uploaded."),
    ] = 60_000
    chunk_size: Annotated[
        int, Meta(ge=4096, le=1 << 30, description="Bytes of records in one object.")
    ] = 17 * MIB // 4
    segment_size: Annotated[
        Large, Meta(ge=4096, description="Bytes after which a segment is sealed.")
    ] = 256 * MIB
    segment_age_h: Annotated[Hours, Meta(description="Hours after which a segment is sealed.")] = 24
    grace_ms: Annotated[
        Milliseconds,
        Meta(
            ge=0,
            description="How long unreferenced objects are kept; 0 only if no other node "
            "or job uploads to the tier.",
        ),
    ] = 3_600_000
    cache_size: Annotated[
        Large, Meta(ge=0, description="Bytes of the tier kept in memory for readers.")
    ] = 64 * MIB
    disk_cache_size: Annotated[
        Large,
        Meta(
            ge=0,
            description="Bytes of each tier kept on the local disk for readers, in the directory "
            "`tier-cache`; 0: none.",
        ),
    ] = 0
    read_window: Annotated[
        int, Meta(ge=2, le=64, description="Requests of one cold read at the same time.")
    ] = 8
    read_size: Annotated[
        Large, Meta(ge=64 << 10, description="Bytes of one request of a cold read.")
    ] = 4 * MIB
    upkeep_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How often expiry, sealing and scrubbing are looked at."),
    ] = 60_000
    garbage_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="How often objects without a reference are looked for."),
    ] = 3_600_000
    scrub_size: Annotated[
        Large, Meta(ge=0, description="Bytes of the tier verified in each round; 0: none.")
    ] = 16 * MIB


class ClockSettings(Struct, frozen=True, kw_only=True):
    """When a node does not believe its clock, and deletes nothing by age; see `docs/clock.md`."""

    step_max_ms: Annotated[
        Milliseconds,
        Meta(
            ge=1_000,
            description="How far the clock may be from the time that has passed, and from the "
            "clocks of other nodes.",
        ),
    ] = 600_000
    gap_max_h: Annotated[
        Hours,
        Meta(
            description="Hours between the last time that was saved and the first after the "
            "machine was booted, up to which the clock is believed without a confirmation."
        ),
    ] = 72


class LogSettings(Struct, frozen=True, kw_only=True):
    """What the `penstock` command writes about itself."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least level shown.")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="Lines for people, or JSON for machines.")
    ] = "text"


class Settings(Struct, frozen=True, kw_only=True):
    """The whole tree."""

    node: NodeSettings = NodeSettings()
    server: ServerSettings = ServerSettings()
    kafka: KafkaSettings = KafkaSettings()
    broker: BrokerSettings = BrokerSettings()
    engine: EngineSettings = EngineSettings()
    offsets: OffsetSettings = OffsetSettings()
    topics: TopicSettings = TopicSettings()
    tiering: TieringSettings = TieringSettings()
    clock: ClockSettings = ClockSettings()
    log: LogSettings = LogSettings()


SERVE: Final = Settings()
"""The defaults of `penstock serve`."""


def keeps_default_sizes(settings: Settings) -> tuple[bool, bool]:
    """Say whether the sizes of log files, and of index files, are those of `SERVE` or `EMBEDDED`:
    then a small disk, or a small log, may have smaller ones."""
    engine, defaults = settings.engine, (SERVE, EMBEDDED)
    log_size = settings.broker.commit_log_file_size
    index = (engine.index_slots, engine.index_entries_max)
    return (
        log_size in [default.broker.commit_log_file_size for default in defaults],
        index
        in [(default.engine.index_slots, default.engine.index_entries_max) for default in defaults],
    )


EMBEDDED: Final = replace(
    SERVE,
    broker=replace(
        SERVE.broker, commit_log_file_size=64 * MIB, consume_queue_file_size=20_000 * 20
    ),
    engine=replace(
        SERVE.engine,
        index_slots=250_000,
        index_entries_max=1_000_000,
        mapped_bytes_max=1024 * MIB,
        rocksdb_block_cache_size=8 * MIB,
        rocksdb_write_buffer_size=8 * MIB,
        threads=4,
    ),
    offsets=replace(SERVE.offsets, idle_group_h=365 * 24),
    clock=replace(SERVE.clock, gap_max_h=30 * 24),
    log=replace(SERVE.log, level="warning"),
)
"""The defaults of `penstock.open`."""
