"""Kafka's settings of a topic that have no field of their own here: stored as they were given.

Those with an effect are read by `topic_settings`; the others are about parts that this store does
not have. They are checked as Kafka checks them, kept, and shown, so that tools which copy topics
(MirrorMaker 2) or compare them find what they wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from penstock.errors import BadRequestError

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
TEXT_SIZE_MAX: Final = 4_096
_THROTTLED: Final = re.compile(r"(\d+:\d+)(,\d+:\d+)*")


class ConfigType(IntEnum):
    """As in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class StoredSetting(Struct, frozen=True):
    default: str
    type: ConfigType
    parse: Callable[[str], str]
    """Returns the stored text, or raises `BadRequestError` with the allowed values."""
    meaning: str = "Stored for Kafka's tools; has no effect here."


def _number(least: int, most: int, *others: int) -> Callable[[str], str]:
    def parse(text: str) -> str:
        try:
            number = int(text)
        except ValueError:
            raise BadRequestError(f"{text!r} is not a number") from None
        if not least <= number <= most and number not in others:
            also = "".join(f", or {other}" for other in others)
            raise BadRequestError(f"{number} is not in the range from {least} to {most}{also}")
        return str(number)

    return parse


def _ratio(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        raise BadRequestError(f"{text!r} is not a number") from None
    if not 0 <= number <= 1:
        raise BadRequestError(f"{text} is not in the range from 0 to 1")
    return text.strip()


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise BadRequestError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def _boolean(text: str) -> str:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise BadRequestError(f"{text!r} is not one of true, false")
    return word


def _throttled(text: str) -> str:
    packed = text.replace(" ", "")
    is_legal = packed in {"", "*", "none"} or _THROTTLED.fullmatch(packed) is not None
    if not is_legal or len(packed) > TEXT_SIZE_MAX:
        raise BadRequestError(
            f"{text[:80]!r} is not a list of partition:broker with commas between, nor *"
        )
    return packed


def _long(least: int, default: int, meaning: str = "") -> StoredSetting:
    setting = StoredSetting(str(default), ConfigType.LONG, _number(least, LONG_MAX))
    return (
        StoredSetting(setting.default, setting.type, setting.parse, meaning) if meaning else setting
    )


def _flag(default: str = "false") -> StoredSetting:
    return StoredSetting(default, ConfigType.BOOLEAN, _boolean)


COMPRESSION_TYPE: Final = "compression.type"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
BEFORE_MAX_MS: Final = "message.timestamp.before.max.ms"
AFTER_MAX_MS: Final = "message.timestamp.after.max.ms"

STORED: Final[Mapping[str, StoredSetting]] = {
    COMPRESSION_TYPE: StoredSetting(
        "producer",
        ConfigType.STRING,
        _choice("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "How batches are compressed when they are stored; producer: as they came.",
    ),
    TIMESTAMP_TYPE: StoredSetting(
        "CreateTime",
        ConfigType.STRING,
        _choice("CreateTime", "LogAppendTime"),
        "Whose time Kafka producers' records have: the producer's, or that of their storing.",
    ),
    BEFORE_MAX_MS: _long(
        0, LONG_MAX, "How far before the node's clock a producer's timestamp may be."
    ),
    AFTER_MAX_MS: _long(
        0, LONG_MAX, "How far after the node's clock a producer's timestamp may be."
    ),
    "max.compaction.lag.ms": _long(
        1, LONG_MAX, "A superseded record stays no longer, within a round of upkeep."
    ),
    "compression.gzip.level": StoredSetting("-1", ConfigType.INT, _number(1, 9, -1)),
    "compression.lz4.level": StoredSetting("9", ConfigType.INT, _number(1, 17)),
    "compression.zstd.level": StoredSetting("3", ConfigType.INT, _number(-131_072, 22)),
    "file.delete.delay.ms": _long(0, 60_000),
    "flush.ms": _long(0, LONG_MAX),
    "follower.replication.throttled.replicas": StoredSetting("", ConfigType.LIST, _throttled),
    "index.interval.bytes": StoredSetting("4096", ConfigType.INT, _number(0, INT_MAX)),
    "leader.replication.throttled.replicas": StoredSetting("", ConfigType.LIST, _throttled),
    "local.retention.bytes": _long(-2, -2),
    "local.retention.ms": _long(-2, -2),
    "message.downconversion.enable": _flag("true"),
    "min.cleanable.dirty.ratio": StoredSetting("0.5", ConfigType.DOUBLE, _ratio),
    "preallocate": _flag(),
    "remote.log.copy.disable": _flag(),
    "remote.log.delete.on.disable": _flag(),
    "remote.storage.enable": _flag(),
    "segment.index.bytes": StoredSetting("10485760", ConfigType.INT, _number(4, INT_MAX)),
    "segment.jitter.ms": _long(0, 0),
    "unclean.leader.election.enable": _flag(),
}
"""With `KEYS`, all topic settings of Kafka 4.3 except those internal to its brokers."""
