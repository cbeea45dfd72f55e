"""Adds the optional parts to the broker: each sets hooks, and what starts and stops with it."""

from __future__ import annotations

from penstock.brokers.mqtt.admin.api import AdminApi
from penstock.brokers.mqtt.admin.metrics import FeatureMetrics
from penstock.brokers.mqtt.admin.requests import PREFIX, AdminRequests
from penstock.brokers.mqtt.bridge.registration import Bridges
from penstock.brokers.mqtt.broker import MqttBroker
from penstock.brokers.mqtt.extras.registration import Extras
from penstock.brokers.mqtt.policy.registration import AccessPolicy
from penstock.brokers.mqtt.share_groups.groups import ShareGroups


def register_all(broker: MqttBroker) -> None:
    """Add all parts that the settings ask for; raise `SettingsError` when these are wrong."""
    policy = AccessPolicy(broker)
    extras = Extras(broker)
    bridges = Bridges(broker)
    broker.metrics.features = FeatureMetrics(policy, extras, bridges).collect
    api = AdminApi(broker, policy.blacklist, extras.slow)
    requests = AdminRequests(api, broker.publisher, allows_local_clients=policy.is_open)
    broker.hooks.publish_handlers[PREFIX] = requests
    broker.hooks.filter_handlers[PREFIX] = requests
    delivery = broker.delivery
    broker.shared = ShareGroups(delivery, delivery.tree, broker.settings.share_strategy)
