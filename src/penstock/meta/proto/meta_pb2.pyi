from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("group", "request")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    group: int
    request: bytes
    def __init__(self, group: _Optional[int] = ..., request: _Optional[bytes] = ...) -> None: ...

class ProposeReply(_message.Message):
    __slots__ = ("is_rejected", "answer")
    IS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    is_rejected: bool
    answer: bytes
    def __init__(self, is_rejected: _Optional[bool] = ..., answer: _Optional[bytes] = ...) -> None: ...

class ProposeManyRequest(_message.Message):
    __slots__ = ("group", "requests")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    group: int
    requests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group: _Optional[int] = ..., requests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ProposeManyReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ProposeOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ProposeOutcome, _Mapping]]] = ...) -> None: ...

class ProposeOutcome(_message.Message):
    __slots__ = ("is_rejected", "answer", "error", "reason")
    IS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    is_rejected: bool
    answer: bytes
    error: str
    reason: str
    def __init__(self, is_rejected: _Optional[bool] = ..., answer: _Optional[bytes] = ..., error: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("group", "key", "is_local", "max_staleness_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    IS_LOCAL_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_MS_FIELD_NUMBER: _ClassVar[int]
    group: int
    key: bytes
    is_local: bool
    max_staleness_ms: int
    def __init__(self, group: _Optional[int] = ..., key: _Optional[bytes] = ..., is_local: _Optional[bool] = ..., max_staleness_ms: _Optional[int] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("is_there", "row", "age_ms")
    IS_THERE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    is_there: bool
    row: bytes
    age_ms: int
    def __init__(self, is_there: _Optional[bool] = ..., row: _Optional[bytes] = ..., age_ms: _Optional[int] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("group", "start", "end", "is_local", "max_staleness_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_LOCAL_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_MS_FIELD_NUMBER: _ClassVar[int]
    group: int
    start: bytes
    end: bytes
    is_local: bool
    max_staleness_ms: int
    def __init__(self, group: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., is_local: _Optional[bool] = ..., max_staleness_ms: _Optional[int] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("key", "row")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    row: bytes
    def __init__(self, key: _Optional[bytes] = ..., row: _Optional[bytes] = ...) -> None: ...

class ScanReply(_message.Message):
    __slots__ = ("rows", "has_more", "age_ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    has_more: bool
    age_ms: int
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., has_more: _Optional[bool] = ..., age_ms: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("revision", "events", "is_reset", "is_level")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    IS_LEVEL_FIELD_NUMBER: _ClassVar[int]
    revision: int
    events: bytes
    is_reset: bool
    is_level: bool
    def __init__(self, revision: _Optional[int] = ..., events: _Optional[bytes] = ..., is_reset: _Optional[bool] = ..., is_level: _Optional[bool] = ...) -> None: ...

class SaveOffsetDataRequest(_message.Message):
    __slots__ = ("cluster_name", "offsets")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    offsets: _containers.RepeatedCompositeFieldContainer[SaveOffsetData]
    def __init__(self, cluster_name: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[SaveOffsetData, _Mapping]]] = ...) -> None: ...

class SaveOffsetData(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[SaveOffsetDataRequestOffset]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[SaveOffsetDataRequestOffset, _Mapping]]] = ...) -> None: ...

class SaveOffsetDataRequestOffset(_message.Message):
    __slots__ = ("namespace", "shard_name", "offset", "metadata", "leader_epoch", "commit_timestamp", "coordinator_epoch", "sequence")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    shard_name: str
    offset: int
    metadata: str
    leader_epoch: int
    commit_timestamp: int
    coordinator_epoch: int
    sequence: int
    def __init__(self, namespace: _Optional[str] = ..., shard_name: _Optional[str] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ..., leader_epoch: _Optional[int] = ..., commit_timestamp: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class SaveOffsetDataReply(_message.Message):
    __slots__ = ("stale",)
    STALE_FIELD_NUMBER: _ClassVar[int]
    stale: int
    def __init__(self, stale: _Optional[int] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ("cluster_id", "node_id", "groups", "members", "offset_groups", "problems")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_GROUPS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    members: _containers.RepeatedCompositeFieldContainer[ClusterMember]
    offset_groups: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[ClusterMember, _Mapping]]] = ..., offset_groups: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("name", "role", "term", "leader", "commit", "applied", "first", "last", "voters", "learners", "progress")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    term: int
    leader: int
    commit: int
    applied: int
    first: int
    last: int
    voters: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    progress: _containers.RepeatedCompositeFieldContainer[MemberProgress]
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[int] = ..., commit: _Optional[int] = ..., applied: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., voters: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ..., progress: _Optional[_Iterable[_Union[MemberProgress, _Mapping]]] = ...) -> None: ...

class MemberProgress(_message.Message):
    __slots__ = ("node", "matched", "state", "is_active")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    node: int
    matched: int
    state: str
    is_active: bool
    def __init__(self, node: _Optional[int] = ..., matched: _Optional[int] = ..., state: _Optional[str] = ..., is_active: _Optional[bool] = ...) -> None: ...

class ClusterMember(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class MakeJoinTokenRequest(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class MakeJoinTokenReply(_message.Message):
    __slots__ = ("token", "problem")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    token: str
    problem: str
    def __init__(self, token: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("node_id", "is_forced")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_FORCED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    is_forced: bool
    def __init__(self, node_id: _Optional[int] = ..., is_forced: _Optional[bool] = ...) -> None: ...

class RemoveNodeReply(_message.Message):
    __slots__ = ("lost_shards",)
    LOST_SHARDS_FIELD_NUMBER: _ClassVar[int]
    lost_shards: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lost_shards: _Optional[_Iterable[str]] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("group", "to")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    group: str
    to: int
    def __init__(self, group: _Optional[str] = ..., to: _Optional[int] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("storage_type", "replication", "min_insync", "retention_ms", "retention_bytes", "retention_records", "flush", "cleanup", "partitioner", "record_size_max", "queue_kind", "tiering", "memory_records_max", "memory_bytes_max", "segment_size", "segment_age_ms", "tombstone_retention_ms", "compaction_lag_ms", "tag_header", "kafka_settings")
    class KafkaSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STORAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_RECORDS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    RECORD_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    QUEUE_KIND_FIELD_NUMBER: _ClassVar[int]
    TIERING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    TAG_HEADER_FIELD_NUMBER: _ClassVar[int]
    KAFKA_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    storage_type: str
    replication: int
    min_insync: int
    retention_ms: int
    retention_bytes: int
    retention_records: int
    flush: str
    cleanup: str
    partitioner: str
    record_size_max: int
    queue_kind: str
    tiering: TieringPolicy
    memory_records_max: int
    memory_bytes_max: int
    segment_size: int
    segment_age_ms: int
    tombstone_retention_ms: int
    compaction_lag_ms: int
    tag_header: str
    kafka_settings: _containers.ScalarMap[str, str]
    def __init__(self, storage_type: _Optional[str] = ..., replication: _Optional[int] = ..., min_insync: _Optional[int] = ..., retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., retention_records: _Optional[int] = ..., flush: _Optional[str] = ..., cleanup: _Optional[str] = ..., partitioner: _Optional[str] = ..., record_size_max: _Optional[int] = ..., queue_kind: _Optional[str] = ..., tiering: _Optional[_Union[TieringPolicy, _Mapping]] = ..., memory_records_max: _Optional[int] = ..., memory_bytes_max: _Optional[int] = ..., segment_size: _Optional[int] = ..., segment_age_ms: _Optional[int] = ..., tombstone_retention_ms: _Optional[int] = ..., compaction_lag_ms: _Optional[int] = ..., tag_header: _Optional[str] = ..., kafka_settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TieringPolicy(_message.Message):
    __slots__ = ("provider", "storage_level", "uploader", "local_retention_ms", "local_retention_bytes", "tier_retention_ms", "upload_interval_ms", "upload_bytes")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    STORAGE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    UPLOADER_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIER_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    provider: str
    storage_level: str
    uploader: str
    local_retention_ms: int
    local_retention_bytes: int
    tier_retention_ms: int
    upload_interval_ms: int
    upload_bytes: int
    def __init__(self, provider: _Optional[str] = ..., storage_level: _Optional[str] = ..., uploader: _Optional[str] = ..., local_retention_ms: _Optional[int] = ..., local_retention_bytes: _Optional[int] = ..., tier_retention_ms: _Optional[int] = ..., upload_interval_ms: _Optional[int] = ..., upload_bytes: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic_id", "namespace", "topic_name", "partitions", "config", "status", "created_at_ms", "revision")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    namespace: str
    topic_name: str
    partitions: int
    config: TopicConfig
    status: str
    created_at_ms: int
    revision: int
    def __init__(self, topic_id: _Optional[str] = ..., namespace: _Optional[str] = ..., topic_name: _Optional[str] = ..., partitions: _Optional[int] = ..., config: _Optional[_Union[TopicConfig, _Mapping]] = ..., status: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("shard_name", "topic_id", "partition", "replicas", "in_sync", "leader", "leader_epoch", "first_segment", "active_segment", "status", "revision")
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    shard_name: str
    topic_id: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    leader: int
    leader_epoch: int
    first_segment: int
    active_segment: int
    status: str
    revision: int
    def __init__(self, shard_name: _Optional[str] = ..., topic_id: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., in_sync: _Optional[_Iterable[int]] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., first_segment: _Optional[int] = ..., active_segment: _Optional[int] = ..., status: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("shard_name", "number", "start_offset", "end_offset", "status", "leader", "leader_epoch", "created_at_ms", "sealed_at_ms")
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SEALED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    shard_name: str
    number: int
    start_offset: int
    end_offset: int
    status: str
    leader: int
    leader_epoch: int
    created_at_ms: int
    sealed_at_ms: int
    def __init__(self, shard_name: _Optional[str] = ..., number: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., status: _Optional[str] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., sealed_at_ms: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_id", "address", "listeners", "roles", "boot_id", "epoch", "status", "registered_at_ms")
    class ListenersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    listeners: _containers.ScalarMap[str, str]
    roles: _containers.RepeatedScalarFieldContainer[str]
    boot_id: str
    epoch: int
    status: str
    registered_at_ms: int
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., listeners: _Optional[_Mapping[str, str]] = ..., roles: _Optional[_Iterable[str]] = ..., boot_id: _Optional[str] = ..., epoch: _Optional[int] = ..., status: _Optional[str] = ..., registered_at_ms: _Optional[int] = ...) -> None: ...

class PlacementCreateTopicRequest(_message.Message):
    __slots__ = ("cluster_name", "namespace", "topic_name", "partitions", "config", "request_id")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    namespace: str
    topic_name: str
    partitions: int
    config: TopicConfig
    request_id: str
    def __init__(self, cluster_name: _Optional[str] = ..., namespace: _Optional[str] = ..., topic_name: _Optional[str] = ..., partitions: _Optional[int] = ..., config: _Optional[_Union[TopicConfig, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class PlacementCreateTopicReply(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class CreateShardRequest(_message.Message):
    __slots__ = ("cluster_name", "shard_name")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    shard_name: str
    def __init__(self, cluster_name: _Optional[str] = ..., shard_name: _Optional[str] = ...) -> None: ...

class CreateShardReply(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ...) -> None: ...

class DeleteShardRequest(_message.Message):
    __slots__ = ("cluster_name", "shard_name")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    shard_name: str
    def __init__(self, cluster_name: _Optional[str] = ..., shard_name: _Optional[str] = ...) -> None: ...

class DeleteShardReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateNextSegmentRequest(_message.Message):
    __slots__ = ("cluster_name", "shard_name", "segment", "end_offset", "leader_epoch")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    shard_name: str
    segment: int
    end_offset: int
    leader_epoch: int
    def __init__(self, cluster_name: _Optional[str] = ..., shard_name: _Optional[str] = ..., segment: _Optional[int] = ..., end_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class CreateNextSegmentReply(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: Segment
    def __init__(self, segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class SealUpSegmentRequest(_message.Message):
    __slots__ = ("cluster_name", "shard_name", "segment", "end_offset")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    shard_name: str
    segment: int
    end_offset: int
    def __init__(self, cluster_name: _Optional[str] = ..., shard_name: _Optional[str] = ..., segment: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class SealUpSegmentReply(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: Segment
    def __init__(self, segment: _Optional[_Union[Segment, _Mapping]] = ...) -> None: ...

class UpdateCacheRequest(_message.Message):
    __slots__ = ("cluster_name", "after_revision")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    after_revision: int
    def __init__(self, cluster_name: _Optional[str] = ..., after_revision: _Optional[int] = ...) -> None: ...

class UpdateCacheReply(_message.Message):
    __slots__ = ("revision", "is_reset", "is_level", "updates", "has_more")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    IS_LEVEL_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    is_reset: bool
    is_level: bool
    updates: _containers.RepeatedCompositeFieldContainer[CacheUpdate]
    has_more: bool
    def __init__(self, revision: _Optional[int] = ..., is_reset: _Optional[bool] = ..., is_level: _Optional[bool] = ..., updates: _Optional[_Iterable[_Union[CacheUpdate, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class CacheUpdate(_message.Message):
    __slots__ = ("topic_put", "topic_deleted", "shard_put", "shard_deleted", "segment_put", "segment_deleted", "node_put", "node_removed")
    TOPIC_PUT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_DELETED_FIELD_NUMBER: _ClassVar[int]
    SHARD_PUT_FIELD_NUMBER: _ClassVar[int]
    SHARD_DELETED_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_PUT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_DELETED_FIELD_NUMBER: _ClassVar[int]
    NODE_PUT_FIELD_NUMBER: _ClassVar[int]
    NODE_REMOVED_FIELD_NUMBER: _ClassVar[int]
    topic_put: Topic
    topic_deleted: Topic
    shard_put: Shard
    shard_deleted: str
    segment_put: Segment
    segment_deleted: SegmentName
    node_put: Node
    node_removed: int
    def __init__(self, topic_put: _Optional[_Union[Topic, _Mapping]] = ..., topic_deleted: _Optional[_Union[Topic, _Mapping]] = ..., shard_put: _Optional[_Union[Shard, _Mapping]] = ..., shard_deleted: _Optional[str] = ..., segment_put: _Optional[_Union[Segment, _Mapping]] = ..., segment_deleted: _Optional[_Union[SegmentName, _Mapping]] = ..., node_put: _Optional[_Union[Node, _Mapping]] = ..., node_removed: _Optional[int] = ...) -> None: ...

class SegmentName(_message.Message):
    __slots__ = ("shard_name", "number")
    SHARD_NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    shard_name: str
    number: int
    def __init__(self, shard_name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...
