"""`PublishService`: publishes of the node itself: wills, delayed messages, bridges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.publish.path import PublishPath, reason_of
from penstock.brokers.mqtt.publish.records import Receipt, delivered_properties, expiry_of
from penstock.brokers.mqtt.publish.shard_writer import Append, Outcome
from penstock.brokers.mqtt.topics.mapping import MappedTopic
from penstock.brokers.mqtt.wire.packets import Publish
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import StoreError
from penstock.record import Record


class PublishService:
    def __init__(self, path: PublishPath) -> None:
        self._path: Final = path

    async def publish(
        self, publish: Publish, *, publisher: int = 0, receipt: Receipt | None = None
    ) -> int:
        """Store a message as a publish of a client is stored, retained as well if it says so, and
        deliver it; return the reason code of its acknowledgement."""
        path = self._path
        try:
            mapped = await self._resolve(publish.topic)
            retained = await self._resolve_retained(publish.topic) if publish.retain else None
            expires_at_ms = expiry_of(publish, path.clock.now_ms())
            message = path.codec.message(publish, expires_at_ms=expires_at_ms, publisher=publisher)
            if retained is not None and not path.retained.has_room(message):
                return ReasonCode.QUOTA_EXCEEDED
            record = path.codec.encode(
                publish,
                mapped.key,
                expires_at_ms=expires_at_ms,
                publisher=publisher,
                receipt=receipt,
            )
            if retained is None:
                await self._append(mapped, record, [message])
            else:
                await self._append_retained(mapped, retained, record, message)
        except StoreError as error:
            reason = reason_of(error)
            path.metrics.count_refused(reason)
            return reason
        return ReasonCode.SUCCESS

    def publish_live(self, messages: Sequence[Publish]) -> None:
        """Deliver messages to the subscribers that are connected, and store nothing."""
        self._path.delivery.passed(
            [
                Message(
                    publish.topic,
                    publish.payload,
                    0,
                    publish.retain,
                    None
                    if publish.properties is None
                    else delivered_properties(publish.properties),
                )
                for publish in messages
            ]
        )

    async def _resolve(self, topic: str) -> MappedTopic:
        mapped = self._path.mapping.resolve(topic)
        if mapped.route is None:
            await self._path.creator.create(mapped)
            mapped = self._path.mapping.resolve(topic)
        return mapped

    async def _resolve_retained(self, topic: str) -> MappedTopic:
        mapped = self._path.retained.resolve(topic)
        if mapped.route is None:
            await self._path.creator.create(mapped)
            mapped = self._path.retained.resolve(topic)
        return mapped

    async def _append_retained(
        self, mapped: MappedTopic, retained: MappedTopic, record: Record, message: Message
    ) -> None:
        following: list[Record] = []

        def put() -> None:
            # Together with the delivery: a subscription that comes later finds it here.
            following.append(self._path.retained.put(message, record))

        await self._append(mapped, record, [message], put)
        await self._append(retained, following[0], [])

    async def _append(
        self,
        mapped: MappedTopic,
        record: Record,
        messages: list[Message],
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        """Append one record, and call `stored` when it is delivered; raise what its refusal
        raises."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def finish(_append: Append, outcomes: Sequence[Outcome]) -> None:
            if not isinstance(outcomes[0], StoreError):
                stored()
            if not done.done():
                done.set_result(outcomes[0])

        append = Append(mapped, finish)
        append.records.append(record)
        append.messages.extend(messages)
        append.tokens.append(None)
        append.size = len(record.value or b"") + len(mapped.key)
        self._path.writer.write(append)
        outcome = await done
        if isinstance(outcome, StoreError):
            raise outcome
