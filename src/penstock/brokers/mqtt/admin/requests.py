"""Requests of administrators over MQTT.

    SUBSCRIBE  $penstock/reply/ME
    PUBLISH    $penstock/request/sessions   {"limit": 100}   response topic $penstock/reply/ME
    ◀─ PUBLISH $penstock/reply/ME           {"items": […]} or {"error": "…"}

Superusers of the access rules may do this, and clients of the same machine if there are neither a
password file nor access rules. An answer goes below `$penstock/reply/` only.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.brokers.mqtt.protocol.hooks import Client, FilterDecision
from penstock.brokers.mqtt.wire.packets import Properties, Publish
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import BadRequestError, StoreError

if TYPE_CHECKING:
    from penstock.brokers.mqtt.admin.api import AdminApi, Arguments
    from penstock.brokers.mqtt.publish.service import PublishService

PREFIX: Final = "$penstock/"
REQUEST: Final = "$penstock/request/"
REPLY: Final = "$penstock/reply/"
REQUEST_SIZE_MAX: Final = 65_536


class AdminRequests:
    """A publish handler and a filter handler for `$penstock/`."""

    def __init__(
        self, api: AdminApi, publisher: PublishService, *, allows_local_clients: bool
    ) -> None:
        self._api: Final = api
        self._publisher: Final = publisher
        self._allows_local_clients: Final = allows_local_clients

    def is_administrator(self, client: Client) -> bool:
        if client.is_superuser:
            return True
        return self._allows_local_clients and _is_loopback(client.host)

    async def publish(self, client: Client, publish: Publish) -> int:
        """Handle a request; the reason code says whether it was understood."""
        if not self.is_administrator(client):
            return ReasonCode.NOT_AUTHORIZED
        properties = publish.properties or Properties()
        reply = properties.response_topic or ""
        operation = publish.topic.removeprefix(REQUEST)
        if not publish.topic.startswith(REQUEST) or not reply.startswith(REPLY):
            return ReasonCode.TOPIC_NAME_INVALID
        if len(publish.payload) > REQUEST_SIZE_MAX:
            return ReasonCode.PACKET_TOO_LARGE
        answer = await self._answer(operation, publish.payload)
        self._publisher.publish_live(
            [
                Publish(
                    reply,
                    msgspec.json.encode(answer),
                    properties=Properties(correlation_data=properties.correlation_data),
                )
            ]
        )
        return ReasonCode.SUCCESS

    async def _answer(self, operation: str, payload: bytes) -> dict[str, object]:
        run = self._api.operations.get(operation)
        if run is None:
            known = ", ".join(sorted(self._api.operations))
            return {"error": f"there is no operation {operation[:100]!r}; there are {known}"}
        try:
            arguments: Arguments = (
                msgspec.json.decode(payload, type=dict[str, object]) if payload else {}
            )
            return {"items": await run(arguments)}
        except msgspec.MsgspecError as error:
            return {"error": f"the request is not a JSON object: {error}"}
        except (BadRequestError, StoreError) as error:
            return {"error": str(error)}

    def subscribe(self, client: Client, topic_filter: str) -> FilterDecision:
        if not self.is_administrator(client) or not topic_filter.startswith(REPLY):
            return FilterDecision(topic_filter, ReasonCode.NOT_AUTHORIZED)
        return FilterDecision(topic_filter)

    def unsubscribe(self, client: Client, topic_filter: str) -> str:
        del client
        return topic_filter

    def ended(self, client: Client) -> None:
        """Nothing is kept of a client."""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
