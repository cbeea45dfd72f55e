"""The journal of a store: which shards exist and how they are kept, as records of the log itself.

    %ctl_0     {"command":"keep_shard","version":1,"topic":"orders","partition":0,…}

An empty shard has no record of its own, and its state is put on the device only with the next
checkpoint; its line in the journal lets it survive a crash before that. Lines are folded when the
log is replayed; once a checkpoint holds what they say, nobody needs them any more.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.engine.segment.control import CONTROL_SUFFIX
from penstock.errors import BadRequestError
from penstock.record import QueueKind, Record, ShardId

JOURNAL: Final = ShardId(CONTROL_SUFFIX, 0)
JOURNAL_VERSION: Final = 1


class KeepShard(Struct, frozen=True, kw_only=True, tag="keep_shard", tag_field="command"):
    """The shard exists."""

    version: int = JOURNAL_VERSION
    topic: str
    partition: int
    kind: QueueKind
    config: bytes = b""
    """As the engine above keeps it; opaque here."""

    @property
    def shard(self) -> ShardId:
        return ShardId(self.topic, self.partition)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(KeepShard)


def encode_line(line: KeepShard) -> Record:
    return Record(value=_encoder.encode(line))


def decode_line(body: bytes) -> KeepShard:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BadRequestError(f"the journal holds no such line: {error}") from error
