"""SUBSCRIBE and UNSUBSCRIBE: which filters reach the session, and the reason code of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.brokers.mqtt.protocol.hooks import Action, Client, Hooks
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.subscriptions.replay import start_of_properties
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.reason_codes import FAILURE, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.brokers.mqtt.wire.packets import Subscribe, SubscriptionRequest

SHARE_PREFIX: Final = "$share/"
QUEUE_PREFIX: Final = "$queue/"
REPLAY_PREFIX: Final = "$replay/"


class CheckedFilter(NamedTuple):
    """A filter of SUBSCRIBE: the subscription, or a reason code that refuses it."""

    reason_code: int
    subscription: Subscription | None


def check_subscribe(
    packet: Subscribe, client: Client, hooks: Hooks, maximum_qos: int = 2
) -> list[CheckedFilter]:
    """Return what becomes of each filter. Raises `ProtocolError` for what ends the connection."""
    identifier = 0
    if packet.properties is not None and packet.properties.subscription_identifiers:
        identifier = packet.properties.subscription_identifiers[0]
    checked = [
        check_request(request, client, hooks, identifier, maximum_qos)
        for request in packet.subscriptions
    ]
    if packet.properties is not None and packet.properties.user_properties:
        start = start_of_properties(packet.properties.user_properties)
        for check in checked:
            if check.subscription is not None:
                check.subscription.start = start
    return checked


def check_request(
    request: SubscriptionRequest,
    client: Client,
    hooks: Hooks,
    identifier: int = 0,
    maximum_qos: int = 2,
) -> CheckedFilter:
    if request.no_local and request.filter.startswith(SHARE_PREFIX):
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR,
            f"No Local for the shared subscription {request.filter[:100]!r}",
        )
    topic_filter = request.filter
    if hooks.rewriter.is_active:
        topic_filter = rewrite(topic_filter, client, hooks)
    prefix = next(
        (prefix for prefix in hooks.filter_handlers if topic_filter.startswith(prefix)), ""
    )
    inner = inner_filter(topic_filter.removeprefix(prefix))
    if not client.is_superuser and not hooks.authorizer.allows(
        client, Action.SUBSCRIBE, inner, request.qos, False
    ):
        return CheckedFilter(hooks.subscription_refusal, None)
    if prefix:
        decision = hooks.filter_handlers[prefix].subscribe(client, topic_filter)
        if decision.reason_code >= FAILURE:
            return CheckedFilter(decision.reason_code, None)
        topic_filter = decision.topic_filter
    qos = min(request.qos, maximum_qos)
    subscription = Subscription(
        topic_filter,
        qos,
        no_local=request.no_local,
        retain_as_published=request.retain_as_published,
        retain_handling=request.retain_handling,
        identifier=identifier,
    )
    return CheckedFilter(qos, subscription)


def check_unsubscribe(filters: Sequence[str], client: Client, hooks: Hooks) -> list[str]:
    """Return the filters under which the session has the subscriptions."""
    found: list[str] = []
    for given in filters:
        topic_filter = rewrite(given, client, hooks) if hooks.rewriter.is_active else given
        for prefix, handler in hooks.filter_handlers.items():
            if topic_filter.startswith(prefix):
                topic_filter = handler.unsubscribe(client, topic_filter)
                break
        found.append(topic_filter)
    return found


def inner_filter(topic_filter: str) -> str:
    """Return the filter without the prefixes that say how messages are delivered."""
    if topic_filter.startswith((SHARE_PREFIX, REPLAY_PREFIX)):
        return topic_filter.split("/", 2)[-1]
    return topic_filter.removeprefix(QUEUE_PREFIX)


def rewrite(topic_filter: str, client: Client, hooks: Hooks) -> str:
    """Rewrite the inner filter; the prefix stays."""
    inner = inner_filter(topic_filter)
    prefix = topic_filter[: len(topic_filter) - len(inner)]
    return prefix + hooks.rewriter.subscribe(client, inner)
