"""Sets the hooks of the features beyond the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.extras.auto_subscribe import ConfiguredSubscriptions
from penstock.brokers.mqtt.extras.delayed import TOPIC, DelayedMessages
from penstock.brokers.mqtt.extras.delayed_topics import PREFIX as DELAYED_PREFIX
from penstock.brokers.mqtt.extras.exclusive import ExclusiveFilters
from penstock.brokers.mqtt.extras.published_receipts import ShardReceipts
from penstock.brokers.mqtt.extras.rewrite import TopicRewriter
from penstock.brokers.mqtt.extras.slow_subscriptions import SlowSubscriptions
from penstock.brokers.mqtt.extras.sparkplug import CERTIFICATES, BirthCertificates
from penstock.brokers.mqtt.extras.stored_table import StoredTable
from penstock.brokers.mqtt.extras.sys_topics import SysTopics
from penstock.brokers.mqtt.policy.filters import EXCLUSIVE_PREFIX
from penstock.brokers.mqtt.protocol.hooks import Client
from penstock.brokers.mqtt.wire.packets import Publish
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker

_log: Final = get_logger(__name__)


class NoDelayedMessages:
    """Refuses delayed messages: in a cluster of several nodes no node is chosen to publish them."""

    async def publish(self, client: Client, publish: Publish) -> int:
        """See `PublishHandler`."""
        _log.info(
            "mqtt_delayed_refused",
            client=client.client_id,
            topic=publish.topic[:100],
            reason="delayed messages are not served in a cluster of several nodes",
        )
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class Extras:
    """The parts that others use."""

    def __init__(self, broker: MqttBroker) -> None:
        """Raise `SettingsError` when a rule is wrong."""
        settings = broker.all_settings.mqtt_features
        hooks = broker.hooks
        self._broker: Final = broker
        self.slow: Final = SlowSubscriptions(settings.slow_subscriptions_max)
        hooks.rewriter = TopicRewriter(settings.rewrite)
        hooks.auto_subscriptions = ConfiguredSubscriptions(settings.auto_subscribe)
        hooks.filter_handlers[EXCLUSIVE_PREFIX] = ExclusiveFilters(is_enabled=settings.exclusive)
        hooks.read_only_prefixes.append(CERTIFICATES)
        self.delayed: Final = DelayedMessages(
            StoredTable(broker.drivers, TOPIC, broker.namespace),
            broker.codec,
            broker.publisher,
            lambda: hooks.authorizer,
            broker.clock,
            settings.delayed_max,
            broker.node_id,
        )
        hooks.publish_handlers[DELAYED_PREFIX] = self.delayed
        if settings.slow_subscriptions_max:
            broker.delivery.on_latency = self._record_latency
        broker.on_start(self._start)

    def _record_latency(self, client_id: str, topic: str, latency_ms: int) -> None:
        self.slow.record(client_id, topic, latency_ms, self._broker.clock.now_ms())

    async def _start(self) -> None:
        broker = self._broker
        if broker.cluster is None:
            await self.delayed.load()
            receipts = ShardReceipts(broker.drivers, broker.mapping, self.delayed.oldest_due_ms)
            broker.spawn(self.delayed.run(receipts), "mqtt-delayed")
        else:
            broker.hooks.publish_handlers[DELAYED_PREFIX] = NoDelayedMessages()
        if broker.all_settings.mqtt_features.sparkplug and broker.is_first_node:
            await BirthCertificates(broker).start()
        if broker.all_settings.mqtt_features.sys_interval_ms:
            broker.spawn(SysTopics(broker).run(), "mqtt-sys-topics")
