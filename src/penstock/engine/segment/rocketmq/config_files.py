"""RocketMQ's configuration files as typed values: topics.json and consumerOffset.json.

Pure functions over bytes; who calls them reads and writes the files. A file that makes no sense is
a `CorruptionError` that names it. Fields that Penstock has no use for are kept and written back.
`store.properties` and tieredStoreMetadata.json need no types: `read_properties`, `parse_json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.engine.segment.rocketmq.fastjson import Json, JsonDict, parse_json, write_json
from penstock.engine.segment.rocketmq.java_properties import read_properties, write_properties
from penstock.errors import CorruptionError
from penstock.record import QueueKind

__all__ = [
    "ConsumerOffsets",
    "DataVersion",
    "Json",
    "JsonDict",
    "TopicConfig",
    "Topics",
    "parse_json",
    "read_consumer_offsets",
    "read_properties",
    "read_topics",
    "write_consumer_offsets",
    "write_json",
    "write_properties",
    "write_topics",
]

QUEUE_TYPE: Final = "queue.type"
"""The topic attribute that makes RocketMQ use batch queues."""

_DEFAULTS: Final[tuple[tuple[str | int, Json], ...]] = (
    ("order", False),
    ("perm", 6),
    ("topicFilterType", "SINGLE_TAG"),
    ("topicSysFlag", 0),
)


class DataVersion(Struct, frozen=True):
    """What brokers compare to find out whose configuration is newer."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0


class TopicConfig(Struct, frozen=True):
    """One topic: its queues, and attributes such as the kind of queue."""

    name: str
    queues: int = 1
    attributes: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str | int, Json], ...] = _DEFAULTS

    @property
    def kind(self) -> QueueKind:
        is_batch = dict(self.attributes).get(QUEUE_TYPE) == QueueKind.BATCH.value
        return QueueKind.BATCH if is_batch else QueueKind.SIMPLE

    @classmethod
    def create(
        cls, name: str, queues: int, kind: QueueKind, attributes: Iterable[tuple[str, str]] = ()
    ) -> TopicConfig:
        given = [attribute for attribute in attributes if attribute[0] != QUEUE_TYPE]
        if kind is QueueKind.BATCH:
            given.insert(0, (QUEUE_TYPE, kind.value))
        return cls(name=name, queues=queues, attributes=tuple(given))


class Topics(Struct, frozen=True):
    configs: dict[str, TopicConfig]
    version: DataVersion = DataVersion()


class ConsumerOffsets(Struct, frozen=True):
    """Next offsets to read, by (topic, group), then by queue id."""

    table: dict[tuple[str, str], dict[int, int]]
    version: DataVersion = DataVersion()


# ------------------------------------------------------------------------------------ topics


def read_topics(data: bytes, path: str) -> Topics:
    reader = _Reader(path)
    root = reader.as_dict(parse_json(data, path), "the file")
    table = reader.as_dict(root.get("topicConfigTable", {}), "topicConfigTable")
    configs = {str(name): reader.topic(str(name), entry) for name, entry in table.items()}
    return Topics(configs, reader.version(root))


def write_topics(topics: Topics) -> bytes:
    table: JsonDict = {name: _topic_fields(config) for name, config in topics.configs.items()}
    root: JsonDict = {
        "dataVersion": _version_fields(topics.version),
        "topicConfigTable": table,
    }
    return write_json(root).encode()


def _topic_fields(config: TopicConfig) -> JsonDict:
    attributes: JsonDict = dict(config.attributes)
    fields: JsonDict = {
        **dict(config.others),
        "attributes": attributes,
        "readQueueNums": config.queues,
        "topicName": config.name,
        "writeQueueNums": config.queues,
    }
    return dict(sorted(fields.items(), key=lambda item: str(item[0])))


# --------------------------------------------------------------------------- consumer offsets


def read_consumer_offsets(data: bytes, path: str) -> ConsumerOffsets:
    reader = _Reader(path)
    root = reader.as_dict(parse_json(data, path), "the file")
    table: dict[tuple[str, str], dict[int, int]] = {}
    for name, queues in reader.as_dict(root.get("offsetTable", {}), "offsetTable").items():
        topic, separator, group = str(name).partition("@")
        if not separator:
            raise reader.error(f"offsetTable: {name!r} names no group")
        table[topic, group] = {
            reader.as_int(queue, f"queue of {name!r}"): reader.as_int(offset, f"offset of {name!r}")
            for queue, offset in reader.as_dict(queues, f"offsets of {name!r}").items()
        }
    return ConsumerOffsets(table, reader.version(root))


def write_consumer_offsets(offsets: ConsumerOffsets) -> bytes:
    table: JsonDict = {}
    groups: JsonDict = {}
    for (topic, group), queues in offsets.table.items():
        by_queue: JsonDict = dict(sorted(queues.items()))
        table[f"{topic}@{group}"] = by_queue
        topics = groups.setdefault(group, [])
        assert isinstance(topics, list)
        topics.append(topic)
    root: JsonDict = {
        "dataVersion": _version_fields(offsets.version),
        "groupTopicMap": groups,
        "offsetTable": table,
        "pullOffsetTable": {},
    }
    return write_json(root).encode()


# ----------------------------------------------------------------------------------- private


def _version_fields(version: DataVersion) -> JsonDict:
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp_ms,
    }


class _Reader:
    """Turns parsed JSON into typed values; whatever does not fit names the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def error(self, reason: str) -> CorruptionError:
        return CorruptionError(self._path, position=0, reason=reason)

    def as_dict(self, value: Json, label: str) -> JsonDict:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(f"{label} is not a map")
        return value

    def as_int(self, value: Json, label: str) -> int:
        if isinstance(value, str) and value.removeprefix("-").isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{label} is not an integer")
        return value

    def version(self, root: JsonDict) -> DataVersion:
        fields = self.as_dict(root.get("dataVersion", {}), "dataVersion")
        return DataVersion(
            self.as_int(fields.get("counter", 0), "counter"),
            self.as_int(fields.get("stateVersion", 0), "stateVersion"),
            self.as_int(fields.get("timestamp", 0), "timestamp"),
        )

    def topic(self, name: str, entry: Json) -> TopicConfig:
        fields = self.as_dict(entry, f"topic {name!r}")
        attributes = self.as_dict(fields.get("attributes", {}), f"attributes of {name!r}")
        read, write = (
            self.as_int(fields.get(field_name, 1), f"{field_name} of {name!r}")
            for field_name in ("readQueueNums", "writeQueueNums")
        )
        own = ("attributes", "readQueueNums", "topicName", "writeQueueNums")
        return TopicConfig(
            name=name,
            queues=max(read, write),
            attributes=tuple((str(key), str(value)) for key, value in attributes.items()),
            others=tuple((key, value) for key, value in fields.items() if key not in own),
        )
