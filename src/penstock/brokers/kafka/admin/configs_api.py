"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode
from msgspec import Struct
from msgspec.structs import replace

from penstock.brokers.kafka.admin.responses import rejected, requested_configs
from penstock.brokers.kafka.admin.stored_settings import STORED, ConfigType
from penstock.brokers.kafka.admin.topic_configs import (
    KEYS,
    STORED_OPTION,
    default_options,
    find_key,
    parse_configs,
    with_node_limits,
)
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import BadRequestError, StoreError
from penstock.meta import UNLIMITED, Topic, TopicConfig
from penstock.platform.addresses import with_port
from penstock.settings import Settings, redact_setting

THROTTLES: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4


class Source(IntEnum):
    TOPIC = 1
    STATIC = 4
    DEFAULT = 5


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigsApi:
    def __init__(self, broker: KafkaBroker, defaults: TopicConfig) -> None:
        """`defaults` is what a topic made through Kafka is created with."""
        self._broker: Final = broker
        self._defaults: Final = defaults

    # Describing

    async def describe(self, _context: RequestContext, request: Fields) -> Response:
        with_synonyms = request.flag("include_synonyms")
        results: list[Response] = []
        for resource in request.items_of("resources"):
            kind, name = resource.number("resource_type"), resource.text("resource_name")
            try:
                shown = self._describe(kind, name)
            except StoreError as error:
                results.append(_of(resource) | rejected(error) | {"configs": ()})
                continue
            requested = resource.optional_texts("configuration_keys")
            configs = [
                entry.to_response(with_synonyms=with_synonyms)
                for entry in shown
                if requested is None or entry.name in requested
            ]
            results.append(_of(resource) | {"error_code": ErrorCode.none, "configs": configs})
        return {"results": results}

    def _describe(self, kind: int, name: str) -> Iterator[Entry]:
        if kind == Resource.TOPIC:
            topic = self._topic(name)
            return topic_entries(topic.config, self._defaults, self._broker.all_settings)
        if kind == Resource.BROKER:
            if name not in {"", str(self._broker.node_id)}:
                raise BadRequestError(f"this is node {self._broker.node_id}, not {name!r}")
            return self._node_entries()
        raise BadRequestError(f"resources of type {kind} have no settings here")

    def _node_entries(self) -> Iterator[Entry]:
        settings = self._broker.all_settings
        host = settings.kafka.host or settings.server.host
        kafka_names: dict[str, object] = {
            "node.id": self._broker.node_id,
            "broker.id": self._broker.node_id,
            "listeners": f"PLAINTEXT://{with_port(host, self._broker.listening_port)}",
            "advertised.listeners": f"PLAINTEXT://{with_port(*self._broker.advertised)}",
            "compression.type": "producer",
            "delete.topic.enable": True,
            "log.cleanup.policy": "delete",
            "log.message.timestamp.type": "CreateTime",
            "min.insync.replicas": settings.topics.min_insync
            or settings.topics.replication // 2 + 1,
            "broker.rack": settings.node.rack,
            "unclean.leader.election.enable": False,
            "auto.create.topics.enable": settings.kafka.auto_create_topics,
            "group.initial.rebalance.delay.ms": settings.kafka.group_initial_delay_ms,
            "log.retention.ms": round(settings.broker.file_reserved_time * 3_600_000),
            "log.retention.bytes": UNLIMITED,
            "log.segment.bytes": settings.engine.segment_size,
            "message.max.bytes": settings.engine.record_size_max,
            "num.partitions": settings.topics.partitions,
            "default.replication.factor": settings.topics.replication,
            "transaction.max.timeout.ms": settings.kafka.transaction_timeout_max_ms,
        }
        for name, value in kafka_names.items():
            yield _fixed(name, value)
        for section in settings.__struct_fields__:
            group = getattr(settings, section)
            for name in group.__struct_fields__:
                shown = redact_setting(name, getattr(group, name))
                yield _fixed(f"penstock.{section}.{name}", shown)

    # Altering

    async def alter(self, _context: RequestContext, request: Fields) -> Response:
        """The older API: settings that are not named return to their defaults."""
        return await self._alter_all(request, self._replacement)

    async def alter_incrementally(self, _context: RequestContext, request: Fields) -> Response:
        return await self._alter_all(request, self._changes)

    async def _alter_all(
        self, request: Fields, options_of: Callable[[Topic, Fields], dict[str, object]]
    ) -> Response:
        responses: list[Response] = []
        for resource in request.items_of("resources"):
            outcome: dict[str, object] = {"error_code": ErrorCode.none}
            try:
                if not _only_removes_throttles(resource):
                    topic = self._alterable(resource)
                    await self._alter(topic, options_of(topic, resource), request)
            except StoreError as error:
                outcome = rejected(error)
            responses.append(_of(resource) | outcome)
        return {"responses": responses}

    def _replacement(self, topic: Topic, request: Fields) -> dict[str, object]:
        fixed = {name for name, key in KEYS.items() if key.is_fixed}
        options = default_options(self._defaults, set(KEYS) - fixed)
        options[STORED_OPTION] = ()
        return options | _without_unchanged(parse_configs(requested_configs(request)), topic.config)

    def _changes(self, topic: Topic, request: Fields) -> dict[str, object]:
        options: dict[str, object] = {}
        stored = dict(topic.config.kafka_settings)
        seen: set[str] = set()
        for config in request.items_of("configs"):
            name, operation = config.text("name"), config.number("config_operation")
            if name in seen:
                raise BadRequestError(f"{name} is named twice")
            seen.add(name)
            if operation == Operation.SET:
                options |= parse_configs({name: config.optional_text("value")}, stored)
            elif operation == Operation.DELETE:
                stored.pop(name, None)
                options |= default_options(self._defaults, {name})
            elif operation in {Operation.APPEND, Operation.SUBTRACT}:
                text = _as_list_changed(topic, name, operation, config.text("value"))
                options |= parse_configs({name: text}, stored)
            else:
                raise BadRequestError(f"{operation} is not a way to change a setting")
            if name in STORED and operation != Operation.DELETE:
                stored |= dict(_pairs(options))
        if seen & STORED.keys():
            options[STORED_OPTION] = tuple(sorted(stored.items()))
        return _without_unchanged(options, topic.config)

    def _alterable(self, request: Fields) -> Topic:
        kind = request.number("resource_type")
        if kind == Resource.BROKER:
            raise BadRequestError(
                "a node's settings are read when it starts: change its configuration and restart "
                "it; a throttle belongs to a reassignment: penstock cluster reassign --throttle"
            )
        if kind != Resource.TOPIC:
            raise BadRequestError(f"resources of type {kind} have no settings here")
        return self._topic(request.text("resource_name"))

    async def _alter(self, topic: Topic, options: dict[str, object], request: Fields) -> None:
        if request.flag("validate_only"):
            self._broker.admin.check_alteration(
                topic.name, options, namespace=self._broker.namespace
            )
        elif options:
            await self._broker.run_blocking(
                partial(
                    self._broker.admin.alter_topic,
                    topic.name,
                    options=options,
                    namespace=self._broker.namespace,
                )
            )

    def _topic(self, name: str) -> Topic:
        return self._broker.drivers.broker_cache.get_topic(name, self._broker.namespace)


class Entry(Struct, frozen=True):
    """One setting as it is shown."""

    name: str
    value: str
    default: str
    type: ConfigType
    meaning: str
    is_read_only: bool = False
    source: Source | None = None

    def to_response(self, *, with_synonyms: bool = False) -> dict[str, object]:
        source = self.source
        if source is None:
            source = Source.DEFAULT if self.value == self.default else Source.TOPIC
        synonyms = [{"name": self.name, "value": self.value, "source": source}]
        if source is Source.TOPIC:
            synonyms.append({"name": self.name, "value": self.default, "source": Source.DEFAULT})
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.is_read_only,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": synonyms if with_synonyms else (),
            "config_type": self.type,
            "documentation": self.meaning,
        }


def topic_entries(
    config: TopicConfig, defaults: TopicConfig, settings: Settings
) -> Iterator[Entry]:
    """Yield every setting of a topic. Where the topic says nothing, the value is the one that the
    node applies, and its source the default, also where the topic could say the same."""
    shown = with_node_limits(config, settings)
    # The default of a topic as this one: it depends on the engine, which stays.
    of_node = with_node_limits(
        replace(defaults, storage_type=config.storage_type, tiering=config.tiering), settings
    )
    for name, key in KEYS.items():
        is_default = getattr(config, key.field) == getattr(defaults, key.field)
        yield Entry(
            name,
            key.show(shown),
            key.show(defaults if key.is_fixed else of_node),
            key.type,
            key.meaning,
            key.is_fixed,
            Source.DEFAULT if is_default else Source.TOPIC,
        )
    stored = dict(config.kafka_settings)
    for name, setting in STORED.items():
        source = Source.TOPIC if name in stored else Source.DEFAULT
        value = stored.get(name, setting.default)
        yield Entry(name, value, setting.default, setting.type, setting.meaning, source=source)


def _fixed(name: str, value: object) -> Entry:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    kind = ConfigType.STRING
    if isinstance(value, bool):
        kind = ConfigType.BOOLEAN
    elif isinstance(value, int):
        kind = ConfigType.LONG
    return Entry(name, text, text, kind, "", is_read_only=True, source=Source.STATIC)


def _as_list_changed(topic: Topic, name: str, operation: int, text: str) -> str:
    setting = STORED.get(name)
    if setting is not None:
        kind, shown = setting.type, dict(topic.config.kafka_settings).get(name, setting.default)
    else:
        key = find_key(name)
        kind, shown = key.type, key.show(topic.config)
    if kind is not ConfigType.LIST:
        raise BadRequestError(f"{name} is not a list")
    items = [item for item in shown.split(",") if item]
    changed = [item for item in items if item not in text.split(",")]
    return ",".join(changed + text.split(",") if operation == Operation.APPEND else changed)


def _pairs(options: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    stored = options[STORED_OPTION]
    assert isinstance(stored, tuple), "made by parse_configs"
    return stored


def _without_unchanged(options: Mapping[str, object], config: TopicConfig) -> dict[str, object]:
    """A fixed setting may be set to its present value: clients send back what they read."""
    changed = dict(options)
    for key in KEYS.values():
        if key.is_fixed and key.option in changed and changed[key.option] == key.show(config):
            del changed[key.option]
    return changed


def _of(request: Fields) -> dict[str, object]:
    return {
        "resource_type": request.number("resource_type"),
        "resource_name": request.text("resource_name"),
    }


def _only_removes_throttles(request: Fields) -> bool:
    """Say whether a request removes throttles from a node, which has none: the tool that follows a
    reassignment does so at its end."""
    configs = request.items_of("configs")
    is_node = request.number("resource_type") == Resource.BROKER
    return (
        is_node
        and bool(configs)
        and all(
            config.text("name") in THROTTLES
            and config.number("config_operation", Operation.SET) == Operation.DELETE
            for config in configs
        )
    )
