"""Names of the objects of a tier, and nothing else that may be touched.

    <topic>/<partition>/manifest
    <topic>/<partition>/<epoch>-<first offset>-<nonce>.chunk
    <topic>/<partition>/<epoch>-<first offset>-<nonce>.segment

The nonce makes every name unique: a writer that lost its lease can never meet a name of the next.
Anything that is not named like this is foreign: it is reported and left alone.
"""

from __future__ import annotations

import re
import secrets
from typing import Final
from urllib.parse import quote, unquote

from penstock.record import ShardId

MANIFEST: Final = "manifest"
_OBJECT: Final = re.compile(r"(\d{10})-(\d{20})-[0-9a-f]{12}\.(chunk|segment)")


def shard_prefix(shard: ShardId) -> str:
    return f"{topic_prefix(shard.topic)}{shard.partition}/"


def topic_prefix(topic: str) -> str:
    text = quote(topic, safe="-_", encoding="utf-8", errors="surrogateescape")
    return f"{text.replace('.', '%2E')}/"


def chunk_name(epoch: int, first_offset: int) -> str:
    return _name(epoch, first_offset, "chunk")


def segment_name(epoch: int, first_offset: int) -> str:
    return _name(epoch, first_offset, "segment")


def _name(epoch: int, first_offset: int, kind: str) -> str:
    return f"{epoch:010d}-{first_offset:020d}-{secrets.token_hex(6)}.{kind}"


def is_penstock_object(name: str) -> bool:
    """Say whether the last part of a key is the name of a chunk or a descriptor."""
    return _OBJECT.fullmatch(name) is not None


def parse_manifest_key(key: str) -> ShardId | None:
    """Return the shard whose manifest `key` is, or None for any other object."""
    parts = key.split("/")
    if len(parts) != 3 or parts[2] != MANIFEST or not parts[1].isdigit():
        return None
    return ShardId(unquote(parts[0], errors="surrogateescape"), int(parts[1]))
