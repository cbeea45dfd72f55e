"""Exclusive subscriptions: `$exclusive/FILTER` has at most one subscriber.

The first client that subscribes has the filter until it unsubscribes or its connection ends; other
clients get 0x97 (quota exceeded). The filters are compared as texts: overlapping filters that
differ are independent.
"""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.policy.filters import EXCLUSIVE_PREFIX
from penstock.brokers.mqtt.protocol.hooks import Client, FilterDecision
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

FILTERS_MAX: Final = 1_000_000


class ExclusiveFilters:
    def __init__(self, *, is_enabled: bool = True) -> None:
        self._is_enabled: Final = is_enabled
        self._owners: Final[dict[str, str]] = {}
        self._filters: Final[dict[str, set[str]]] = {}

    def subscribe(self, client: Client, topic_filter: str) -> FilterDecision:
        inner = topic_filter.removeprefix(EXCLUSIVE_PREFIX)
        if not self._is_enabled or not inner or inner.startswith("$"):
            return FilterDecision(inner, ReasonCode.TOPIC_FILTER_INVALID)
        owner = self._owners.get(inner)
        if owner is not None and owner != client.client_id:
            return FilterDecision(inner, ReasonCode.QUOTA_EXCEEDED)
        if owner is None and len(self._owners) >= FILTERS_MAX:
            return FilterDecision(inner, ReasonCode.QUOTA_EXCEEDED)
        self._owners[inner] = client.client_id
        self._filters.setdefault(client.client_id, set()).add(inner)
        return FilterDecision(inner)

    def unsubscribe(self, client: Client, topic_filter: str) -> str:
        inner = topic_filter.removeprefix(EXCLUSIVE_PREFIX)
        if self._owners.get(inner) == client.client_id:
            self._release(client.client_id, inner)
        return inner

    def ended(self, client: Client) -> None:
        for inner in list(self._filters.get(client.client_id, ())):
            self._release(client.client_id, inner)

    def _release(self, client_id: str, inner: str) -> None:
        del self._owners[inner]
        filters = self._filters[client_id]
        filters.discard(inner)
        if not filters:
            del self._filters[client_id]
