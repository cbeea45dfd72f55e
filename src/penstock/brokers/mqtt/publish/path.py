"""`PublishPath`: what the publishes of all connections have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.brokers.mqtt.publish.records import RecordCodec
from penstock.brokers.mqtt.publish.shard_writer import Following, ShardWriter
from penstock.brokers.mqtt.topics.creation import TopicsMaxError
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import (
    BadRequestError,
    BusyError,
    DiskFullError,
    RecordTooLargeError,
    StoreError,
)
from penstock.platform.clock import Clock

if TYPE_CHECKING:
    from penstock._native import MqttReceivedRun
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.metrics import MqttMetrics
    from penstock.brokers.mqtt.protocol.hooks import Hooks
    from penstock.brokers.mqtt.publish.acknowledgements import PendingAck
    from penstock.brokers.mqtt.publish.fast_path import FastPath
    from penstock.brokers.mqtt.publish.inbound import Inbound
    from penstock.brokers.mqtt.retained.store import RetainedStore
    from penstock.brokers.mqtt.subscriptions.interface import RoutedTopics
    from penstock.brokers.mqtt.topics.creation import TopicCreator
    from penstock.brokers.mqtt.topics.mapping import TopicMapping
    from penstock.settings import MqttSettings


class Delivering(Following, Protocol):
    """Takes messages to subscribers; `Delivery` in `deliver`."""

    @property
    def routes(self) -> RoutedTopics: ...

    def passed(self, messages: Sequence[Message]) -> None:
        """Deliver messages that are not stored to the subscribers that are connected."""
        ...

    def received(self, shard_name: str, run: MqttReceivedRun) -> None:
        """Deliver a run that native code has stored."""
        ...

    def flush(self) -> None:
        """Deliver what was queued in this turn now."""
        ...

    def has_subscribers(self, topic: str) -> bool: ...


@dataclass(slots=True, kw_only=True)
class PublishPath:
    mapping: TopicMapping
    creator: TopicCreator
    writer: ShardWriter
    codec: RecordCodec
    retained: RetainedStore
    delivery: Delivering
    hooks: Hooks
    metrics: MqttMetrics
    clock: Clock
    settings: MqttSettings
    fast: FastPath | None = None
    """None: all publishes go through `Inbound.accept`."""
    unfinished: dict[tuple[int, int], list[tuple[Inbound, PendingAck]]] = field(
        default_factory=dict
    )
    """By session and packet id: QoS 2 publishes that are being stored and whose connections have
    ended, with their repetitions on later connections."""


def reason_of(error: StoreError) -> int:
    """Return the reason code of a publish that was not stored."""
    if isinstance(error, DiskFullError | BusyError | TopicsMaxError | RecordTooLargeError):
        return ReasonCode.QUOTA_EXCEEDED
    if isinstance(error, BadRequestError):
        return ReasonCode.TOPIC_NAME_INVALID
    return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
