"""Picks the tree of filters and the cache of routes: native, or the references in Python."""

from __future__ import annotations

from penstock.brokers.mqtt.subscriptions.interface import RoutedTopics, Tree
from penstock.brokers.mqtt.subscriptions.route_cache import RouteCache
from penstock.brokers.mqtt.subscriptions.tree import STEPS_MAX, SubscriptionTree
from penstock.codec.select import IS_NATIVE


def make_routing(topics_max: int, steps_max: int = STEPS_MAX) -> tuple[Tree, RoutedTopics]:
    """Return a tree, and the routes of up to `topics_max` topics that were used lately."""
    if not IS_NATIVE:
        tree = SubscriptionTree(steps_max)
        return tree, RouteCache(tree, topics_max)
    from penstock._native import MqttRouteCache, MqttSubscriptionTree

    native = MqttSubscriptionTree(steps_max)
    return native, MqttRouteCache(native, topics_max)
