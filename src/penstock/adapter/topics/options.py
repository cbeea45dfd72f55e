"""What a topic can be created and altered with, by the names that programs use.

    options                stored as            values
    storage                storage_type         memory, rocksdb, segment (or the full names)
    queue                  queue_kind           simple, batch
    flush                  flush                async, sync (or RocketMQ's names)
    tiering, tiering.…     tiering              a policy, on, off, or its fields one by one
    the rest               under their own name

Every mistake is found here, before anything is sent to the meta service.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, TypedDict, get_type_hints

import msgspec

from penstock.adapter.topics.option_values import check_unicode, check_word
from penstock.adapter.topics.tiering_options import NAMES as TIERING_NAMES
from penstock.adapter.topics.tiering_options import TIERING, change_policy, check_policy
from penstock.errors import BadRequestError
from penstock.meta import (
    CLEANUPS,
    FLUSH_MODES,
    PARTITIONERS,
    QUEUE_ALIASES,
    QUEUE_KINDS,
    STORAGE_ALIASES,
    STORAGE_TYPES,
    TieringPolicy,
    TopicConfig,
    is_plugin_storage,
)


class AlterOptions(TypedDict, total=False):
    """What can be changed at any time. None: as the node's settings say. A retention of -1
    (`UNLIMITED`) has no limit, whatever the node's settings say."""

    retention_ms: int | None
    retention_bytes: int | None
    retention_records: int | None
    flush: str
    cleanup: str
    partitioner: str
    record_size_max: int
    min_insync: int | None
    memory_records_max: int | None
    memory_bytes_max: int | None
    segment_size: int | None
    segment_age_ms: int | None
    tiering: TieringPolicy | str | None
    """A policy, "on" or "off"; None: as the node's settings say."""
    tombstone_retention_ms: int
    compaction_lag_ms: int
    tag_header: str | None
    kafka_settings: tuple[tuple[str, str], ...]
    """Names and values that only Kafka's clients know."""
    replication: int


class TopicOptions(AlterOptions, total=False):
    """What a topic is created with. These last two are fixed from then on."""

    storage: str
    queue: str


_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "storage": STORAGE_ALIASES,
    "queue": QUEUE_ALIASES,
    "flush": {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"},
}
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "storage": STORAGE_TYPES,
    "queue": QUEUE_KINDS,
    "flush": FLUSH_MODES,
    "cleanup": CLEANUPS,
    "partitioner": PARTITIONERS,
}
_FIELDS: Final[Mapping[str, str]] = {"storage": "storage_type", "queue": "queue_kind"}
CREATE_NAMES: Final = frozenset(get_type_hints(TopicOptions))
ALTER_NAMES: Final = frozenset(get_type_hints(AlterOptions))


# Built here: msgspec must not inspect a type for the first time in two threads together.
msgspec.json.Decoder(TopicConfig)


def build_config(options: Mapping[str, object], defaults: TopicConfig | None = None) -> TopicConfig:
    """Return the configuration of a new topic."""
    defaults = defaults if defaults is not None else TopicConfig()
    if "replication" in options and "min_insync" not in options:
        defaults = msgspec.structs.replace(
            defaults, min_insync=None
        )  # the default is meant for another number
    config = _changed(defaults, options, CREATE_NAMES)
    check_policy(None, config.tiering)
    return config


def alter_config(config: TopicConfig, options: Mapping[str, object]) -> TopicConfig:
    """Return `config` with changes; rejects changes of fixed options."""
    fixed = sorted(options.keys() & (CREATE_NAMES - ALTER_NAMES))
    if fixed:
        raise BadRequestError(f"{', '.join(fixed)} cannot be altered; create another topic")
    changed = _changed(config, options, ALTER_NAMES)
    check_policy(config.tiering, changed.tiering)
    return changed


def _changed(
    config: TopicConfig, options: Mapping[str, object], names: frozenset[str]
) -> TopicConfig:
    changes: dict[str, object] = {}
    tiering = {name: given for name, given in options.items() if name.startswith(TIERING)}
    for name, given in options.items():
        if name in TIERING_NAMES:
            check_unicode(name, given)
            continue
        if name not in names:
            known = names | TIERING_NAMES if name.startswith(TIERING) else names
            raise BadRequestError(f"a topic has no option {name!r}{suggest(name, known)}")
        changes[_FIELDS.get(name, name)] = _value(name, given)
    if tiering:
        changes[TIERING] = change_policy(config.tiering, tiering)
    as_dict = {field: getattr(config, field) for field in TopicConfig.__struct_fields__}
    as_dict.update(changes)
    fields = [as_dict[field] for field in TopicConfig.__struct_fields__]
    try:
        changed = msgspec.convert(fields, TopicConfig, from_attributes=True)
    except msgspec.ValidationError as error:
        raise BadRequestError(_explain(error, options)) from error
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{TIERING} is not Unicode: {error.reason}") from error
    if changed.min_insync is not None and changed.min_insync > changed.replication:
        raise BadRequestError(
            f"min_insync {changed.min_insync} is more than replication {changed.replication}"
            f"{'' if 'min_insync' in options else '; name another min_insync, too'}"
        )
    return changed


def _value(name: str, given: object) -> object:
    """Return what is stored for an option; rejects unknown values."""
    if not isinstance(given, str):
        return given
    check_unicode(name, given)
    words = _WORDS.get(name, {})
    value = words.get(given, given)
    if name in _VALUES and not (name == "storage" and is_plugin_storage(value)):
        check_word(name, value, _VALUES[name], words or _VALUES[name])
    return value


def suggest(name: str, names: frozenset[str]) -> str:
    """Return what may have been meant, as the end of a sentence."""
    close = get_close_matches(name, sorted(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(names))}"


def _explain(error: msgspec.ValidationError, options: Mapping[str, object]) -> str:
    """Name the option; the error knows only its place in the stored form."""
    reason, _, place = str(error).partition(" - at `$[")
    index, _, inside = place.partition("]")
    if not index.isdigit():
        return reason
    field = TopicConfig.__struct_fields__[int(index)]
    number = inside.removeprefix("[").partition("]")[0]
    if field == TIERING and number.isdigit():
        return f"{TIERING}.{TieringPolicy.__struct_fields__[int(number)]}: {reason}"
    name = next((name for name in options if _FIELDS.get(name, name) == field), field)
    return f"{name}: {reason}"
