"""The served APIs with their versions and handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from msgspec import Struct

from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.brokers.kafka.wire.flexible_versions import FIRST_FLEXIBLE
from penstock.brokers.kafka.wire.schema import Layout, request_layout, response_layout

Handler = Callable[[RequestContext, Fields], Awaitable[Response]]

API_VERSIONS: Final = 18


class Api(Struct, frozen=True):
    """One API. Produce and Fetch have no `handler`: they parse their requests."""

    key: int
    min_version: int
    max_version: int
    handler: Handler | None
    first_flexible: int
    """The first version whose messages, and whose headers, have tagged fields."""

    def has(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def request(self, version: int) -> Layout:
        return request_layout(self.key, version)

    def response(self, version: int) -> Layout:
        return response_layout(self.key, version)


class ApiRegistry:
    def __init__(self) -> None:
        self._apis: Final[dict[int, Api]] = {}

    def add(
        self, key: int, min_version: int, max_version: int, handler: Handler | None = None
    ) -> None:
        """Serve the versions [min_version, max_version] of an API with `handler`."""
        assert key not in self._apis, f"API {key} is registered twice"
        self._apis[key] = Api(key, min_version, max_version, handler, FIRST_FLEXIBLE[key])

    def find(self, key: int) -> Api | None:
        return self._apis.get(key)

    def __iter__(self) -> Iterator[Api]:
        """The APIs, by key."""
        return iter([self._apis[key] for key in sorted(self._apis)])
