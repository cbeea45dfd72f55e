"""The tables of the metadata state machine, read and written as the structures of `model`.

    0x10 topics    topic_id                      → Topic
    0x11 names     namespace, name               → topic_id
    0x12 shards    topic_id, partition           → Shard
    0x13 segments  topic_id, partition, number   → Segment
    0x14 nodes     node_id                       → Node
    0x15 leases    topic_id, partition           → Lease
    0x16 events    revision                      → Event*
    0x17 members   node_id                       → Member
    0x18 beats     node_id                       → revision of the last heartbeat
    0x19 stores    node_id                       → Store
    0x1A losses    topic_id, partition           → Loss

Queries use the same functions on a `Reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.meta.events import Event, NodePut, ShardPut
from penstock.meta.state.keys import Part, after_prefix, encode_key
from penstock.meta.state.model import (
    Lease,
    Loss,
    Member,
    Node,
    Segment,
    Shard,
    Store,
    Topic,
    stored_fields,
    stored_node,
)
from penstock.meta.state.view import Reader, View

RowT = TypeVar("RowT", bound=Struct)

_encoder: Final = Encoder()


class Table(Generic[RowT]):
    """Rows of one kind, found by the parts of their key."""

    def __init__(
        self, number: int, kind: type[RowT], encode: Callable[[RowT], bytes] = _encoder.encode
    ) -> None:
        self.number: Final = number
        self._decoder: Final = Decoder(kind)
        self.encode: Final = encode

    def get(self, view: Reader, *parts: Part) -> RowT | None:
        row = view.get(encode_key(self.number, *parts))
        return None if row is None else self._decoder.decode(row)

    def put(self, view: View, row: RowT, *parts: Part) -> None:
        view.put(encode_key(self.number, *parts), self.encode(row))

    def delete(self, view: View, *parts: Part) -> None:
        view.delete(encode_key(self.number, *parts))

    def scan(self, view: Reader, *parts: Part) -> Iterator[RowT]:
        """Yield the rows whose key begins with `parts`, in key order."""
        prefix = encode_key(self.number, *parts)
        for _, row in view.scan(prefix, after_prefix(prefix)):
            yield self._decoder.decode(row)


def encode_shard(shard: Shard) -> bytes:
    return _encoder.encode(stored_fields(shard))


def _encode_node(node: Node) -> bytes:
    return _encoder.encode(stored_node(node))


TOPICS: Final = Table(0x10, Topic)
SHARDS: Final = Table(0x12, Shard, encode_shard)
SEGMENTS: Final = Table(0x13, Segment)
NODES: Final = Table(0x14, Node, _encode_node)
LEASES: Final = Table(0x15, Lease)

NAMES_TABLE: Final = 0x11
EVENTS_TABLE: Final = 0x16

MEMBERS: Final = Table(0x17, Member)

BEATS_TABLE: Final = 0x18

STORES: Final = Table(0x19, Store)
LOSSES: Final = Table(0x1A, Loss)

_events_decoder: Final = Decoder(tuple[Event, ...])


def find_topic_id(view: Reader, namespace: str, name: str) -> str | None:
    row = view.get(encode_key(NAMES_TABLE, namespace, name))
    return None if row is None else row.decode()


def find_topic(view: Reader, namespace: str, name: str) -> Topic | None:
    topic_id = find_topic_id(view, namespace, name)
    return None if topic_id is None else TOPICS.get(view, topic_id)


def list_topics(view: Reader, namespace: str | None) -> Iterator[Topic]:
    """Yield the topics that can be used, by namespace and name."""
    parts = () if namespace is None else (namespace,)
    prefix = encode_key(NAMES_TABLE, *parts)
    for _, topic_id in view.scan(prefix, after_prefix(prefix)):
        topic = TOPICS.get(view, topic_id.decode())
        assert topic is not None, "a name points at a topic"
        yield topic


def read_beats(view: Reader) -> dict[int, int]:
    """Return the revision of each node's last heartbeat."""
    prefix = encode_key(BEATS_TABLE)
    return {
        int.from_bytes(key[1:], "big"): int.from_bytes(row, "big")
        for key, row in view.scan(prefix, after_prefix(prefix))
    }


def encode_events(events: tuple[Event, ...]) -> bytes:
    return _encoder.encode([_stored_event(event) for event in events])


def _stored_event(event: Event) -> object:
    if isinstance(event, ShardPut):
        return (ShardPut.__struct_config__.tag, stored_fields(event.shard))
    if isinstance(event, NodePut):
        return (NodePut.__struct_config__.tag, stored_node(event.node))
    return event


def scan_events(view: Reader, after: int) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Yield (revision, events) for the revisions above `after` that caused events."""
    start = encode_key(EVENTS_TABLE, after + 1)
    for key, row in view.scan(start, after_prefix(encode_key(EVENTS_TABLE))):
        yield int.from_bytes(key[1:], "big"), _events_decoder.decode(row)
