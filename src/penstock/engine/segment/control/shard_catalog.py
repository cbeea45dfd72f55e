"""The journal of a store: which shards exist and how they are kept, as records of the log itself.

    %ctl_0     {"command":"keep_shard","version":1,"topic":"orders","partition":0,…}
               {"command":"drop_shard","version":1,"topic":"orders","partition":0}
               {"command":"cut_shard","version":1,"topic":"orders","partition":0,"offset":150}
               {"command":"start_shard","version":1,"topic":"orders","partition":0,"offset":900}

An empty shard has no record of its own, and its state is put on the device only with the next
checkpoint; its line in the journal lets it survive a crash before that, and a deleted one stay
deleted. What was cut off a shard stays dead, too, should all states be lost; a copy of a shard that
began anew where its leader's log begins stays without what it had before. The journal is this
store's own, replicas have other ones. Lines are folded when the log is replayed; a state that was
saved after a line knows what it says (`folded_until`).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.codec.format import CONTROL_SUFFIX
from penstock.errors import BadRequestError
from penstock.record import QueueKind, Record, ShardId

CATALOG: Final = ShardId(CONTROL_SUFFIX, 0)
CATALOG_VERSION: Final = 1


class _Entry(Struct, frozen=True, kw_only=True):
    version: int = CATALOG_VERSION
    topic: str
    partition: int

    @property
    def shard(self) -> ShardId:
        return ShardId(self.topic, self.partition)


class CreateEntry(_Entry, frozen=True, kw_only=True, tag="keep_shard", tag_field="command"):
    """The shard exists."""

    kind: QueueKind
    config: bytes = b""
    """As the engine above keeps it; opaque here."""
    born_at: int = 0
    """See `ShardState.born_at`; every line of one shard has the same."""
    start_offset: int | UnsetType = UNSET
    """What its first record gets; unset: 0."""
    replicated: bool | UnsetType = UNSET
    """Whether it has copies on other nodes; unset: not."""


class DropEntry(_Entry, frozen=True, kw_only=True, tag="drop_shard", tag_field="command"):
    """The shard exists no more; what the log holds of it before this line is dead."""


class TruncateEntry(_Entry, frozen=True, kw_only=True, tag="cut_shard", tag_field="command"):
    """What the log holds of the shard from `offset` on before this line is dead."""

    offset: int


class RestartEntry(_Entry, frozen=True, kw_only=True, tag="start_shard", tag_field="command"):
    """What the log holds of the shard before this line is dead; its next record has `offset`."""

    offset: int


CatalogEntry = CreateEntry | DropEntry | TruncateEntry | RestartEntry

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[CatalogEntry]] = msgspec.json.Decoder(CatalogEntry)


def encode_entry(line: CatalogEntry) -> Record:
    return Record(value=_encoder.encode(line))


def decode_entry(body: bytes) -> CatalogEntry:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BadRequestError(f"the journal holds no such line: {error}") from error
