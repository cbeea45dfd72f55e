from penstock.remote import storage_pb2 as _storage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClockRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShardName(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class ShardNames(_message.Message):
    __slots__ = ("topic_id", "partitions", "revision")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    revision: int
    def __init__(self, topic_id: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., revision: _Optional[int] = ...) -> None: ...

class ShardAlteration(_message.Message):
    __slots__ = ("shard", "config", "revision")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    shard: str
    config: str
    revision: int
    def __init__(self, shard: _Optional[str] = ..., config: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ShardWrite(_message.Message):
    __slots__ = ("shard", "records", "producer", "acks")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    records: _containers.RepeatedCompositeFieldContainer[_storage_pb2.Record]
    producer: _storage_pb2.Producer
    acks: str
    def __init__(self, shard: _Optional[str] = ..., records: _Optional[_Iterable[_Union[_storage_pb2.Record, _Mapping]]] = ..., producer: _Optional[_Union[_storage_pb2.Producer, _Mapping]] = ..., acks: _Optional[str] = ...) -> None: ...

class ShardWritten(_message.Message):
    __slots__ = ("first", "count", "repeated_write")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REPEATED_WRITE_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    repeated_write: bool
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ..., repeated_write: _Optional[bool] = ...) -> None: ...

class ShardRead(_message.Message):
    __slots__ = ("shard", "offset", "max_records", "max_size", "isolation")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    shard: str
    offset: int
    max_records: int
    max_size: int
    isolation: str
    def __init__(self, shard: _Optional[str] = ..., offset: _Optional[int] = ..., max_records: _Optional[int] = ..., max_size: _Optional[int] = ..., isolation: _Optional[str] = ...) -> None: ...

class ShardTagRead(_message.Message):
    __slots__ = ("shard", "tag", "start_offset", "max_records", "max_size")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    shard: str
    tag: bytes
    start_offset: int
    max_records: int
    max_size: int
    def __init__(self, shard: _Optional[str] = ..., tag: _Optional[bytes] = ..., start_offset: _Optional[int] = ..., max_records: _Optional[int] = ..., max_size: _Optional[int] = ...) -> None: ...

class ShardKey(_message.Message):
    __slots__ = ("shard", "key", "begin_ms", "end_ms", "limit")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    shard: str
    key: bytes
    begin_ms: int
    end_ms: int
    limit: int
    def __init__(self, shard: _Optional[str] = ..., key: _Optional[bytes] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ShardPlace(_message.Message):
    __slots__ = ("shard", "offset")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    shard: str
    offset: int
    def __init__(self, shard: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ShardMoment(_message.Message):
    __slots__ = ("shard", "timestamp_ms", "strategy")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    shard: str
    timestamp_ms: int
    strategy: str
    def __init__(self, shard: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., strategy: _Optional[str] = ...) -> None: ...

class TransactionStep(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class OffsetStep(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class GroupQuestion(_message.Message):
    __slots__ = ("packed",)
    PACKED_FIELD_NUMBER: _ClassVar[int]
    packed: bytes
    def __init__(self, packed: _Optional[bytes] = ...) -> None: ...

class GroupAnswer(_message.Message):
    __slots__ = ("packed",)
    PACKED_FIELD_NUMBER: _ClassVar[int]
    packed: bytes
    def __init__(self, packed: _Optional[bytes] = ...) -> None: ...
