"""Adds the optional parts to the broker: each sets hooks, and what starts and stops with it."""

from __future__ import annotations

from penstock.brokers.mqtt.broker import MqttBroker


def register_all(broker: MqttBroker) -> None:
    """Add all parts that the settings ask for."""
    del broker
