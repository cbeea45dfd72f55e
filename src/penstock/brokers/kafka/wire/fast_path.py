"""Numbers and lengths in the requests that are parsed without a cursor: Produce and Fetch."""

from __future__ import annotations

from penstock.brokers.kafka.wire.cursor import MalformedRequestError


def varint(body: memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned number at `position`, and what follows it."""
    byte = body[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while shift <= 28:
        position += 1
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise MalformedRequestError(f"the number before {position} is too long")


def read_bytes(body: memoryview, position: int, size: int) -> memoryview:
    if size < 0 or position + size > len(body):
        raise MalformedRequestError(f"{size} bytes requested at {position} of {len(body)}")
    return body[position : position + size]


def count_of(announced: int, body: memoryview, position: int) -> int:
    """Return the length of a compact array, no more than the request could hold."""
    count = announced - 1
    if count > len(body) - position:
        raise MalformedRequestError(f"an array of {count} elements before {position}")
    return max(count, 0)


def skip_tags(body: memoryview, position: int) -> int:
    """Return what follows the tagged fields at `position`."""
    if body[position] == 0:
        return position + 1
    tags, position = varint(body, position)
    for _ in range(tags):
        _, position = varint(body, position)
        size, position = varint(body, position)
        position += size
    return position
