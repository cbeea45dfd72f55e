"""MQTT topics as parts of names of stored topics, which Kafka clients must accept, and back.

Letters of ASCII, digits and `-` stay, `/` becomes `.`, any other byte of the UTF-8 becomes `_` and
two hex digits. So `a b/c` is `a_20b.c`, and no two topics have the same name. A name above
`NAME_SIZE_MAX` keeps its beginning and ends with digits of its SHA-256; that one has no way back.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

NAME_SIZE_MAX: Final = 200
"""Kafka allows 249, and tools append to names."""
_DIGEST_SIZE: Final = 32
_HASH_MARK: Final = "_x"
"""In front of the digits of a hash; hex digits do not include `x`: no encoded byte reads so."""

_KEPT: Final = re.compile(r"[A-Za-z0-9-]+")
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9.-]|_[0-9a-f]{2})*")
_ESCAPED: Final = re.compile(rb"_([0-9a-f]{2})")


def encode_name(topic: str) -> str:
    """Return an MQTT topic, or the text of some of its levels, as part of a stored name."""
    if _KEPT.fullmatch(topic):
        return topic
    out: list[str] = []
    for byte in topic.encode("utf-8", "surrogateescape"):
        character = chr(byte)
        if character == "/":
            out.append(".")
        elif byte < 0x80 and (character.isalnum() or character == "-"):
            out.append(character)
        else:
            out.append(f"_{byte:02x}")
    return "".join(out)


def decode_name(name: str) -> str | None:
    """Return the MQTT text that `encode_name` makes this name of; None: there is none."""
    if not _ENCODED.fullmatch(name):
        return None
    raw = name.replace(".", "/").encode()
    decoded = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw)
    topic = decoded.decode("utf-8", "surrogateescape")
    return topic if encode_name(topic) == name else None


def fit_name(name: str) -> str:
    """Return a stored name of at most `NAME_SIZE_MAX` characters."""
    if len(name) <= NAME_SIZE_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_SIZE]
    return name[: NAME_SIZE_MAX - len(_HASH_MARK) - _DIGEST_SIZE] + _HASH_MARK + digest


def is_shortened(name: str) -> bool:
    """Say whether `fit_name` may have shortened a longer name to this one."""
    mark = NAME_SIZE_MAX - len(_HASH_MARK) - _DIGEST_SIZE
    return len(name) == NAME_SIZE_MAX and name.startswith(_HASH_MARK, mark)
