"""The native codec backend; `penstock.codec.pure`, the reference, says what each function does.

The field order of `StoredRecord`, `RawRecord` and `Damage` is part of this interface: the extension
builds them by position.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from typing_extensions import Buffer

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.subscriptions.interface import Route, Subscriber, Subscription
from penstock.brokers.mqtt.wire.packets import Packet
from penstock.brokers.mqtt.wire.pure.runs import EncodedRun, Outgoing
from penstock.codec import append_interface as interface
from penstock.codec.format import Damage, RawRecord
from penstock.record import Record, ShardId, StoredRecord

_Column = tuple[Buffer, Buffer, int, Buffer | None, int]
_ReadPage = tuple[list[StoredRecord], int, int, Damage | None]
_Columns = dict[str, tuple[bytes, ...]]

def java_hash(text: str) -> int: ...
def encode_raw(raw: RawRecord, checksum: bool) -> bytes: ...
def decode_raw(
    log: Buffer, base: int, position: int, check: bool, strict: bool = False
) -> RawRecord | Damage: ...
def check_log(
    log: Buffer, base: int, start: int, end: int, strict: bool = False
) -> tuple[int, int, Damage | None]: ...
def find_record(log: Buffer, base: int, start: int, end: int, strict: bool = False) -> int: ...
def inflate_body(body: bytes, sys_flag: int) -> bytes: ...
def prefault(log: Buffer, start_index: int, size: int) -> None: ...
def all_fit(records: Sequence[Record], size_max: int) -> bool: ...
def crc_patch(checksum: int, size_after: int, delta: bytes) -> int: ...
def read_one(
    log: Buffer,
    base: int,
    position: int,
    size: int,
    topic: str,
    queue_id: int,
    offset: int,
    now_ms: int,
    key: bytes | None,
    strict: bool = False,
) -> StoredRecord | None: ...
def index_newest(index: Buffer, slots: int, entries_max: int, topic: str, key: bytes) -> int: ...
def read_records(
    log: Buffer,
    base: int,
    units: bytes,
    first_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: Sequence[tuple[int, int]],
    now_ms: int,
    tag: str | None,
    key: bytes | None,
    strict: bool = False,
) -> _ReadPage: ...
def read_batches(
    log: Buffer,
    base: int,
    units: bytes,
    start_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: Sequence[tuple[int, int]],
    now_ms: int,
    tag: str | None,
    key: bytes | None,
    strict: bool = False,
) -> _ReadPage: ...
def read_columns(
    log: Buffer,
    base: int,
    units: bytes,
    kind: int,
    start_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: Sequence[tuple[int, int]],
    now_ms: int,
    tag: str | None,
    fields: int,
    strict: bool = False,
) -> tuple[_Columns, int, int, Damage | None]: ...
def read_keys(
    log: Buffer,
    base: int,
    units: bytes,
    start_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: Sequence[tuple[int, int]],
    now_ms: int,
    strict: bool = False,
) -> tuple[bytes, int, int, Damage | None]: ...
def index_fill(index: Buffer, slots: int, entries_max: int, entries: bytes) -> int: ...
def decode_inner(
    body: Buffer, kafka: bool, base_offset: int, store_timestamp_ms: int, leader_epoch: int
) -> list[StoredRecord]: ...
def set_tag_header(name: str) -> None: ...
def crc32c(data: Buffer) -> int: ...
def check_batch(
    batch: Buffer, limit: int, needs_keys: bool, /
) -> tuple[int, str, list[int], int, int, int, int]: ...
def check_plain(
    batch: Buffer, size_max: int, needs_keys: bool, /
) -> tuple[int, int, int, int, int, int, int, int, int, int] | None: ...
def parse_produce(
    request: Buffer, is_flexible: bool, /
) -> tuple[str | None, int, list[tuple[bytes, list[tuple[int, int, int]]]]]: ...
def rewrite_batch(
    batch: Buffer, codec: int | None, append_ms: int | None, newest_ms: int | None, /
) -> bytes: ...
def build_batch(
    records: list[StoredRecord], tag_header: str, transaction: tuple[int, int, int] | None
) -> bytes: ...
def slice_batches(
    log: Buffer,
    base: int,
    units: bytes,
    start_offset: int,
    until: int,
    topic: str,
    queue_id: int,
    max_size: int,
    deleted: Sequence[tuple[int, int]],
    strict: bool = False,
) -> tuple[list[bytes | tuple[int, int]], int, int, bool, Damage | None]: ...
def index_lookup(
    index: Buffer,
    slots: int,
    entries_max: int,
    text: str,
    begin_ms: int,
    end_ms: int,
    count_max: int,
) -> list[int]: ...
def index_relink(
    index: Buffer, slots: int, entries_max: int, keep: int, stop: int = ...
) -> None: ...

class Appender:
    def __init__(self, store_host: bytes, born_host: bytes, max_record_size: int) -> None: ...
    def attach_log(self, log: Buffer, base: int, start: int) -> None: ...
    def attach_device(self, descriptor: int) -> None: ...
    def finish_log(self) -> None: ...
    def detach_log(self) -> None: ...
    @property
    def end(self) -> int: ...
    @property
    def last_store_timestamp_ms(self) -> int: ...
    @last_store_timestamp_ms.setter
    def last_store_timestamp_ms(self, value: int) -> None: ...
    def add_queue(
        self, topic: str, queue_id: int, kind: int, next_offset: int, next_unit: int
    ) -> int: ...
    def remove_queue(self, handle: int) -> None: ...
    def queues(self) -> list[tuple[int, str, int, int, int, int]]: ...
    def next_offsets(self) -> bytes: ...
    def shown_offsets(self) -> bytes: ...
    def next_offset(self, handle: int) -> int: ...
    def next_unit(self, handle: int) -> int: ...
    def shown_offset(self, handle: int) -> int: ...
    def set_admission(
        self, handle: int, is_open: bool, is_sync: bool, epoch: int, is_following: bool = False
    ) -> None: ...
    accepting: bool
    durable: int
    def dirty_queues(self) -> list[int]: ...
    def held_units(self, handle: int) -> tuple[int, int]: ...
    def peek_units(self, handle: int) -> tuple[int, bytes]: ...
    def drop_units(self, handle: int, until_unit: int) -> None: ...
    def read_units(self, handle: int, unit: int, count: int) -> bytes: ...
    def truncate_queue(self, handle: int, next_offset: int, next_unit: int) -> None: ...
    def restart_queue(self, handle: int, next_offset: int, next_unit: int) -> None: ...
    def skip_offsets(self, handle: int, until: int) -> None: ...
    def drain_times(self, handle: int) -> list[tuple[int, int]]: ...
    def block_max(self, handle: int) -> int: ...
    def set_block_max(self, handle: int, timestamp_ms: int) -> None: ...
    def attach_index(self, index: Buffer, slots: int, entries_max: int) -> None: ...
    def release_index(self) -> None: ...
    def set_index_end(self, position: int, count: int) -> None: ...
    @property
    def index_attached(self) -> int: ...
    @property
    def index_full(self) -> int: ...
    @property
    def index_room(self) -> int: ...
    def append(self, handle: int, record: Record, now_ms: int, epoch: int) -> int: ...
    def append_many(
        self,
        handle: int,
        records: Sequence[Record],
        now_ms: int,
        epoch: int,
        producer: str | None,
        transaction: str | None = None,
    ) -> int: ...
    def append_columns(
        self,
        handle: int,
        count: int,
        values: _Column,
        keys: _Column | None,
        tags: _Column | None,
        timestamps: Buffer | None,
        now_ms: int,
        epoch: int,
        producer: str | None,
    ) -> int: ...
    def append_batch(
        self,
        handle: int,
        body: Buffer,
        count: int,
        now_ms: int,
        epoch: int,
        born_ms: int,
        producer: str | None,
        kafka: bool,
        tag_header: str | None = None,
    ) -> int: ...
    def append_encoded(self, handle: int, data: Buffer, strict: bool = False) -> int: ...
    def replay(
        self,
        log: Buffer,
        base: int,
        start: int,
        end: int,
        index: bool,
        special_topic_suffix: str,
        groups: bool = True,
        strict: bool = False,
    ) -> tuple[int, int, int, Damage | None, list[tuple[int, int]]]: ...

class WriteLock:
    def __init__(self) -> None: ...
    def acquire(self, timeout_s: float) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class GroupCommit:
    def __init__(self, durable: int) -> None: ...
    @property
    def durable(self) -> int: ...
    def set_durable(self, durable: int) -> None: ...
    def sync_natively(
        self,
        appender: interface.Appender,
        synced: Callable[[int, int, list[float]], None],
        failed: Callable[[str], None],
    ) -> None: ...
    def wait(self, position: int, sync: Callable[[], int]) -> None: ...

class AppendPath:
    def __init__(
        self,
        appender: interface.Appender,
        lock: interface.WriteLock,
        group_commit: interface.GroupCommit,
        sync: Callable[[], int],
        handles: Mapping[ShardId, int],
        now: Callable[[], int] | None,
        patience_s: float,
        otherwise: Callable[[ShardId, Record, int | None, int], int],
    ) -> None: ...
    def append(self, shard: ShardId, record: Record, size_max: int | None = ...) -> int: ...
    def try_append(self, shard: ShardId, record: Record, size_max: int) -> int: ...
    def append_many(
        self, shard: ShardId, records: Sequence[Record], size_max: int | None = ...
    ) -> int: ...

_Configuration = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], bool]
_Outgoing = list[tuple[int, int, bytes]]
_Committed = list[tuple[int, int, int, bytes, bytes]]
_Ready = tuple[
    tuple[int, int, int] | None,
    bool,
    list[tuple[int, bytes]],
    tuple[int, int, _Configuration] | None,
    _Outgoing,
    _Outgoing,
    _Committed,
    list[tuple[int, bytes]],
]

_PackedOffsets = tuple[str, str, list[bytes], list[bytes], int, int, int]

def pack_offsets(data: bytes) -> tuple[int, list[_PackedOffsets]] | None: ...
def put_newer(
    keys: list[bytes],
    rows: list[bytes],
    compared: int,
    changes: dict[bytes, bytes | None],
    caches: tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]],
    get: Callable[[bytes], bytes | None],
) -> tuple[int, list[tuple[int, bytes]]]: ...

class RaftCore:
    """One member of one Raft group, without input or output; it has no reference implementation.

    A message goes out as (to, kind, bytes); a row of the log is (index, bytes); a committed entry
    is (index, term, kind, context, data).
    """

    def __init__(
        self,
        node_id: int,
        *,
        configuration: _Configuration,
        hard_state: tuple[int, int, int],
        cut: tuple[int, int],
        rows: Sequence[tuple[int, bytes]],
        applied: int,
        applied_term: int,
        election_ticks: int,
        heartbeat_ticks: int,
        message_size_max: int,
        uncommitted_size_max: int,
        seed: int,
    ) -> None: ...
    def tick(self) -> None: ...
    def step(self, message: bytes) -> None: ...
    def propose(self, context: bytes, data: bytes) -> bool: ...
    def propose_conf_change(self, context: bytes, changes: Sequence[tuple[int, int]]) -> bool: ...
    def apply_conf_change(self, kind: int, data: bytes) -> _Configuration: ...
    def read_index(self, context: bytes) -> None: ...
    def campaign(self) -> None: ...
    def transfer(self, to: int) -> None: ...
    def report_unreachable(self, node: int) -> None: ...
    def report_snapshot(self, node: int, is_done: bool) -> None: ...
    def has_ready(self) -> bool: ...
    def ready(self) -> _Ready: ...
    def advance(self) -> tuple[_Outgoing, _Committed]: ...
    def applied_to(self, index: int, term: int) -> None: ...
    def cut(self, index: int) -> None: ...
    def retarget_snapshot(
        self, message: bytes, index: int, term: int, configuration: _Configuration
    ) -> bytes: ...
    def status(self) -> tuple[str, int, int, int, int, int, int, int]: ...
    def term(self) -> int: ...
    def leader(self) -> int: ...
    def is_leader(self) -> bool: ...
    def configuration(self) -> _Configuration: ...
    def progress(self) -> list[tuple[int, int, int, str, bool]]: ...
    @staticmethod
    def peek(message: bytes) -> tuple[int, int, int, int, int]: ...

def find_special(
    log: Buffer, base: int, start: int, end: int, epoch: int, special_suffix: str
) -> list[int]: ...
def copy_records(
    log: Buffer,
    base: int,
    units: bytes,
    kind: int,
    offset: int,
    topic: str,
    queue_id: int,
    deleted: Sequence[tuple[int, int]],
    max_size: int,
    strict: bool = False,
    whole_groups: bool = False,
) -> tuple[bytes, int, Damage | None]: ...
def place_records(
    data: Buffer,
    kind: int,
    position: int,
    offset: int,
    gap_max: int,
    max_size: int,
    topic: str | None = None,
    queue_id: int = 0,
) -> tuple[bytes, int, int]: ...
def index_records(
    data: Buffer,
    base: int,
    units: bytes,
    kind: int,
    offset: int,
    topic: str,
    queue_id: int,
    filter_size: int,
) -> tuple[bytes, bytes, int, int, Damage | None]: ...
def block_checksums(data: Buffer, block_size: int) -> bytes: ...
def read_blocks(
    path: str, start: int, buffer: Buffer, summed: int, block_size: int
) -> tuple[int, bytes]:
    """Fill `buffer` from a file; return how many bytes came, and the CRC-32 of every block of the
    first `summed` of them, as `block_checksums`."""

class ReadAhead:
    """Reads files in the order asked for, by a thread of its own and by who waits for them; only
    one thread may ask and wait."""

    def __init__(self, block_size: int) -> None: ...
    def ask(self, path: str, buffer: Buffer, summed: int) -> None:
        """Begin to fill `buffer` from the begin of a file on; it is in use until `wait` returns."""

    def wait(self) -> tuple[int, bytes]:
        """Wait for the oldest file: return as `read_blocks` does, or raise `OSError`."""

    def close(self) -> None: ...

def mqtt_decode(
    view: Buffer,
    version: int,
    packet_size_max: int,
    topic_bytes_max: int,
    topic_levels_max: int,
    user_properties_max: int,
    filters_max: int,
) -> tuple[list[Packet], int, bool]:
    """Decode the packets at the beginning of a buffer. Return them, how many bytes they have, and
    whether the reference has to look at the next one."""

def mqtt_encode_acks(kind: int, packet_ids: Sequence[int]) -> bytes: ...

class MqttEncodedRun:
    """`penstock.brokers.mqtt.wire.pure.runs.EncodedRun`."""

    def __init__(
        self,
        messages: list[Outgoing],
        is_5: bool,
        qos: int,
        retain_as_published: bool,
        identifiers: Sequence[int],
        now_ms: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def largest(self) -> int: ...
    @property
    def has_expired(self) -> bool: ...
    @property
    def joined(self) -> bytes: ...
    def is_expired(self, index: int) -> bool: ...
    def packet(self, index: int, packet_id: int, dup: bool = False) -> bytes: ...
    def stamped(self, start: int, stop: int, sequence: int) -> bytes: ...

class MqttGrants:
    """What the publishes of one client may do, for `MqttIntake.receive`."""

    def __init__(self) -> None: ...
    def clear(self) -> None: ...

class MqttReceivedRun:
    """Publishes of one shard and QoS that were received and stored, with consecutive offsets."""

    def __len__(self) -> int: ...
    @property
    def topic(self) -> str:
        """The topic of the first message."""

    @property
    def mapped(self) -> object:
        """What `MqttIntake.admit` got for the topic of the first message."""

    @property
    def shard(self) -> int:
        """What `MqttIntake.add_shard` returned."""

    def split(self, routes: MqttRouteCache) -> list[tuple[Route, MqttReceivedRun]]:
        """Return the parts whose messages have the same route, in order."""

    @property
    def qos(self) -> int: ...
    @property
    def first(self) -> int:
        """Offset of the first message."""

    @property
    def publisher(self) -> int: ...
    def packet_ids(self) -> list[int]: ...
    def acks(self, reason_code: int) -> bytes:
        """Return the acknowledgements with a reason code, for MQTT 5; nothing for QoS 0."""

    def encode(
        self,
        is_5: bool,
        qos: int,
        retain_as_published: bool,
        identifiers: Sequence[int],
        now_ms: int,
    ) -> EncodedRun: ...
    def messages(self, shard: object) -> list[Message]: ...

class MqttIntake:
    """Stores the publishes of received buffers whose topics were admitted."""

    def __init__(
        self,
        path: interface.AppendPath,
        packet_size_max: int,
        topic_bytes_max: int,
        topic_levels_max: int,
        user_properties_max: int,
    ) -> None: ...
    def __len__(self) -> int:
        """Return how many topics are admitted."""

    def clear(self) -> None:
        """Drop all topics, shards and grants."""

    def add_shard(self, shard: ShardId, size_max: int) -> int:
        """Add a shard that takes records of at most `size_max` bytes; return its number."""

    def admit(self, topic: str, mapped: object, shard: int) -> bool:
        """Admit the publishes of a topic; return whether there was room for it."""

    def grant(self, grants: MqttGrants, topic: str, qos: int) -> None:
        """Allow the publishes of a client to a topic that was admitted."""

    def receive(
        self,
        view: Buffer,
        version: int,
        grants: MqttGrants | None,
        received: Mapping[int, object],
        qos2_max: int,
        session: int,
        is_stamped: bool,
        has_receipts: bool,
        now_ms: int,
        leaves_acks: bool,
        routes: MqttRouteCache | None = None,
    ) -> tuple[
        int,
        bool,
        bytes,
        list[MqttReceivedRun],
        list[tuple[int, int, int]],
        list[tuple[int, list[int]]],
        int,
    ]:
        """Store the publishes at the beginning of a buffer, as far as nothing else is needed.

        `grants` None: the client may do everything. `received` has the QoS 2 packet ids of the
        client that are not released; at most `qos2_max` are added. With `leaves_acks` the caller
        asks the runs for acknowledgements; with `routes`, too, publishes without subscribers are
        acknowledged as such, and runs have all topics of a shard. Return the consumed bytes,
        whether the next packet has to be decoded, replies, runs, (shard, first offset, count) of
        each group, (type, packet ids) of acknowledgements, and the bytes of topics and
        payloads."""

class MqttSubscriptionTree:
    """`penstock.brokers.mqtt.subscriptions.interface.Tree`."""

    def __init__(self, steps_max: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def incomplete(self) -> int: ...
    def generation(self, topic: str) -> tuple[int, int]: ...
    def add(self, subscriber: Subscriber, subscription: Subscription) -> None: ...
    def remove(self, subscriber: Subscriber, subscription: Subscription) -> bool: ...
    def match(self, topic: str) -> Route: ...

class MqttRouteCache:
    """`penstock.brokers.mqtt.subscriptions.interface.RoutedTopics`."""

    def __init__(self, tree: MqttSubscriptionTree, topics_max: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def misses(self) -> int: ...
    def find(self, topic: str) -> Route: ...
