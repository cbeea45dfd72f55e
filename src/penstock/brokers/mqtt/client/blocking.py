"""The client for programs without an event loop: the same calls, which wait.

The event loop runs in a thread of its own until `close`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock.brokers.mqtt.client.client import MqttClient
from penstock.brokers.mqtt.client.options import ClientOptions
from penstock.brokers.mqtt.wire.packets import Connack, Properties, Publish, SubscriptionRequest

T = TypeVar("T")


class BlockingMqttClient:
    """Connects when it is made."""

    def __init__(self, options: ClientOptions) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(
            target=self._loop.run_forever, name="penstock-mqtt-client", daemon=True
        )
        self._thread.start()
        self._client: Final = MqttClient(options)
        try:
            self._call(self._client.connect())
        except BaseException:
            self._stop()
            raise

    @property
    def connack(self) -> Connack:
        return self._client.connack

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        return self._call(
            self._client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        )

    def subscribe(
        self,
        topic_filter: str | SubscriptionRequest,
        *,
        qos: int = 0,
        identifier: int | None = None,
        properties: Properties | None = None,
    ) -> int:
        return self._call(
            self._client.subscribe(
                topic_filter, qos=qos, identifier=identifier, properties=properties
            )
        )

    def unsubscribe(self, topic_filter: str) -> int:
        return self._call(self._client.unsubscribe(topic_filter))

    def next_message(self, timeout_s: float | None = None) -> Publish:
        return self._call(self._client.next_message(timeout_s))

    def abort(self) -> None:
        """Close the connection without DISCONNECT."""
        if self._thread.is_alive():
            self._call(self._client.abort())
            self._stop()

    def close(self, *, reason_code: int = 0, expiry_s: int | None = None) -> None:
        """Disconnect. May be called again."""
        if self._thread.is_alive():
            self._call(self._client.close(reason_code=reason_code, expiry_s=expiry_s))
            self._stop()

    def _call(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
