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
    __slots__ = ("cluster_id", "node_id", "groups", "members", "offset_groups")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_GROUPS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    members: _containers.RepeatedCompositeFieldContainer[ClusterMember]
    offset_groups: int
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[ClusterMember, _Mapping]]] = ..., offset_groups: _Optional[int] = ...) -> None: ...

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
