"""Publishes the wills of sessions, when the registry says so.

The record of a persistent session's will carries a receipt, by which a node that starts again finds
that the will was published. A will that cannot be stored now is offered again by the registry; one
that never can be is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.publish.records import Receipt
from penstock.brokers.mqtt.publish.service import PublishService
from penstock.brokers.mqtt.wire.packets import Publish
from penstock.brokers.mqtt.wire.reason_codes import FAILURE, ReasonCode
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.sessions.session import Session, WillRecord

_NEVER: Final = frozenset({ReasonCode.TOPIC_NAME_INVALID})
"""Reasons that do not pass."""

_log: Final = get_logger(__name__)


class WillService:
    def __init__(self, service: PublishService) -> None:
        self._service: Final = service

    async def publish_will(self, session: Session, will: WillRecord) -> bool:
        """Publish a will; return whether it was stored, or can never be."""
        given = will.will
        publish = Publish(
            given.topic, given.payload, given.qos, given.retain, properties=given.properties
        )
        receipt = Receipt(session.number, will.token) if session.is_persistent else None
        reason = await self._service.publish(publish, publisher=session.number, receipt=receipt)
        if reason < FAILURE:
            return True
        _log.warning(
            "mqtt_will_not_published", client=session.client_id, topic=given.topic, reason=reason
        )
        return reason in _NEVER
