"""Subscriptions that the settings give to every client that connects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.brokers.mqtt.extras.client_names import VARIABLES, fill_in
from penstock.brokers.mqtt.protocol.hooks import Client
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import SubscriptionRequest
from penstock.brokers.mqtt.wire.validation import check_filter
from penstock.errors import SettingsError
from penstock.settings import MqttAutoSubscription


class ConfiguredSubscriptions:
    def __init__(self, rules: Sequence[MqttAutoSubscription]) -> None:
        for rule in rules:
            example = rule.filter
            for variable in VARIABLES:
                example = example.replace(variable, "x")
            try:
                check_filter(example)
            except ProtocolError as error:
                raise SettingsError(f"mqtt_features.auto_subscribe: {error}") from error
        self._rules: Final = tuple(rules)

    def of(self, client: Client) -> Sequence[SubscriptionRequest]:
        """Return the subscriptions of a client; those whose names it does not have are left out."""
        if not self._rules or client.transport == "internal":
            return ()
        filled = ((rule, fill_in(rule.filter, client)) for rule in self._rules)
        return [
            SubscriptionRequest(
                topic_filter,
                rule.qos,
                no_local=rule.no_local,
                retain_as_published=rule.retain_as_published,
                retain_handling=rule.retain_handling,
            )
            for rule, topic_filter in filled
            if topic_filter is not None
        ]
