"""Requests of a client that wait for the storage: SUBSCRIBE, UNSUBSCRIBE, re-authentication.

The connection handles nothing else of the client until one has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.protocol.connecting import RefusedError, run_exchange
from penstock.brokers.mqtt.protocol.filters import (
    check_request,
    check_subscribe,
    check_unsubscribe,
)
from penstock.brokers.mqtt.wire.codec import encode
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Auth,
    Properties,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import StoreError
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker
    from penstock.brokers.mqtt.protocol.client_connection import ClientConnection

_log: Final = get_logger(__name__)


async def subscribe(connection: ClientConnection, broker: MqttBroker, packet: Subscribe) -> None:
    """Add subscriptions; SUBACK leaves when they are stored."""
    session = connection.session
    assert session is not None, "only a client with a session subscribes"
    checked = check_subscribe(packet, connection.client, broker.hooks)
    codes = [check.reason_code for check in checked]
    wanted = [check.subscription for check in checked if check.subscription is not None]
    try:
        granted = iter(await broker.sessions.subscribe(session, wanted) if wanted else ())
    except StoreError as error:
        _log.warning("mqtt_subscribe_failed", client=session.client_id, reason=str(error))
        granted = iter([ReasonCode.UNSPECIFIED_ERROR] * len(wanted))
    for number, check in enumerate(checked):
        if check.subscription is not None:
            codes[number] = next(granted)
    connection.refresh_subscriptions()
    connection.send(encode(Suback(packet.packet_id, codes), connection.version))


async def unsubscribe(
    connection: ClientConnection, broker: MqttBroker, packet: Unsubscribe
) -> None:
    """Remove subscriptions; UNSUBACK leaves when that is stored."""
    session = connection.session
    assert session is not None, "only a client with a session unsubscribes"
    filters = check_unsubscribe(packet.filters, connection.client, broker.hooks)
    try:
        codes = await broker.sessions.unsubscribe(session, filters)
    except StoreError as error:
        _log.warning("mqtt_unsubscribe_failed", client=session.client_id, reason=str(error))
        codes = [ReasonCode.UNSPECIFIED_ERROR] * len(filters)
    connection.refresh_subscriptions()
    connection.send(encode(Unsuback(packet.packet_id, codes), connection.version))


async def auto_subscribe(connection: ClientConnection, broker: MqttBroker) -> None:
    """Subscribe a client that has connected to what the settings say."""
    session = connection.session
    requests = broker.hooks.auto_subscriptions.of(connection.client)
    if session is None or not requests:
        return
    checked = [check_request(request, connection.client, broker.hooks) for request in requests]
    wanted = [check.subscription for check in checked if check.subscription is not None]
    try:
        await broker.sessions.subscribe(session, wanted)
    except StoreError as error:
        _log.warning("mqtt_auto_subscribe_failed", client=session.client_id, reason=str(error))
    connection.refresh_subscriptions()


async def reauthenticate(connection: ClientConnection, broker: MqttBroker, packet: Auth) -> None:
    """Authenticate a client again, with the method of its CONNECT."""
    properties = packet.properties
    method = None if properties is None else properties.authentication_method
    if packet.reason_code != ReasonCode.REAUTHENTICATE or method is None or properties is None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without a method, or out of place")
    if method != connection.authentication_method:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH has another authentication method")
    exchange = broker.hooks.authenticator.exchange(method)
    if exchange is None:
        raise ProtocolError(ReasonCode.BAD_AUTHENTICATION_METHOD, "the method has ended")
    try:
        done = await run_exchange(connection, exchange, method, properties.authentication_data)
    except RefusedError as error:
        raise ProtocolError(error.reason_code, str(error)) from error
    answer = Properties(authentication_method=method, authentication_data=done.data)
    connection.send(encode(Auth(ReasonCode.SUCCESS, answer), MQTT_5))
