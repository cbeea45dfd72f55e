"""A topic's configuration by Kafka's names, and what each means here.

    retention.ms, retention.bytes      -1: without a limit; unset: the node's default
    cleanup.policy                     delete, compact, or both
    delete.retention.ms                how long a compacted topic keeps a tombstone
    min.compaction.lag.ms              how long compaction leaves a record alone
    segment.bytes, segment.ms          when a segment of a shard ends
    max.message.bytes                  the largest record
    flush.messages                     1: every write is on the device before it is acknowledged;
                                       anything else: flushed in the background
    min.insync.replicas
    penstock.storage                   memory, rocksdb, segment; fixed when the topic is created
    penstock.retention.records         -1: without a limit
    penstock.tag.header                header whose values are tags; *: that of the node's settings
    penstock.partitioner               round_robin or key, for writers that name no partition
    compression.type, message.timestamp.type, …   see `stored_settings`

A name that Kafka does not have, either, is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.brokers.kafka.admin.stored_settings import LONG_MAX, STORED, ConfigType
from penstock.errors import BadRequestError
from penstock.meta import STORAGE_ALIASES, UNLIMITED, TopicConfig, is_plugin_storage
from penstock.settings import Settings

_HOUR_MS: Final = 3_600_000
STORAGE: Final = "penstock.storage"
NODE_DEFAULT: Final = "*"
"""Shown, and taken, for a setting that is the node's."""
TAG_HEADER_SIZE_MAX: Final = 255
STORED_OPTION: Final = "kafka_settings"
"""The option of a topic that holds all stored settings."""


class ConfigKey(Struct, frozen=True):
    """One name: which option it sets, how its text is read and written."""

    option: str
    parse: Callable[[str], object]
    show: Callable[[TopicConfig], str]
    type: ConfigType
    meaning: str
    is_fixed: bool = False

    @property
    def field(self) -> str:
        """The field of `TopicConfig` that holds the option."""
        return "storage_type" if self.option == "storage" else self.option


def _number(least: int) -> Callable[[str], object]:
    def parse(text: str) -> object:
        try:
            number = int(text)
        except ValueError:
            raise BadRequestError(f"{text!r} is not a number") from None
        if not least <= number <= LONG_MAX:
            raise BadRequestError(f"{number} is not in the range from {least} to {LONG_MAX}")
        return number

    return parse


def _limit(text: str) -> object:
    number = _number(-1)(text)
    if number == 0:
        raise BadRequestError("0 would keep nothing; -1 takes the limit away")
    return number


def _choice(*choices: str) -> Callable[[str], object]:
    def parse(text: str) -> object:
        if text not in choices:
            raise BadRequestError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def _storage(text: str) -> object:
    if is_plugin_storage(text):
        return text
    return _choice(*STORAGE_ALIASES, *STORAGE_ALIASES.values())(text)


def _cleanup(text: str) -> object:
    words = {word.strip() for word in text.split(",")}
    if not words <= {"compact", "delete"}:
        raise BadRequestError(f"{text!r} is not compact, delete, or both with a comma between")
    return ",".join(sorted(words))


def _tag_header(text: str) -> object:
    if len(text) > TAG_HEADER_SIZE_MAX or not text.isprintable():
        raise BadRequestError(f"a header has up to {TAG_HEADER_SIZE_MAX} printable characters")
    return None if text == NODE_DEFAULT else text


def _show_limit(limit: int | None) -> str:
    return str(UNLIMITED if limit is None else limit)


def _flush(text: str) -> object:
    return "sync" if _number(1)(text) == 1 else "async"


_STORAGE_NAMES: Final = {kind: alias for alias, kind in STORAGE_ALIASES.items()}

KEYS: Final[Mapping[str, ConfigKey]] = {
    "cleanup.policy": ConfigKey(
        "cleanup",
        _cleanup,
        lambda config: config.cleanup,
        ConfigType.LIST,
        "What may be removed: old records, those whose key was written again, or both.",
    ),
    "delete.retention.ms": ConfigKey(
        "tombstone_retention_ms",
        _number(0),
        lambda config: str(config.tombstone_retention_ms),
        ConfigType.LONG,
        "How long a compacted topic keeps a null value, so that consumers learn of it.",
    ),
    "flush.messages": ConfigKey(
        "flush",
        _flush,
        lambda config: "1" if config.flush == "SYNC_FLUSH" else str(LONG_MAX),
        ConfigType.LONG,
        "1: acknowledged when on the device. Else: flushed in the background.",
    ),
    "max.message.bytes": ConfigKey(
        "record_size_max",
        _number(1),
        lambda config: str(config.record_size_max),
        ConfigType.INT,
        "Bytes of the largest record.",
    ),
    "min.compaction.lag.ms": ConfigKey(
        "compaction_lag_ms",
        _number(0),
        lambda config: str(config.compaction_lag_ms),
        ConfigType.LONG,
        "How long compaction leaves a record alone.",
    ),
    "min.insync.replicas": ConfigKey(
        "min_insync",
        _number(1),
        lambda config: str(config.min_insync or config.replication // 2 + 1),
        ConfigType.INT,
        "Replicas that must hold a write of acks=all.",
    ),
    "retention.bytes": ConfigKey(
        "retention_bytes",
        _limit,
        lambda config: _show_limit(config.retention_bytes),
        ConfigType.LONG,
        "Bytes of a partition that are kept; -1: all.",
    ),
    "retention.ms": ConfigKey(
        "retention_ms",
        _limit,
        lambda config: _show_limit(config.retention_ms),
        ConfigType.LONG,
        "How long records are kept; -1: without a limit.",
    ),
    "segment.bytes": ConfigKey(
        "segment_size",
        _number(1024),
        lambda config: str(config.segment_size or 1 << 30),
        ConfigType.INT,
        "Bytes at which a segment of a partition ends.",
    ),
    "segment.ms": ConfigKey(
        "segment_age_ms",
        _number(1),
        lambda config: str(config.segment_age_ms or 86_400_000),
        ConfigType.LONG,
        "Age at which a segment of a partition ends.",
    ),
    STORAGE: ConfigKey(
        "storage",
        _storage,
        lambda config: _STORAGE_NAMES.get(config.storage_type, config.storage_type),
        ConfigType.STRING,
        "The engine that keeps the records; fixed when the topic is created.",
        is_fixed=True,
    ),
    "penstock.retention.records": ConfigKey(
        "retention_records",
        _limit,
        lambda config: _show_limit(config.retention_records),
        ConfigType.LONG,
        "Records of a partition that are kept; -1: all.",
    ),
    "penstock.tag.header": ConfigKey(
        "tag_header",
        _tag_header,
        lambda config: NODE_DEFAULT if config.tag_header is None else config.tag_header,
        ConfigType.STRING,
        "Header whose values are a record's tags, from now on; empty: none are.",
    ),
    "penstock.partitioner": ConfigKey(
        "partitioner",
        _choice("round_robin", "key"),
        lambda config: config.partitioner,
        ConfigType.STRING,
        "How a record of a writer that names no partition gets one.",
    ),
}


def with_node_limits(config: TopicConfig, settings: Settings) -> TopicConfig:
    """Return `config` with the retention time that the node applies where the topic has none."""
    if config.retention_ms is not None:
        return config
    kept_ms = round(settings.broker.file_reserved_time * _HOUR_MS)
    if config.storage_type != STORAGE_ALIASES["segment"] or _has_tier(config, settings):
        kept_ms = UNLIMITED  # the reserved time is that of the segment engine's log alone
    return replace(config, retention_ms=kept_ms)


def _has_tier(config: TopicConfig, settings: Settings) -> bool:
    if config.tiering is None:
        return settings.tiering.topics == "all"
    return config.tiering.storage_level != "DISABLE"


def parse_configs(
    configs: Mapping[str, str | None], kept: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Return the options of a topic that `configs` mean, beside the stored settings that it keeps;
    `BadRequestError` names the invalid setting."""
    options: dict[str, object] = {}
    stored = dict(kept or {})
    for name, text in configs.items():
        if text is None:
            raise BadRequestError(f"{name} has no value")
        try:
            if name in STORED:
                stored[name] = STORED[name].parse(text)
                options[STORED_OPTION] = tuple(sorted(stored.items()))
            else:
                key = find_key(name)
                options[key.option] = key.parse(text)
        except BadRequestError as error:
            raise BadRequestError(f"{name}: {error}") from None
    return options


def find_key(name: str) -> ConfigKey:
    key = KEYS.get(name)
    if key is None:
        names = sorted({*KEYS, *STORED})
        close = get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
        raise BadRequestError(f"a topic has no setting {name!r}{hint}")
    return key


def default_options(defaults: TopicConfig, names: set[str]) -> dict[str, object]:
    """Return the options that reset the settings `names` to those of new topics."""
    options: dict[str, object] = {}
    for name in names - STORED.keys():
        key = find_key(name)
        if key.is_fixed:
            raise BadRequestError(f"{name} is fixed when a topic is created")
        options[key.option] = getattr(defaults, key.field)
    return options
