"""On-disk format of the replicated logs, version 1: what a Raft group keeps, in RocksDB rows.

    family raft-meta, raft-offset              family meta, offset
    group · 1            hard state            group · 0 · "applied"       applied index
    group · 2            configuration         group · generation · key    a row of the state
    group · 3            cut: last entry that was dropped
    group · 4 · index    an entry

`group` is a u16: 0 in raft-meta, n for offset-n in raft-offset. An entry is what raft-rs calls
one: index, term, type, context and data. A log of one node is the log of a group with one voter,
so that either can open what the other wrote.

The data of an entry is a request, or a bundle of concurrent requests. A bundle begins with 0xC1,
which is not used by MessagePack: `(size u32 · request)*`.

The applied index is stored with the state, not with the log, because it is written in one batch
with the rows that it covers. The keys of the state have a generation: a snapshot from another node
is loaded under the next one, one write of the applied row switches to it, and the old rows are
removed as one range. `docs/designs/2026-11-15-solo-log.md` has the tables below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from penstock.platform.layout import Field, Layout

VERSION: Final = 1

META_LOG: Final = "raft-meta"
OFFSET_LOG: Final = "raft-offset"
META_STATE: Final = "meta"
OFFSET_STATE: Final = "offset"
FAMILIES: Final = (META_LOG, OFFSET_LOG, META_STATE, OFFSET_STATE)

_BUNDLE_HEAD: Final = b"\xc1"

ENTRY_NORMAL: Final = 0
ENTRY_CONF_CHANGE: Final = 1
ENTRY_CONF_CHANGE_V2: Final = 2

HARD_STATE: Final = Layout(
    "hard state",
    Field("term", "u64", "current term; 1 in a log of one node"),
    Field("vote", "u64", "node voted for in this term"),
    Field("commit", "u64", "last entry known to be committed"),
    size=24,
)
CUT: Final = Layout(
    "cut",
    Field("index", "u64", "last entry that was dropped; the state holds its effect"),
    Field("term", "u64", "its term"),
    size=16,
)
ENTRY: Final = Layout(
    "head of an entry; context and data follow",
    Field("term", "u64", "term of the leader that made it"),
    Field("kind", "u8", "0 normal, 1 and 2 changes of the configuration, as in raft-rs"),
    Field("context_size", "u32", "bytes of context; the data takes what remains"),
    size=13,
)
APPLIED: Final = Layout(
    "applied",
    Field("index", "u64", "last entry whose effect the state holds"),
    Field("term", "u64", "its term"),
    Field("generation", "u32", "which rows are the state"),
    size=20,
)

_HARD_STATE_KIND: Final = 1
_CONFIGURATION_KIND: Final = 2
_CUT_KIND: Final = 3
_ENTRY_KIND: Final = 4
_GROUP_SIZE: Final = 2
_APPLIED_NAME: Final = b"applied"

IDENTITY_KEY: Final = b"\xff\xff\xff"
"""In raft-meta: whose directory this is. No group has the number 0xFFFF."""

FIRST_GENERATION: Final = 1


class Identity(Struct, frozen=True, array_like=True):
    """Whose directory it is; written once and compared at every start."""

    version: int
    cluster_id: str
    node_id: int
    offset_groups: int
    incarnation: str = ""
    """Drawn when the directory was made for a cluster: a wiped node has another one."""


class Configuration(Struct, frozen=True, array_like=True):
    """Who votes; the fields of raft-rs's ConfState."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False


class Entry(Struct, frozen=True):
    index: int
    term: int
    data: bytes
    kind: int = ENTRY_NORMAL
    context: bytes = b""


_encoder: Final = Encoder()
_identity_decoder: Final = Decoder(Identity)
_configuration_decoder: Final = Decoder(Configuration)


def encode_identity(identity: Identity) -> bytes:
    fields = (identity.version, identity.cluster_id, identity.node_id, identity.offset_groups)
    # A single node writes four fields, as it always did.
    return _encoder.encode((*fields, identity.incarnation) if identity.incarnation else fields)


def decode_identity(row: bytes) -> Identity:
    return _identity_decoder.decode(row)


def encode_configuration(configuration: Configuration) -> bytes:
    return _encoder.encode(configuration)


def decode_configuration(row: bytes) -> Configuration:
    return _configuration_decoder.decode(row)


def bundle(requests: Sequence[bytes]) -> bytes:
    """Return the data of an entry that holds these requests, at least one."""
    if len(requests) == 1:
        return requests[0]
    parts = [_BUNDLE_HEAD]
    for request in requests:
        parts += (len(request).to_bytes(4, "big"), request)
    return b"".join(parts)


def unbundle(data: bytes) -> list[bytes]:
    """Return the requests that the data of an entry holds. Raises `ValidationError`."""
    if data[:1] != _BUNDLE_HEAD:
        return [data]
    requests: list[bytes] = []
    position = 1
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise ValidationError("an entry of several requests is cut short")
        requests.append(data[position + 4 : end])
        position = end
    return requests


def encode_entry(entry: Entry) -> bytes:
    head = ENTRY.pack(entry.term, entry.kind, len(entry.context))
    return head + entry.context + entry.data


def decode_entry(index: int, row: bytes) -> Entry:
    term, kind, context_size = ENTRY.unpack_from(row)
    data_at = ENTRY.size + context_size
    return Entry(
        index=index, term=term, kind=kind, context=row[ENTRY.size : data_at], data=row[data_at:]
    )


def hard_state_key(group: int) -> bytes:
    return _log_key(group, _HARD_STATE_KIND)


def configuration_key(group: int) -> bytes:
    return _log_key(group, _CONFIGURATION_KIND)


def cut_key(group: int) -> bytes:
    return _log_key(group, _CUT_KIND)


def entry_key(group: int, index: int) -> bytes:
    return _log_key(group, _ENTRY_KIND) + index.to_bytes(8, "big")


def entry_index(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def entries_end(group: int) -> bytes:
    """Return the first key after all entries of a group."""
    return _log_key(group, _ENTRY_KIND + 1)


def applied_key(group: int) -> bytes:
    return state_prefix(group, 0) + _APPLIED_NAME


def state_prefix(group: int, generation: int) -> bytes:
    return group.to_bytes(_GROUP_SIZE, "big") + generation.to_bytes(4, "big")


def _log_key(group: int, kind: int) -> bytes:
    return group.to_bytes(_GROUP_SIZE, "big") + bytes((kind,))
