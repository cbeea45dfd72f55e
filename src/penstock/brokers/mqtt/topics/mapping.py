"""`TopicMapping`: from an MQTT topic to its shard, and from a record to its MQTT topic.

    topic ─▶ first rule that matches ─▶ stored topic ─▶ murmur2(topic) % partitions ─▶ shard

The partition is that of a Kafka producer with the default partitioner and the MQTT topic as key,
so both write to one shard, whose order keeps the order of the topic. What was resolved is kept, by
MQTT topic, until the stored topic changes. Used on the event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicRoute, key_hash
from penstock.brokers.mqtt.topics.filters import overlap
from penstock.brokers.mqtt.topics.rules import INTERNAL_PREFIX, Rule, compile_rules
from penstock.errors import RetryableError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.settings import MqttMapRule

CACHED_MAX: Final = 65_536
"""Topics whose shards are kept; when there are more, all are resolved again."""


class MappedTopic:
    """Where the messages of one MQTT topic are stored."""

    __slots__ = (
        "_hash",
        "key",
        "partition",
        "route",
        "rule",
        "shard_name",
        "stored_topic",
        "topic",
    )

    def __init__(self, topic: str, rule: Rule, stored_topic: str) -> None:
        self.topic: Final = topic
        self.rule: Final = rule
        self.stored_topic: Final = stored_topic
        self.key: Final = topic.encode()
        self._hash: Final = key_hash(self.key)
        self.route: TopicRoute | None = None
        """None: the stored topic does not exist (yet)."""
        self.partition = 0
        self.shard_name = ""

    @property
    def may_wait(self) -> bool:
        """Whether a write may wait for a device."""
        return self.route is None or self.route.may_wait

    @property
    def passes_qos0(self) -> bool:
        """Whether QoS 0 messages are delivered and not stored."""
        return self.rule.settings.qos0 == "pass"

    def follow(self, route: TopicRoute) -> None:
        self.route = route
        self.partition = self._hash % route.partitions
        self.shard_name = route.shards[self.partition]


class StoredTopic(NamedTuple):
    """A stored topic that a filter can reach."""

    name: str
    shards: tuple[str, ...]


class TopicMapping:
    def __init__(
        self,
        drivers: StorageDriverManager,
        rules: Sequence[MqttMapRule],
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Raise `SettingsError` when a rule cannot be used."""
        self._drivers: Final = drivers
        self._namespace: Final = namespace
        self._rules: Final = compile_rules(rules)
        self._cached: Final[dict[str, MappedTopic]] = {}
        self._resolved: Final = drivers.routes.resolved
        self.on_created: Final[list[Callable[[str], None]]] = []
        """Called on the event loop with the name of a stored topic that a publish has created."""

    # From a topic

    def resolve(self, topic: str) -> MappedTopic:
        """Return where the messages of a topic are stored; without a route if the stored topic is
        to be created first."""
        mapped = self._cached.get(topic)
        if mapped is None:
            mapped = self._map(topic)
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            self._cached[topic] = mapped
        current = self._resolved.get((self._namespace, mapped.stored_topic))
        if current is None or current is not mapped.route:
            self._refresh(mapped)
        return mapped

    def _map(self, topic: str) -> MappedTopic:
        levels = topic.split("/")
        for rule in self._rules:
            stored = rule.stored_topic(topic, levels)
            if stored is not None:
                return MappedTopic(topic, rule, stored)
        raise AssertionError("the last rule matches every topic")

    def _refresh(self, mapped: MappedTopic) -> None:
        try:
            route = self._drivers.routes.find(mapped.stored_topic, self._namespace)
        except (UnknownTopicError, RetryableError):
            mapped.route = None  # to be created, or being created
        else:
            mapped.follow(route)

    # From a filter

    def stored_topics_for(self, topic_filter: str) -> list[StoredTopic]:
        """Return the stored topics, of those that exist, that can have messages which a filter
        matches."""
        wanted = topic_filter.split("/")
        found: list[StoredTopic] = []
        for name in self._names():
            if self.can_reach(name, wanted):
                route = self._drivers.routes.find(name, self._namespace)
                found.append(StoredTopic(name, route.shards))
        return found

    def can_reach(self, stored: str, wanted: Sequence[str]) -> bool:
        """Say whether a stored topic can have messages that a filter, given as levels, matches."""
        for rule in self._rules:
            if not rule.may_store(stored):
                continue
            if rule.can_reach(stored, wanted):
                return True
            if overlap([*rule.default_name(stored).split("/")], wanted):
                return True  # records that other writers gave no MQTT topic
        return False

    def _names(self) -> Iterator[str]:
        """Yield the stored topics that the rules can use."""
        fixed = [rule.settings.topic for rule in self._rules if rule.is_single]
        known = self._drivers.broker_cache.topics
        for name in dict.fromkeys(fixed):
            if (self._namespace, name) in known:
                yield name
        placed = [rule for rule in self._rules if not rule.is_single]
        if not placed:
            return
        for topic in self._drivers.broker_cache.list_topics(self._namespace):
            name = topic.name
            is_other = name not in fixed and not name.startswith(INTERNAL_PREFIX)
            if is_other and any(rule.may_store(name) for rule in placed):
                yield name

    # From a record

    def name_of(self, key: bytes | None, stored_topic: str) -> str:
        """Return the MQTT topic of a record: its key, if a publish to that topic would be stored in
        the same stored topic, else the name that the rule has for such records."""
        if key is not None:
            topic = _as_topic(key)
            if topic is not None and self.resolve(topic).stored_topic == stored_topic:
                return topic
        for rule in self._rules:
            if rule.may_store(stored_topic):
                return rule.default_name(stored_topic)
        return stored_topic.replace(".", "/")


def _as_topic(key: bytes) -> str | None:
    """Return a record's key as an MQTT topic; None: clients could not publish to it."""
    try:
        topic = key.decode()
    except UnicodeDecodeError:
        return None
    is_name = topic and not any(character in topic for character in "+#\0")
    return topic if is_name and len(key) <= 65_535 else None
