"""A record's properties: `name 0x01 value 0x02`, repeated, without escapes.

RocketMQ's readers build a map from them: an entry with an empty name or value is not there, the
last of a repeated name wins, an entry without 0x01 is skipped, and the final 0x02 may be missing
(old clients leave it out). `lookup` answers as that map does; `parse` keeps all there is.
"""

from __future__ import annotations

from penstock.codec.format import (
    BATCH_COUNT_MAX,
    CHECKSUM,
    ENVELOPE,
    EXPIRES,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    TAGS,
    UNIQ_KEY,
)

Properties = tuple[tuple[str, str], ...]

_INT64_MIN = -(1 << 63)
_INT64_MAX = (1 << 63) - 1


def parse(raw: bytes) -> Properties:
    """Return the entries of `raw` that have a name and a value, possibly empty, in order."""
    text = raw.decode("utf-8", "surrogateescape")
    entries = (entry.partition("\x01") for entry in text.split("\x02"))
    return tuple((name, value) for name, separator, value in entries if separator)


def join(properties: Properties) -> bytes:
    """Return the bytes that `parse` reads `properties` from."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties)
    return text.encode("utf-8", "surrogateescape")


def lookup(properties: Properties) -> dict[str, str]:
    """Return the map that RocketMQ's readers make of `properties`."""
    return {name: value for name, value in properties if name and value}


def parse_int64(text: str | None) -> int | None:
    """Return a decimal int64, or None for anything else."""
    digits = "" if text is None else text.removeprefix("-")
    if text is None or len(digits) > 19 or not (digits.isascii() and digits.isdigit()):
        return None
    value = int(text)
    return value if _INT64_MIN <= value <= _INT64_MAX else None


def inner_range(property_map: dict[str, str]) -> tuple[int, int] | None:
    """Return the base offset and the number of messages of an inner batch, or None when the
    properties do not say both: RocketMQ's batch queues pass over such a record."""
    base = parse_int64(property_map.get(INNER_BASE))
    count = parse_int64(property_map.get(INNER_NUM))
    if base is None or count is None or base < 0 or not 1 <= count <= BATCH_COUNT_MAX:
        return None
    return base, count


def index_texts(property_map: dict[str, str]) -> list[str]:
    """Return what the key index holds for a record, in order, each without its `topic#`."""
    texts = [property_map[UNIQ_KEY]] if UNIQ_KEY in property_map else []
    if KEYS in property_map:
        texts += [word for word in property_map[KEYS].split(" ") if word]
    if TAGS in property_map:
        texts.append(f"T#{property_map[TAGS]}")
    return texts


def expires_at_ms(property_map: dict[str, str]) -> int | None:
    return parse_int64(property_map.get(EXPIRES))


def is_envelope(property_map: dict[str, str]) -> bool:
    return property_map.get(ENVELOPE) == "1"


def headers_of(properties: Properties) -> tuple[tuple[str, bytes | None], ...]:
    """Return the entries that are a user's headers, or a foreign client's system properties."""
    return tuple(
        (name, value.encode("utf-8", "surrogateescape"))
        for name, value in properties
        if name and name not in _NO_HEADERS and not name.startswith(("PSTK_", "INNER_"))
    )


_NO_HEADERS = frozenset((KEYS, TAGS, CHECKSUM))
