"""ApiVersions: what this server serves, made from the registry."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.dispatch import versions
from penstock.brokers.kafka.registry import API_VERSIONS, ApiRegistry
from penstock.brokers.kafka.wire.fields import Fields, Response


def register(registry: ApiRegistry, _broker: KafkaBroker) -> None:
    async def api_versions(_context: RequestContext, _request: Fields) -> Response:
        return {"error_code": ErrorCode.none, "api_keys": versions(registry)}

    registry.add(API_VERSIONS, 0, 4, api_versions)
