"""Creates the stored topic of a first publish, in the node's pool of threads.

A rule creates at most `topics_max` stored topics, and the node at most so many a minute as the
settings say: a client that publishes to random topics must not fill the metadata.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.topics.mapping import MappedTopic, TopicMapping
from penstock.brokers.mqtt.topics.rules import Rule
from penstock.errors import AlreadyExistsError, BusyError, StoreError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import MqttMapRule

_log: Final = get_logger(__name__)


class TopicsMaxError(StoreError):
    """A rule has as many stored topics as it may."""


class TopicCreator:
    def __init__(
        self,
        drivers: StorageDriverManager,
        mapping: TopicMapping,
        clock: Clock,
        per_minute: int,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self._drivers: Final = drivers
        self._mapping: Final = mapping
        self._clock: Final = clock
        self._rate: Final = per_minute / 60
        self._burst: Final = float(max(per_minute, 1))
        self._tokens = self._burst
        self._counted_s = clock.monotonic()
        self._namespace: Final = namespace
        self._running: Final[dict[str, asyncio.Task[None]]] = {}

    async def create(self, mapped: MappedTopic) -> None:
        """Return when the stored topic exists. Raises `TopicsMaxError` at the limit of the rule,
        `BusyError` above the rate, and what the creation raises."""
        name = mapped.stored_topic
        task = self._running.get(name)
        if task is None:
            if (self._namespace, name) not in self._drivers.broker_cache.topics:
                self._check_count(mapped.rule)
                self._use_rate()
            work = self._create(name, mapped.rule.settings)
            task = asyncio.get_running_loop().create_task(work, name=f"mqtt-create-{name}")
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))
        await asyncio.shield(task)

    async def _create(self, name: str, rule: MqttMapRule) -> None:
        options = topic_options(rule)
        try:
            await self._drivers.run_blocking(
                partial(
                    self._drivers.admin.create_topic_full,
                    name,
                    rule.partitions,
                    options,
                    namespace=self._namespace,
                )
            )
        except AlreadyExistsError:
            return
        _log.info("mqtt_topic_created", topic=name, partitions=rule.partitions)
        for notify in self._mapping.on_created:
            notify(name)

    def _check_count(self, rule: Rule) -> None:
        if rule.is_single:
            return
        topics = self._drivers.broker_cache.list_topics(self._namespace)
        count = sum(rule.may_store(topic.name) for topic in topics)
        if count + len(self._running) >= rule.settings.topics_max:
            raise TopicsMaxError(
                f"the rule for {rule.settings.filter!r} has {count} stored topics; its topics_max "
                f"is {rule.settings.topics_max}"
            )

    def _use_rate(self) -> None:
        now_s = self._clock.monotonic()
        refilled = self._tokens + (now_s - self._counted_s) * self._rate
        self._counted_s, self._tokens = now_s, min(self._burst, refilled)
        if self._tokens < 1:
            raise BusyError(
                f"publishes create {self._rate * 60:g} stored topics a minute at most "
                "(mqtt.topics_created_per_minute); try again"
            )
        self._tokens -= 1


def topic_options(rule: MqttMapRule) -> dict[str, object]:
    """Return what the stored topics of a rule are created with."""
    options: dict[str, object] = {
        "queue": "simple",
        "partitioner": "key",
        "storage": rule.storage,
        "cleanup": rule.cleanup,
    }
    if rule.flush:
        options["flush"] = rule.flush
    if rule.retention_ms:
        options["retention_ms"] = rule.retention_ms
    return options
