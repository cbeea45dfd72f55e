"""`SessionService`: delivery and sessions of a node, built together.

start    rows of sessions ─▶ records since the mark ─▶ timers (marks, expiry, wills)
close    what is queued is delivered, and the last mark is written
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.delivery import Delivery
from penstock.brokers.mqtt.deliver.replay import Replay
from penstock.brokers.mqtt.deliver.retained_queue import RetainedSource
from penstock.brokers.mqtt.deliver.tails import MessageDecoder, TopicNames
from penstock.brokers.mqtt.sessions.interface import SharedSubscriptions, WillPublisher
from penstock.brokers.mqtt.sessions.recovery import ReachableTopics, Recovery
from penstock.brokers.mqtt.sessions.registry import RegistryLimits, SessionRegistry
from penstock.brokers.mqtt.sessions.row_writer import OPTIONS, RowWriter
from penstock.brokers.mqtt.sessions.store import SessionStore
from penstock.brokers.mqtt.sessions.wills import Wills
from penstock.errors import StoreError
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import MqttSettings

UPKEEP_INTERVAL_S: Final = 1.0

_log: Final = get_logger(__name__)


class TopicMap(TopicNames, ReachableTopics, Protocol):
    """What sessions need of the mapping of topics."""


class SessionService:
    """Made on the event loop; `delivery` takes appends after `start`."""

    def __init__(
        self,
        drivers: StorageDriverManager,
        mapping: TopicMap,
        decoder: MessageDecoder,
        clock: Clock,
        settings: MqttSettings,
        *,
        row_options: Mapping[str, object] = OPTIONS,
    ) -> None:
        """`row_options` are those with which the topic of rows is created."""
        self.delivery: Final = Delivery(
            drivers,
            mapping,
            decoder,
            clock,
            unsent_max=settings.unacknowledged_size_max,
            queues_qos0=settings.queue_qos0,
            route_cache_max=settings.route_cache_max,
            readers_max=settings.catch_up_readers_max,
        )
        self._mapping: Final[TopicMap] = mapping
        self._drivers: Final = drivers
        self._writer: Final = RowWriter(drivers, row_options)
        self.store: Final = SessionStore(self.delivery, self._writer)
        self.wills: Final = Wills()
        self.registry: Final = SessionRegistry(
            self.delivery,
            self.store,
            self.wills,
            RegistryLimits(
                sessions=settings.sessions_max,
                subscriptions=settings.subscriptions_max,
                subscriptions_per_session=settings.subscriptions_per_session_max,
                expiry_s=settings.session_expiry_max_s,
            ),
            replay=Replay(drivers),
        )
        self._tasks: Final[list[asyncio.Task[None]]] = []

    async def start(
        self,
        *,
        publisher: WillPublisher,
        retained: RetainedSource | None = None,
        shared: SharedSubscriptions | None = None,
        has_timers: bool = True,
        recovers: bool = True,
    ) -> None:
        """Read the sessions; when this returns, clients can be served. `recovers` False: there are
        none yet, they are loaded by partitions."""
        self.wills.publisher = publisher
        self.delivery.retained = retained
        self.registry.shared = shared
        self.store.shared = shared
        self.delivery.start()
        self.delivery.stored_topics_for = self._mapping.stored_topics_for
        if recovers:
            await Recovery(self._drivers, self.registry, self._mapping).run()
            try:
                await self.store.mark()
            except StoreError as error:
                _log.warning("mqtt_mark_not_written", reason=str(error))
            self.registry.start_timers()
        if not has_timers:
            return  # a test marks, and lets sessions expire
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self.store.run(), name="mqtt-marks"))
        self._tasks.append(loop.create_task(self._upkeep(), name="mqtt-upkeep"))

    def topic_created(self, stored_topic: str) -> None:
        """Follow the shards of a stored topic that a publish has created."""
        self.delivery.tails.open_topic(stored_topic)

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            self.registry.run_due()

    async def close(self) -> None:
        """Connections have ended. Wills that are not due wait for the next start."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)
        await self.wills.close()
        await self.delivery.close()
        try:
            await self.store.mark()
            await self._writer.close()
        except StoreError as error:
            _log.warning("mqtt_last_mark_not_written", reason=str(error))
