"""What a topic's Kafka settings ask of its writers."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from penstock.brokers.kafka.admin.stored_settings import (
    AFTER_MAX_MS,
    BEFORE_MAX_MS,
    COMPRESSION_TYPE,
    STORED,
    TIMESTAMP_TYPE,
)
from penstock.errors import BadRequestError

_CODECS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class TopicSettings(NamedTuple):
    codec: int | None
    """How batches are compressed when they are stored; None: as they came."""
    has_append_time: bool
    """Whether records have the time of their storing, not their producer's."""
    before_max_ms: int
    after_max_ms: int
    keeps_batches: bool
    """Whether batches are stored as they came."""

    def is_timely(self, oldest_ms: int, newest_ms: int, now_ms: int) -> bool:
        return oldest_ms >= now_ms - self.before_max_ms and newest_ms <= now_ms + self.after_max_ms


@lru_cache(maxsize=1_024)
def settings_of(stored: tuple[tuple[str, str], ...]) -> TopicSettings:
    """Return what `stored` settings mean; a value that cannot be read counts as not set."""
    given = dict(stored)

    def value(name: str) -> str:
        setting = STORED[name]
        try:
            return setting.parse(given.get(name, setting.default))
        except BadRequestError:
            return setting.default

    codec = _CODECS.get(value(COMPRESSION_TYPE))
    has_append_time = value(TIMESTAMP_TYPE) == "LogAppendTime"
    return TopicSettings(
        codec,
        has_append_time,
        int(value(BEFORE_MAX_MS)),
        int(value(AFTER_MAX_MS)),
        codec is None and not has_append_time,
    )
