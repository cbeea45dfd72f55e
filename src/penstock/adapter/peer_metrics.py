"""What a scrape learns of the internal port: bytes by channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.meta import PeerNetwork

_CHANNELS: Final = ("forward", "heartbeat", "mqtt", "raft", "replicate")


class PeerMetrics(Collector):
    """A node alone, or without an internal port, shows zeros: a rate needs them."""

    def __init__(self, meta: object, registry: CollectorRegistry) -> None:
        self._network: Final = meta if isinstance(meta, PeerNetwork) else None
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        traffic = {} if self._network is None else self._network.channel_traffic()
        sent = _family("sent", "bytes sent to other nodes on the internal port")
        received = _family("received", "bytes received from other nodes on the internal port")
        dropped = _family(
            "dropped",
            "bytes for other nodes that were dropped: no connection, or its buffer was full",
        )
        for name in _CHANNELS:
            channel = traffic.get(name)
            sent.add_metric([name], channel.sent if channel else 0)
            received.add_metric([name], channel.received if channel else 0)
            dropped.add_metric([name], channel.dropped if channel else 0)
        yield from (sent, received, dropped)


def _family(name: str, meaning: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"penstock_peer_{name}_bytes", meaning, labels=["channel"])
