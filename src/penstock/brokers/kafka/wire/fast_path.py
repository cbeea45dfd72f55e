"""Numbers and lengths in the requests that are parsed without a cursor: Produce and Fetch."""

from __future__ import annotations

from penstock.brokers.kafka.wire.cursor import MalformedRequestError


def varint(body: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned number at `at`, and what follows it."""
    byte = body[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift <= 28:
        at += 1
        byte = body[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise MalformedRequestError(f"the number before {at} is too long")


def take(body: memoryview, at: int, size: int) -> memoryview:
    if size < 0 or at + size > len(body):
        raise MalformedRequestError(f"{size} bytes are wanted at {at} of {len(body)}")
    return body[at : at + size]


def count_of(announced: int, body: memoryview, at: int) -> int:
    """Return the length of a compact array, no more than the request could hold."""
    count = announced - 1
    if count > len(body) - at:
        raise MalformedRequestError(f"an array of {count} elements before {at}")
    return max(count, 0)


def skip_tags(body: memoryview, at: int) -> int:
    """Return what follows the tagged fields at `at`."""
    if body[at] == 0:
        return at + 1
    tags, at = varint(body, at)
    for _ in range(tags):
        _, at = varint(body, at)
        size, at = varint(body, at)
        at += size
    return at
