from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "message", "fields", "partial_write")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_WRITE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    fields: str
    partial_write: PartialWrite
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., fields: _Optional[str] = ..., partial_write: _Optional[_Union[PartialWrite, _Mapping]] = ...) -> None: ...

class PartialWrite(_message.Message):
    __slots__ = ("partitions", "offsets", "errors")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    errors: _containers.RepeatedCompositeFieldContainer[PartError]
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., errors: _Optional[_Iterable[_Union[PartError, _Mapping]]] = ...) -> None: ...

class PartError(_message.Message):
    __slots__ = ("topic", "partition", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: Error
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("value", "key", "tags", "headers", "timestamp_ms", "expires_at_ms", "offset", "partition", "store_timestamp_ms", "leader_epoch")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    tags: _containers.RepeatedScalarFieldContainer[bytes]
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_ms: int
    expires_at_ms: int
    offset: int
    partition: int
    store_timestamp_ms: int
    leader_epoch: int
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., tags: _Optional[_Iterable[bytes]] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., offset: _Optional[int] = ..., partition: _Optional[int] = ..., store_timestamp_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class TopicName(_message.Message):
    __slots__ = ("namespace", "topic")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "options")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    partitions: int
    options: str
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., partitions: _Optional[int] = ..., options: _Optional[str] = ...) -> None: ...

class TopicReply(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: str
    def __init__(self, info: _Optional[str] = ...) -> None: ...

class TopicsReply(_message.Message):
    __slots__ = ("infos",)
    INFOS_FIELD_NUMBER: _ClassVar[int]
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, infos: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicPlace(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    partitions: int
    def __init__(self, topic_id: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class JsonReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class PartitionRequest(_message.Message):
    __slots__ = ("name", "partition", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    partition: int
    offset: int
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("id", "epoch", "sequence", "is_transactional")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_TRANSACTIONAL_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    sequence: int
    is_transactional: bool
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., is_transactional: _Optional[bool] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("name", "records", "partition", "producer", "acks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    records: _containers.RepeatedCompositeFieldContainer[Record]
    partition: int
    producer: Producer
    acks: str
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., partition: _Optional[int] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ..., acks: _Optional[str] = ...) -> None: ...

class WriteTopicsRequest(_message.Message):
    __slots__ = ("namespace", "topics", "records")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, namespace: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ("partitions", "offsets", "failure")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    failure: Error
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("name", "partition", "offset", "max_records", "max_size", "follow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    partition: int
    offset: int
    max_records: int
    max_size: int
    follow: bool
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_records: _Optional[int] = ..., max_size: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class RecordsReply(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class ColumnsRequest(_message.Message):
    __slots__ = ("name", "partition", "offset", "until", "columns", "tag", "max_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    partition: int
    offset: int
    until: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    tag: bytes
    max_size: int
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., until: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., tag: _Optional[bytes] = ..., max_size: _Optional[int] = ...) -> None: ...

class ColumnsReply(_message.Message):
    __slots__ = ("arrow",)
    ARROW_FIELD_NUMBER: _ClassVar[int]
    arrow: bytes
    def __init__(self, arrow: _Optional[bytes] = ...) -> None: ...

class ReadByTagRequest(_message.Message):
    __slots__ = ("name", "tag", "partition", "start_offset", "start_offsets", "max_records", "max_size")
    class StartOffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    tag: bytes
    partition: int
    start_offset: int
    start_offsets: _containers.ScalarMap[int, int]
    max_records: int
    max_size: int
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., tag: _Optional[bytes] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., start_offsets: _Optional[_Mapping[int, int]] = ..., max_records: _Optional[int] = ..., max_size: _Optional[int] = ...) -> None: ...

class KeyRequest(_message.Message):
    __slots__ = ("name", "key", "begin_ms", "end_ms", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    key: bytes
    begin_ms: int
    end_ms: int
    limit: int
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., key: _Optional[bytes] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class OffsetsAtRequest(_message.Message):
    __slots__ = ("name", "timestamp_ms", "strategy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    name: TopicName
    timestamp_ms: int
    strategy: str
    def __init__(self, name: _Optional[_Union[TopicName, _Mapping]] = ..., timestamp_ms: _Optional[int] = ..., strategy: _Optional[str] = ...) -> None: ...

class PartitionOffsets(_message.Message):
    __slots__ = ("offsets",)
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class TopicPosition(_message.Message):
    __slots__ = ("topic", "partition", "offset", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("namespace", "positions", "seconds")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    positions: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    seconds: float
    def __init__(self, namespace: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class WaitReply(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class CountReply(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class CompactReply(_message.Message):
    __slots__ = ("records", "size")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    records: int
    size: int
    def __init__(self, records: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class GroupName(_message.Message):
    __slots__ = ("namespace", "group")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group: str
    def __init__(self, namespace: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class GroupOffsets(_message.Message):
    __slots__ = ("name", "positions", "caller")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    name: GroupName
    positions: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    caller: GroupCaller
    def __init__(self, name: _Optional[_Union[GroupName, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ..., caller: _Optional[_Union[GroupCaller, _Mapping]] = ...) -> None: ...

class GroupCaller(_message.Message):
    __slots__ = ("name", "member_id", "generation", "instance_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    name: GroupName
    member_id: str
    generation: int
    instance_id: str
    def __init__(self, name: _Optional[_Union[GroupName, _Mapping]] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., instance_id: _Optional[str] = ...) -> None: ...

class GroupProtocol(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class GroupJoin(_message.Message):
    __slots__ = ("caller", "client_id", "session_timeout_ms", "rebalance_timeout_ms", "protocol_type", "protocols", "wait_s", "client_host")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    caller: GroupCaller
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: _containers.RepeatedCompositeFieldContainer[GroupProtocol]
    wait_s: float
    client_host: str
    def __init__(self, caller: _Optional[_Union[GroupCaller, _Mapping]] = ..., client_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocols: _Optional[_Iterable[_Union[GroupProtocol, _Mapping]]] = ..., wait_s: _Optional[float] = ..., client_host: _Optional[str] = ...) -> None: ...

class GroupPart(_message.Message):
    __slots__ = ("member_id", "instance_id", "data")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    data: bytes
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class GroupJoined(_message.Message):
    __slots__ = ("code", "member_id", "generation", "protocol", "leader", "members")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    code: int
    member_id: str
    generation: int
    protocol: str
    leader: str
    members: _containers.RepeatedCompositeFieldContainer[GroupPart]
    def __init__(self, code: _Optional[int] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., protocol: _Optional[str] = ..., leader: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupPart, _Mapping]]] = ...) -> None: ...

class GroupSync(_message.Message):
    __slots__ = ("caller", "assignments", "protocol_type", "protocol", "wait_s")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    caller: GroupCaller
    assignments: _containers.RepeatedCompositeFieldContainer[GroupPart]
    protocol_type: str
    protocol: str
    wait_s: float
    def __init__(self, caller: _Optional[_Union[GroupCaller, _Mapping]] = ..., assignments: _Optional[_Iterable[_Union[GroupPart, _Mapping]]] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class GroupSynced(_message.Message):
    __slots__ = ("code", "assignment")
    CODE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    code: int
    assignment: bytes
    def __init__(self, code: _Optional[int] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class GroupCodeReply(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: int
    def __init__(self, code: _Optional[int] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "client_id", "client_host", "instance_id", "partitions")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    client_id: str
    client_host: str
    instance_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    def __init__(self, member_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., instance_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ...) -> None: ...

class CommittedRequest(_message.Message):
    __slots__ = ("name", "topics", "all_topics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALL_TOPICS_FIELD_NUMBER: _ClassVar[int]
    name: GroupName
    topics: _containers.RepeatedScalarFieldContainer[str]
    all_topics: bool
    def __init__(self, name: _Optional[_Union[GroupName, _Mapping]] = ..., topics: _Optional[_Iterable[str]] = ..., all_topics: _Optional[bool] = ...) -> None: ...

class GroupReply(_message.Message):
    __slots__ = ("name", "last_commit_ms", "offsets", "lag", "state", "protocol", "members", "problems")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    name: GroupName
    last_commit_ms: int
    offsets: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    lag: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    state: str
    protocol: str
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    problems: _containers.RepeatedCompositeFieldContainer[PartitionProblem]
    def __init__(self, name: _Optional[_Union[GroupName, _Mapping]] = ..., last_commit_ms: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ..., lag: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ..., state: _Optional[str] = ..., protocol: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., problems: _Optional[_Iterable[_Union[PartitionProblem, _Mapping]]] = ...) -> None: ...

class PartitionProblem(_message.Message):
    __slots__ = ("topic", "partition", "problem")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    problem: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class GroupsReply(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupReply]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupReply, _Mapping]]] = ...) -> None: ...
