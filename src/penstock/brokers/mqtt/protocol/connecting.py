"""The way of a CONNECT: gate, authentication, session, CONNACK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.brokers.mqtt.protocol.connect import ConnectOptions
from penstock.brokers.mqtt.protocol.hooks import Action, Client, Exchange, Verdict
from penstock.brokers.mqtt.sessions.errors import SessionLimitError, SessionTakenOverError
from penstock.brokers.mqtt.wire.codec import encode
from penstock.brokers.mqtt.wire.packets import MQTT_5, Auth, Connack, Connect, Properties
from penstock.brokers.mqtt.wire.reason_codes import FAILURE, ReasonCode
from penstock.errors import StoreError
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker
    from penstock.brokers.mqtt.protocol.client_connection import ClientConnection
    from penstock.brokers.mqtt.sessions.session import Session

_log: Final = get_logger(__name__)


class RefusedError(Exception):
    """A client is refused with a reason code of CONNACK."""

    def __init__(self, reason_code: int, reason: str) -> None:
        super().__init__(reason)
        self.reason_code = reason_code


class Opened(NamedTuple):
    """A client that was accepted."""

    session: Session
    connack: bytes


class Authentication(NamedTuple):
    """What an enhanced authentication adds to CONNACK."""

    method: str
    data: bytes | None


async def open_session(
    connection: ClientConnection, broker: MqttBroker, connect: Connect, options: ConnectOptions
) -> Opened:
    """Return the session of a client and the CONNACK. Raises `RefusedError`, and
    `SessionTakenOverError` when another connection was faster."""
    client = connection.client
    if options.reason_code:
        raise RefusedError(options.reason_code, "the client id is not valid")
    reason_code = broker.hooks.gate.check(client)
    if reason_code:
        raise RefusedError(reason_code, "the gate is closed for this client")
    authentication = await _authenticate(connection, broker, connect)
    _check_will(broker, client, options)
    try:
        session, is_present = await broker.sessions.open(
            options.client_id,
            clean_start=options.clean_start,
            expiry_s=options.expiry_s,
            version=options.version,
            will=options.will,
            sink=connection,
        )
    except SessionTakenOverError:
        raise
    except SessionLimitError as error:
        raise RefusedError(ReasonCode.QUOTA_EXCEEDED, str(error)) from error
    except StoreError as error:
        _log.warning("mqtt_session_not_opened", client=client.client_id, reason=str(error))
        raise RefusedError(ReasonCode.SERVER_UNAVAILABLE, str(error)) from error
    connack = options.connack(connect, broker.settings, is_present=is_present)
    if authentication is not None and connack.properties is not None:
        connack.properties.authentication_method = authentication.method
        connack.properties.authentication_data = authentication.data
    return Opened(session, encode(connack, options.version))


async def _authenticate(
    connection: ClientConnection, broker: MqttBroker, connect: Connect
) -> Authentication | None:
    client, properties = connection.client, connect.properties
    method = None if properties is None else properties.authentication_method
    if method is None or connect.version != MQTT_5:
        verdict = await broker.hooks.authenticator.authenticate(client, connect.password, connect)
        apply_verdict(client, verdict)
        return None
    exchange = broker.hooks.authenticator.exchange(method)
    if exchange is None:
        raise RefusedError(
            ReasonCode.BAD_AUTHENTICATION_METHOD, f"no authentication method {method[:50]!r}"
        )
    data = None if properties is None else properties.authentication_data
    return await run_exchange(connection, exchange, method, data)


async def run_exchange(
    connection: ClientConnection, exchange: Exchange, method: str, data: bytes | None
) -> Authentication:
    """Exchange AUTH packets until the authentication ends; raise `RefusedError` if it fails."""
    client = connection.client
    while True:
        step = await exchange.step(client, data)
        if step.verdict.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:
            apply_verdict(client, step.verdict)
            return Authentication(method, step.data)
        properties = Properties(authentication_method=method, authentication_data=step.data)
        connection.send(encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties), MQTT_5))
        answer = await connection.next_auth()
        given = answer.properties
        if given is None or given.authentication_method != method:
            raise RefusedError(ReasonCode.PROTOCOL_ERROR, "AUTH has another authentication method")
        data = given.authentication_data


def apply_verdict(client: Client, verdict: Verdict) -> None:
    """Set what the authenticator knows of a client; raise `RefusedError` if it refuses."""
    if verdict.reason_code >= FAILURE:
        raise RefusedError(verdict.reason_code, verdict.reason or "not authenticated")
    client.principal = verdict.principal
    client.is_superuser = verdict.is_superuser
    client.attributes = verdict.attributes


def _check_will(broker: MqttBroker, client: Client, options: ConnectOptions) -> None:
    if options.will is None:
        return
    will, hooks = options.will.will, broker.hooks
    if hooks.rewriter.is_active:
        will.topic = hooks.rewriter.publish(client, will.topic)
    if hooks.is_read_only(will.topic) or not (
        client.is_superuser
        or hooks.authorizer.allows(client, Action.PUBLISH, will.topic, will.qos, will.retain)
    ):
        raise RefusedError(
            ReasonCode.NOT_AUTHORIZED, f"the will's topic {will.topic[:100]!r} is not allowed"
        )


def refusal(reason_code: int, version: int) -> bytes:
    """Return the CONNACK that refuses a client."""
    return encode(Connack(reason_code=reason_code), version)
