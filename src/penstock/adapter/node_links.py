"""The way to the other nodes of a cluster."""

from __future__ import annotations

from typing import Protocol

from penstock.engine.routing.shard_routing import Forwarder
from penstock.offsets import OffsetPeers


class NodeLinks(Forwarder, OffsetPeers, Protocol):
    """For records, and for consumers' offsets."""
