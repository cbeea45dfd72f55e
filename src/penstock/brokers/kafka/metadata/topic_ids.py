"""The UUIDs of topics, by which Kafka names them, too: the 128 bits of the ULID in a topic's id."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID, uuid5

from penstock.meta import parse_ulid

_OURS: Final = UUID("6f1c3f0e-2f6e-4c7b-9a63-52c1d3b8a0d4")


@lru_cache(maxsize=16_384)
def uuid_of(topic_id: str) -> UUID:
    """Return the UUID of a topic, which never changes and belongs to one topic only."""
    number = parse_ulid(topic_id.rpartition("-")[2])
    if number is None:
        return uuid5(_OURS, topic_id)  # the id has another form: it comes from another store
    return UUID(int=number)
