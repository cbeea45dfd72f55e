"""The rules of topic names and topic filters, and the limits of what is decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

TOPIC_BYTES_MAX: Final = 1024
TOPIC_LEVELS_MAX: Final = 128
SHARE_PREFIX: Final = "$share/"

# Control characters and the code points that Unicode sets aside: MQTT lets a receiver refuse them
# (1.5.4), and a name with one of them is either an error or an attack on a log file.
UNWANTED: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff"
    + "".join(
        chr(plane + 0xFFFE) + chr(plane + 0xFFFF) for plane in range(0x10000, 0x110000, 0x10000)
    )
    + "]"
)
_WILDCARDS: Final = re.compile("[+#]")
# A wildcard shares its level with another character, or `#` is not the last level.
_BAD_WILDCARD: Final = re.compile(r"[^/][+#]|[+#][^/]|#/")


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What a decoder accepts at most; each excess has a reason code."""

    packet_size_max: int = 2_000_000
    topic_bytes_max: int = TOPIC_BYTES_MAX
    topic_levels_max: int = TOPIC_LEVELS_MAX
    user_properties_max: int = 1000
    filters_max: int = 5000


def check_topic_name(
    name: str, *, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = TOPIC_LEVELS_MAX
) -> None:
    """Raise `ProtocolError` unless messages can be published under this name."""
    if not name:
        raise ProtocolError(ReasonCode.MALFORMED_PACKET, "a topic name is empty")
    if UNWANTED.search(name):
        raise ProtocolError(
            ReasonCode.MALFORMED_PACKET, f"topic name {name[:100]!r} has a control character"
        )
    if _WILDCARDS.search(name):
        raise ProtocolError(
            ReasonCode.MALFORMED_PACKET, f"topic name {name[:100]!r} contains a wildcard"
        )
    _check_size(name, "topic name", ReasonCode.TOPIC_NAME_INVALID, bytes_max, levels_max)


def check_filter(
    text: str, *, bytes_max: int = TOPIC_BYTES_MAX, levels_max: int = TOPIC_LEVELS_MAX
) -> None:
    """Raise `ProtocolError` unless this is a topic filter; `$share/group/` before it is checked
    for its form, too."""
    if not text:
        raise ProtocolError(ReasonCode.MALFORMED_PACKET, "a topic filter is empty")
    if UNWANTED.search(text):
        raise ProtocolError(
            ReasonCode.MALFORMED_PACKET, f"topic filter {text[:100]!r} has a control character"
        )
    if _BAD_WILDCARD.search(text):
        raise ProtocolError(
            ReasonCode.MALFORMED_PACKET,
            f"topic filter {text[:100]!r}: + and # take a whole level, and # is the last one",
        )
    if text.startswith(SHARE_PREFIX):
        group, slash, inner = text[len(SHARE_PREFIX) :].partition("/")
        if not (group and slash and inner) or _WILDCARDS.search(group):
            raise ProtocolError(
                ReasonCode.MALFORMED_PACKET,
                f"shared subscription {text[:100]!r} must be $share/group/filter",
            )
    _check_size(text, "topic filter", ReasonCode.TOPIC_FILTER_INVALID, bytes_max, levels_max)


def _check_size(text: str, what: str, reason: ReasonCode, bytes_max: int, levels_max: int) -> None:
    size = len(text.encode())
    if size > bytes_max:
        raise ProtocolError(reason, f"a {what} has {size} bytes, at most {bytes_max} are allowed")
    levels = text.count("/") + 1
    if levels > levels_max:
        raise ProtocolError(
            reason, f"a {what} has {levels} levels, at most {levels_max} are allowed"
        )
