"""All APIs there are. A module that serves some is named here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.brokers.kafka import api_versions, coordination, metadata
from penstock.brokers.kafka.admin import registration as admin
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.registry import ApiRegistry

MODULES: Final[tuple[Callable[[ApiRegistry, KafkaBroker], None], ...]] = (
    api_versions.register,
    metadata.register,
    coordination.register,
    admin.register,
)


def register_all(broker: KafkaBroker) -> ApiRegistry:
    registry = ApiRegistry()
    for register in MODULES:
        register(registry, broker)
    return registry
