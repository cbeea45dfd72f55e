"""From the bytes of a request to its handler, and from its response to bytes.

    request:  api key 2 · version 2 · correlation id 4 · client id (text) · [tags] · message
    response: size 4 · correlation id 4 · [tags] · message

As in Kafka, a request for an unknown API or version closes the connection; only ApiVersions
responds, in version 0, with the versions that are served.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.connection import Connection, key_of
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.metrics import KafkaMetrics, codes_in
from penstock.brokers.kafka.registry import API_VERSIONS, Api, ApiRegistry
from penstock.brokers.kafka.wire.cursor import Cursor, MalformedRequestError
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.brokers.kafka.wire.schema import read_message
from penstock.errors import StoreError
from penstock.platform.log import get_logger

SMALL_REQUEST_MAX: Final = 8 << 20
"""Bytes of a request other than Produce; its objects take several times as much memory."""

_HEAD: Final = Struct(">hhih")
_SIZE_AND_ID: Final = Struct(">ii")
_log: Final = get_logger(__name__)

UNFORESEEN: Final = (StoreError, AssertionError, LookupError, ValueError, TypeError, OSError)


class RawHandler(Protocol):
    """Serves requests of one API from their bytes."""

    def __call__(
        self, connection: Connection, version: int, correlation_id: int, body: memoryview
    ) -> bool:
        """As `connection.Dispatch`; `body` is what follows the header."""
        ...


class Dispatcher:
    def __init__(self, registry: ApiRegistry, metrics: KafkaMetrics | None = None) -> None:
        self._registry: Final = registry
        self._metrics: Final = metrics if metrics is not None else KafkaMetrics()
        self._raw: Final[dict[int, RawHandler]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def add_raw(self, api_key: int, handler: RawHandler) -> None:
        """Pass the requests of a registered API to `handler` as bytes."""
        self._raw[api_key] = handler

    def __call__(self, connection: Connection, request: memoryview) -> bool:
        try:
            return self._begin(connection, request)
        except MalformedRequestError as error:
            self._metrics.count_rejected(key_of(request))
            _reject(connection, str(error))
            return True
        except UNFORESEEN as error:
            self._end(connection, key_of(request), error)
            return True

    def _begin(self, connection: Connection, request: memoryview) -> bool:
        if len(request) < _HEAD.size:
            raise MalformedRequestError(
                f"{len(request)} bytes are shorter than a request header ({_HEAD.size})"
            )
        key, version, correlation_id, id_size = _HEAD.unpack_from(request)
        api = self._registry.find(key)
        if api is None:
            raise MalformedRequestError(f"API {key} is not served")
        position = _HEAD.size + max(id_size, 0)
        if position > len(request):
            raise MalformedRequestError(f"the client id of {id_size} bytes ends after the request")
        if not connection.client_id and id_size > 0:
            connection.client_id = str(request[_HEAD.size : position], "utf-8", "replace")
        if not api.has(version):
            self._reject_version(connection, api, version, correlation_id)
            return True
        if version >= api.first_flexible:
            position = _skip_tags(request, position)
        raw = self._raw.get(key)
        if raw is not None:
            return raw(connection, version, correlation_id, request[position:])
        if len(request) > SMALL_REQUEST_MAX:
            raise MalformedRequestError(
                f"API {key}: {len(request)} bytes; the limit is {SMALL_REQUEST_MAX}"
            )
        fields = read_message(api.request(version), Cursor(request, position))
        self._start(connection, api, version, correlation_id, fields)
        return False

    def _reject_version(
        self, connection: Connection, api: Api, version: int, correlation_id: int
    ) -> None:
        if api.key != API_VERSIONS:
            raise MalformedRequestError(f"version {version} of API {api.key} is not served")
        response = {
            "error_code": ErrorCode.unsupported_version,
            "api_keys": versions(self._registry),
        }
        connection.send(encode_response(api, 0, correlation_id, response))

    def _start(
        self,
        connection: Connection,
        api: Api,
        version: int,
        correlation_id: int,
        fields: Fields,
    ) -> None:
        context = RequestContext(
            connection_id=connection.id,
            client_id=connection.client_id,
            api_key=api.key,
            api_version=version,
            peer=connection.peer,
        )
        task = asyncio.get_running_loop().create_task(
            self._respond(connection, api, correlation_id, context, fields)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection.cancel_waiting = task.cancel

    async def _respond(
        self,
        connection: Connection,
        api: Api,
        correlation_id: int,
        context: RequestContext,
        fields: Fields,
    ) -> None:
        assert api.handler is not None
        try:
            response = await api.handler(context, fields)
        except MalformedRequestError as error:
            self._metrics.count_rejected(api.key)
            _reject(connection, str(error))
            return
        except UNFORESEEN as error:
            self._end(connection, api.key, error)
            return
        self._metrics.count_errors(api.key, codes_in(response))
        connection.respond([encode_response(api, context.api_version, correlation_id, response)])

    def _end(self, connection: Connection, key: int, error: Exception) -> None:
        """Close the connection after an error that a handler did not map to a code; its client
        connects and asks again. Other connections are not affected."""
        _log.error("kafka_request_failed", cause=error, api=key, peer=connection.peer)
        self._metrics.count_errors(key, [int(ErrorCode.unknown_server_error)])
        connection.close()

    async def close(self) -> None:
        """Cancel requests that still wait."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)


def versions(registry: ApiRegistry) -> list[Response]:
    """Return what ApiVersions lists."""
    return [
        {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
        for api in registry
    ]


def encode_response(api: Api, version: int, correlation_id: int, response: Response) -> bytearray:
    """Return a whole response with its size."""
    layout = api.response(version)
    out = bytearray(_SIZE_AND_ID.size)
    # A client that asks for versions does not know yet which header the broker uses.
    if layout.flexible and api.key != API_VERSIONS:
        out.append(0)
    layout.write(out, response)
    _SIZE_AND_ID.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _skip_tags(request: memoryview, position: int) -> int:
    if position < len(request) and request[position] == 0:
        return position + 1
    cursor = Cursor(request, position)
    for _ in range(cursor.varint()):
        cursor.varint()
        cursor.read_bytes(cursor.varint())
    return cursor.position


def _reject(connection: Connection, reason: str) -> None:
    _log.warning("kafka_request_refused", peer=connection.peer, reason=reason)
    connection.close()
