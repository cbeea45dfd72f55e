"""The sections `broker`, `engine`, `offsets`, `topics`, `tiering` and `clock`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from penstock.settings.bounds import MIB, Hours, Large, Milliseconds, Percent

# A slot takes 4 bytes and an entry 20; as in RocketMQ, index files are below 2 GiB.
_INDEX_SLOTS_MAX: Final = 100_000_000
_INDEX_ENTRIES_MAX: Final = 80_000_000


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """The segment store of this node. The keys and their defaults are RocketMQ-Rust's."""

    commit_log_file_size: Annotated[
        int,
        Meta(
            ge=4096,
            lt=1 << 31,
            description="Bytes of a commit log file; fixed when the store is created. The "
            "default is an upper bound: a disk with less than eight times as much "
            "free space gets smaller files.",
        ),
    ] = 1024 * MIB
    consume_queue_file_size: Annotated[
        int,
        Meta(
            ge=20,
            lt=1 << 31,
            description="Bytes of a consume queue file, rounded up to a multiple of 20 as in "
            "RocketMQ; fixed when the store is created.",
        ),
    ] = 31_457_280
    flush_disk_type: Annotated[
        Literal["ASYNC_FLUSH", "SYNC_FLUSH"],
        Meta(
            description="When a write is acknowledged, for topics without `flush`: in the page "
            "cache (survives a crash of the process), or synced to the device "
            "(survives a power failure)."
        ),
    ] = "ASYNC_FLUSH"
    delete_when: Annotated[
        str,
        Meta(
            pattern=r"^(DiskFull|[01][0-9]|2[0-3]|[0-9])$",
            description="When expired files are deleted: `DiskFull` (as soon as they expire, and "
            "the oldest when the disk fills up), or an hour of the day such as `04`.",
        ),
    ] = "DiskFull"
    file_reserved_time: Annotated[
        Hours,
        Meta(description="Hours that records of topics without a retention time are kept."),
    ] = 72
    disk_max_used_space_ratio: Annotated[
        Percent,
        Meta(description="Disk usage in percent at which the oldest files are deleted."),
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        Percent,
        Meta(description="Disk usage in percent at which writes are rejected."),
    ] = 90


class EngineSettings(Struct, frozen=True, kw_only=True):
    """Settings of all storage engines of this node."""

    record_size_max: Annotated[
        int,
        Meta(
            ge=1, lt=1 << 30, description="Maximum bytes of a record; topics can set a lower limit."
        ),
    ] = 4 * MIB
    flush_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Interval of syncs for ASYNC_FLUSH writes."),
    ] = 500
    segment_size: Annotated[
        Large, Meta(ge=1, description="Bytes after which a shard's segment is sealed.")
    ] = 1024 * MIB
    segment_age_h: Annotated[
        Hours, Meta(description="Hours after which a shard's segment is sealed.")
    ] = 24
    upkeep_interval_ms: Annotated[
        Milliseconds,
        Meta(
            ge=1,
            description="Interval of background maintenance: retention and sealing of segments.",
        ),
    ] = 10_000
    scrub_interval_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36_600,
            description="Days within which every record on the disk is verified; 0: none is.",
        ),
    ] = 14
    scrub_rate: Annotated[
        Large, Meta(ge=64 << 10, description="Maximum bytes per second that are verified.")
    ] = 4 * MIB
    compact_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Interval of compaction of topics with `cleanup = compact`."),
    ] = 60_000
    commit_log_path: Annotated[
        str,
        Meta(
            description="Directory of the commit log, for example on another disk; empty: "
            "`segment/commitlog` in the data directory. Stores cannot share one. To "
            "move an existing log: stop the node, move the directory, and set it "
            "here."
        ),
    ] = ""
    index_slots: Annotated[
        int,
        Meta(
            ge=1,
            le=_INDEX_SLOTS_MAX,
            description="Hash slots of a key index file; fixed when the store is created. By "
            "default an index file is not larger than a commit log file.",
        ),
    ] = 5_000_000
    index_entries_max: Annotated[
        int,
        Meta(
            ge=2,
            le=_INDEX_ENTRIES_MAX,
            description="Entries of a key index file, at most one per 50 bytes of a commit log "
            "file; fixed when the store is created.",
        ),
    ] = 20_000_000
    mapped_bytes_max: Annotated[
        Large, Meta(ge=1, description="Maximum bytes of concurrently mapped log files.")
    ] = 4096 * MIB
    memory_records_max: Annotated[
        Large, Meta(ge=1, description="Default maximum of records in a shard of a memory topic.")
    ] = 1_000_000
    memory_bytes_max: Annotated[
        Large, Meta(ge=1, description="Default maximum of bytes in a shard of a memory topic.")
    ] = 256 * MIB
    memory_evict: Annotated[
        bool,
        Meta(
            description="At its limit a memory shard evicts its oldest records; `false`: it "
            "rejects writes."
        ),
    ] = True
    rocksdb_block_cache_size: Annotated[
        Large, Meta(ge=0, description="Bytes of RocksDB's block cache.")
    ] = 64 * MIB
    rocksdb_write_buffer_size: Annotated[
        int,
        Meta(ge=64 << 10, le=64 << 30, description="Bytes of a RocksDB write buffer."),
    ] = 32 * MIB
    threads: Annotated[
        int, Meta(ge=1, le=1024, description="Threads for calls that may block.")
    ] = 8


class OffsetSettings(Struct, frozen=True, kw_only=True):
    """Committed offsets of consumer groups."""

    enable_cache: Annotated[
        bool,
        Meta(
            description="Commits go to a local cache and are saved in batches; `false`: each "
            "commit is saved before it is acknowledged."
        ),
    ] = True
    flush_interval_ms: Annotated[
        Milliseconds, Meta(ge=1, description="Interval at which cached commits are saved.")
    ] = 100
    pending_max: Annotated[
        Large, Meta(ge=1, description="Maximum cached offsets that are not saved yet.")
    ] = 10_000
    commit_timeout_ms: Annotated[
        Milliseconds,
        Meta(
            ge=1,
            description="How long a commit waits for space in the cache before it is rejected.",
        ),
    ] = 30_000
    idle_group_h: Annotated[
        Hours,
        Meta(
            description="Hours after its last commit at which the offsets of a group are deleted."
        ),
    ] = 7 * 24


class TopicSettings(Struct, frozen=True, kw_only=True):
    """Defaults for new topics."""

    storage: Annotated[
        Literal["memory", "rocksdb", "segment"],
        Meta(description="Storage engine."),
    ] = "segment"
    partitions: Annotated[int, Meta(ge=1, le=10_000, description="Number of partitions.")] = 1
    replication: Annotated[
        int,
        Meta(
            ge=1,
            le=9,
            description="Replicas of each record; at most as many as nodes, 1 on a node alone.",
        ),
    ] = 1
    min_insync: Annotated[
        int,
        Meta(
            ge=0,
            le=9,
            description="Replicas that must have a record before it is committed; 0: a majority of "
            "`replication`.",
        ),
    ] = 0
    partitioner: Annotated[
        Literal["round_robin", "key"],
        Meta(description="How a record without a partition is assigned one."),
    ] = "round_robin"
    queue: Annotated[
        Literal["simple", "batch"],
        Meta(
            description="Consume queue entries of the segment engine: per record, or per batch, "
            "which is cheaper for Kafka clients; topics created by Kafka clients use "
            "`batch`."
        ),
    ] = "simple"


class TieringSettings(Struct, frozen=True, kw_only=True):
    """Tiered storage of segment topics; see `docs/tiered.md`."""

    url: Annotated[
        str,
        Meta(
            description="URL of the tier: `file:///directory`, `s3://bucket/prefix`, `gs://…`, "
            "`az://…`; empty: the directory `tier` in the data directory."
        ),
    ] = ""
    topics: Annotated[
        Literal["chosen", "long", "all"],
        Meta(
            description="Segment topics that are tiered without an option of their own: none "
            "(`chosen`), compacted topics and those with a retention above "
            "`broker.file_reserved_time` (`long`), or `all`."
        ),
    ] = "long"
    uploader: Annotated[
        Literal["broker", "spark"],
        Meta(
            description="Uploader of committed records, for every topic: this node, or the job "
            "`penstock pipeline offload`."
        ),
    ] = "broker"
    upload_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Maximum delay between the commit of a record and its upload."),
    ] = 60_000
    chunk_size: Annotated[
        int, Meta(ge=4096, le=1 << 30, description="Bytes of records per object.")
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
        Large, Meta(ge=0, description="Bytes of the in-memory cache for reads from the tier.")
    ] = 64 * MIB
    disk_cache_size: Annotated[
        Large,
        Meta(
            ge=0,
            description="Bytes of the local disk cache for reads from each tier, in the "
            "directory `tier-cache`; 0: no disk cache.",
        ),
    ] = 0
    read_window: Annotated[
        int, Meta(ge=2, le=64, description="Concurrent requests of a cold read.")
    ] = 8
    read_size: Annotated[
        Large, Meta(ge=64 << 10, description="Bytes per request of a cold read.")
    ] = 4 * MIB
    upkeep_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Interval of expiry, sealing and scrubbing."),
    ] = 60_000
    garbage_interval_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Interval of the garbage collection of unreferenced objects."),
    ] = 3_600_000
    scrub_size: Annotated[
        Large, Meta(ge=0, description="Bytes of the tier scrubbed per round; 0: no scrubbing.")
    ] = 16 * MIB


class ClockSettings(Struct, frozen=True, kw_only=True):
    """Plausibility limits of the clock; see `docs/clock.md`."""

    step_max_ms: Annotated[
        Milliseconds,
        Meta(
            ge=1_000,
            description="Maximum difference of the clock to the elapsed time and to the clocks "
            "of other nodes.",
        ),
    ] = 600_000
    gap_max_h: Annotated[
        Hours,
        Meta(
            description="Maximum hours between the last saved time and the first time after a "
            "boot; above it, the clock needs a confirmation."
        ),
    ] = 72
