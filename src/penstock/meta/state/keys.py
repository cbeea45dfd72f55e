"""Keys of the state machines' rows: tuples whose byte order is the order of their parts.

A key is the byte of its table followed by its parts. A number takes eight bytes, big-endian. A
text takes its UTF-8 with every zero byte doubled to 00 FF, and ends with 00 01: no text can run
into the next part, and `a` sorts before `a\\0` and `ab`. Which parts are texts and which numbers is
fixed per table, so no type is stored.
"""

from __future__ import annotations

from typing import Final

Part = str | int

_END: Final = b"\x00\x01"
_ESCAPED: Final = b"\x00\xff"


def encode_key(table: int, *parts: Part) -> bytes:
    return bytes((table,)) + b"".join([encode_part(part) for part in parts])


def encode_part(part: Part) -> bytes:
    if isinstance(part, int):
        return part.to_bytes(8, "big")
    return begin_of_text(part) + _END


def begin_of_text(begin: str) -> bytes:
    """Return what all texts begin with that begin with `begin`."""
    return begin.encode().replace(b"\x00", _ESCAPED)


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "a prefix begins with the byte of its table"
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def decode_texts(key: bytes) -> list[str]:
    """Return the parts of a key whose parts are all texts."""
    texts: list[str] = []
    start = position = 1
    while position < len(key):
        position = key.index(b"\x00", position)
        if key[position : position + 2] == _END:
            texts.append(key[start:position].replace(_ESCAPED, b"\x00").decode())
            start = position + 2
        position += 2
    assert start == len(key), "a key ends with the end of a part"
    return texts
