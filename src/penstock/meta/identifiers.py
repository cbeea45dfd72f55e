"""Identifiers that are never given twice: ULIDs, and topic ids that RocketMQ accepts as topics.

A ULID is 48 bits of time and 80 of randomness in 26 characters that sort by time. A topic id is
what one can still read of the topic's name, then a ULID: `orders-eu-01JCQ…`.
"""

from __future__ import annotations

from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHARACTERS: Final = frozenset(_ALPHABET)
_AS_DIGITS: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_ULID_CHARACTERS: Final = 26
ULID_RANDOM_SIZE: Final = 10
_SLUG_CHARACTERS_MAX: Final = 48
_SLUG_ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def make_ulid(time_ms: int, randomness: bytes) -> str:
    """Return the ULID of a moment and `ULID_RANDOM_SIZE` random bytes."""
    assert len(randomness) == ULID_RANDOM_SIZE, "a ULID has 80 random bits"
    number = (time_ms & ((1 << 48) - 1)) << 80 | int.from_bytes(randomness, "big")
    characters = [
        _ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(_ULID_CHARACTERS))
    ]
    return "".join(characters)


def parse_ulid(text: str) -> int | None:
    """Return the 128 bits of a ULID, or None for another text."""
    if len(text) != _ULID_CHARACTERS or not _CHARACTERS.issuperset(text):
        return None
    number = int(text.translate(_AS_DIGITS), 32)
    return number if number < 1 << 128 else None


def make_topic_id(name: str, time_ms: int, randomness: bytes) -> str:
    """Return a new id for a topic called `name`, which may hold any characters."""
    slug = "".join(c if c in _SLUG_ALLOWED else "-" for c in name[:_SLUG_CHARACTERS_MAX].lower())
    words = [word for word in slug.split("-") if word]
    readable = "-".join(words)[:_SLUG_CHARACTERS_MAX] or "topic"
    return f"{readable}-{make_ulid(time_ms, randomness)}"
