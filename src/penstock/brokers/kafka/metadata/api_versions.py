"""ApiVersions: what this server serves, made from the registry."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.dispatch import versions
from penstock.brokers.kafka.registry import API_VERSIONS, ApiRegistry
from penstock.brokers.kafka.wire.fields import Fields, Response

_END_TXN: Final = 26
_TRANSACTION_VERSION: Final = "transaction.version"
_BUMPS_EPOCHS: Final = 2
"""The level of `transaction.version` from which on clients leave AddPartitionsToTxn out, and have a
new epoch for every transaction."""


def register(registry: ApiRegistry, cluster: ClusterView) -> None:
    async def api_versions(_context: RequestContext, _request: Fields) -> Response:
        response: dict[str, object] = {
            "error_code": ErrorCode.none,
            "api_keys": versions(registry),
        }
        if any(api.key == _END_TXN for api in registry):
            response |= _features(cluster)
        return response

    registry.add(API_VERSIONS, 0, 4, api_versions)


def _features(cluster: ClusterView) -> Response:
    """Return the features that clients adapt to: all nodes must know how to serve them. The epoch
    grows with them, so that a client replaces what it has learned before."""
    supported = {"name": _TRANSACTION_VERSION, "min_version": 0, "max_version": _BUMPS_EPOCHS}
    if not cluster.bumps_epochs:
        return {"supported_features": [supported], "finalized_features_epoch": 0}
    return {
        "supported_features": [supported],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {
                "name": _TRANSACTION_VERSION,
                "max_version_level": _BUMPS_EPOCHS,
                "min_version_level": _BUMPS_EPOCHS,
            }
        ],
    }
