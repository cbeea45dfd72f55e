"""What decides about a connection besides the protocol: the interfaces, and defaults that allow.

    CONNECT     gate.check ─▶ authenticator ─▶ session ─▶ observers.connected ─▶ auto_subscriptions
    PUBLISH     rewriter.publish ─▶ authorizer (on the rewritten name) ─▶ a publish handler, if the
                topic has the handler's prefix, else mapping and storage
    SUBSCRIBE   rewriter.subscribe ─▶ authorizer (on the inner filter of `$share/…`) ─▶ a filter
                handler, if the filter has the handler's prefix ─▶ session
    end         filter handlers' `ended` ─▶ observers.disconnected

All methods are called on the event loop. Those that are not coroutines must return within
microseconds; what may wait runs through `broker.run_blocking`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.brokers.mqtt.wire.packets import Connect, Publish, SubscriptionRequest


SUCCESS: Final = 0x00
NOT_AUTHORIZED: Final = 0x87
BRIDGE_STATE: Final = re.compile(r"\$SYS/broker/connection/[^/]+/state")


class Action(Enum):
    """What an authorizer is asked about."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(slots=True)
class Client:
    """Whom a connection belongs to. The client id is the assigned one if CONNECT had none."""

    client_id: str
    username: str | None
    version: int
    host: str
    port: int
    transport: str
    """`tcp`, `websocket`, or `internal` for a part of this process, such as a bridge."""
    principal: str = ""
    """Whom the authenticator recognised; empty: an anonymous client."""
    is_superuser: bool = False
    """Whether the authorizer is not asked."""
    attributes: dict[str, str] = field(default_factory=dict)
    """What the authenticator knows besides, for rules."""
    rate_state: object = None
    """What the rate limits keep for this connection."""
    rule_state: object = None
    """What the authorizer keeps for this connection."""


@dataclass(slots=True)
class Verdict:
    """What an authenticator decides."""

    reason_code: int = SUCCESS
    principal: str = ""
    is_superuser: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    """For the log and, in MQTT 5, the client; without secrets."""


@dataclass(slots=True)
class ExchangeStep:
    """An answer of an enhanced authentication: `CONTINUE_AUTHENTICATION` with data for an AUTH
    packet, or an end: `verdict` with `SUCCESS` or a refusal. `data` may accompany success."""

    verdict: Verdict
    data: bytes | None = None


class Gate(Protocol):
    """Refuses clients before they are authenticated: blacklist, flapping clients, rates."""

    def check(self, client: Client) -> int:
        """Return `SUCCESS`, or the reason code of the CONNACK that refuses."""
        ...


class Exchange(Protocol):
    """One enhanced authentication (MQTT 5, 4.12), of CONNECT or of a later AUTH."""

    async def step(self, client: Client, data: bytes | None) -> ExchangeStep: ...


class Authenticator(Protocol):
    async def authenticate(
        self, client: Client, password: bytes | None, connect: Connect
    ) -> Verdict:
        """Check user name and password."""
        ...

    def exchange(self, method: str) -> Exchange | None:
        """Begin an enhanced authentication; None: the method is not supported."""
        ...


class Authorizer(Protocol):
    @property
    def revision(self) -> int:
        """Changes with every change of the rules: connections keep answers until then."""
        ...

    def allows(self, client: Client, action: Action, topic: str, qos: int, retain: bool) -> bool:
        """Say whether a client may publish to a topic, or subscribe to a filter."""
        ...


class Rates(Protocol):
    def pause_s(self, client: Client, messages: int, size: int) -> float:
        """Count publishes of one receive; return for how long reading from the client pauses."""
        ...


class Rewriter(Protocol):
    @property
    def is_active(self) -> bool:
        """False: there are no rules, and the methods need not be called."""
        ...

    def publish(self, client: Client, topic: str) -> str: ...

    def subscribe(self, client: Client, topic_filter: str) -> str: ...


class AutoSubscriptions(Protocol):
    def of(self, client: Client) -> Sequence[SubscriptionRequest]:
        """Return what a client is subscribed to when it connects."""
        ...


class PublishHandler(Protocol):
    """Takes the publishes to topics that begin with a prefix: `$delayed/`."""

    async def publish(self, client: Client, publish: Publish) -> int:
        """Return the reason code of the acknowledgement, when the message is stored."""
        ...


@dataclass(slots=True)
class FilterDecision:
    """What becomes of one filter: the filter that the session subscribes to, or a refusal."""

    topic_filter: str
    reason_code: int = SUCCESS


class FilterHandler(Protocol):
    """Takes filters that begin with a prefix: `$exclusive/`."""

    def subscribe(self, client: Client, topic_filter: str) -> FilterDecision: ...

    def unsubscribe(self, client: Client, topic_filter: str) -> str:
        """Return the filter that the session is subscribed to."""
        ...

    def ended(self, client: Client) -> None:
        """The connection has ended."""
        ...


class Observer(Protocol):
    """Learns of connections: statistics, flapping."""

    def connected(self, client: Client) -> None: ...

    def disconnected(self, client: Client, reason: str, *, is_clean: bool) -> None:
        """`is_clean`: the client sent DISCONNECT with reason code 0 or 4."""
        ...


# Defaults


class OpenGate:
    """Lets every client in."""

    def check(self, client: Client) -> int:
        del client
        return SUCCESS


class AllowEveryone:
    """Accepts every user name and password; has no enhanced methods."""

    async def authenticate(
        self, client: Client, password: bytes | None, connect: Connect
    ) -> Verdict:
        del password, connect
        return Verdict(principal=client.username or "")

    def exchange(self, method: str) -> Exchange | None:
        del method
        return None


class AllowEverything:
    revision = 0

    def allows(self, client: Client, action: Action, topic: str, qos: int, retain: bool) -> bool:
        del client, action, topic, qos, retain
        return True


class Unlimited:
    def pause_s(self, client: Client, messages: int, size: int) -> float:
        del client, messages, size
        return 0.0


class KeepNames:
    """Rewrites nothing."""

    is_active = False

    def publish(self, client: Client, topic: str) -> str:
        del client
        return topic

    def subscribe(self, client: Client, topic_filter: str) -> str:
        del client
        return topic_filter


class SubscribeNothing:
    def of(self, client: Client) -> Sequence[SubscriptionRequest]:
        del client
        return ()


@dataclass(slots=True)
class Hooks:
    """All hooks of a front end; what is not replaced allows."""

    gate: Gate = field(default_factory=OpenGate)
    authenticator: Authenticator = field(default_factory=AllowEveryone)
    authorizer: Authorizer = field(default_factory=AllowEverything)
    rates: Rates = field(default_factory=Unlimited)
    rewriter: Rewriter = field(default_factory=KeepNames)
    auto_subscriptions: AutoSubscriptions = field(default_factory=SubscribeNothing)
    publish_handlers: dict[str, PublishHandler] = field(default_factory=dict)
    """By prefix, such as `$delayed/`."""
    filter_handlers: dict[str, FilterHandler] = field(default_factory=dict)
    observers: list[Observer] = field(default_factory=list)
    read_only_prefixes: list[str] = field(
        default_factory=lambda: ["$SYS/", "$share/", "$queue/", "$exclusive/", "$replay/"]
    )
    """Clients' publishes to these are refused with 0x87."""

    subscription_refusal: int = NOT_AUTHORIZED
    """Reason code of subscriptions that the authorizer refuses."""

    def is_read_only(self, topic: str) -> bool:
        """Say whether clients may not publish to a topic that begins with `$`. Bridges of Mosquitto
        publish their state below `$SYS/`."""
        if BRIDGE_STATE.fullmatch(topic):
            return False
        return any(topic.startswith(prefix) for prefix in self.read_only_prefixes)
