"""The Kafka front end: real Kafka clients work against Penstock.

Other packages import these names only: `start_server`, and the `KafkaServer` that it returns, whose
`close` stops the front end.

    socket ──▶ connection (order, back-pressure) ──▶ dispatch ──▶ registry: one API ──▶ broker
                                                        │
                                                        └ Produce, Fetch: bytes, no objects

**How an API is added.** A module has a function

    def register(registry: ApiRegistry, broker: KafkaBroker) -> None:
        registry.add(11, 0, 9, coordinator.join_group)      # api key, lowest and highest version

and is named in `apis.MODULES`. A handler is a coroutine

    async def join_group(self, context: RequestContext, request: Fields) -> Response

that gets the request as version-neutral `Fields` and returns any mapping of field names (see
`fields`): `{"error_code": ErrorCode.none, "members": [{"member_id": …}]}`. It may wait for any
time; the connection's later requests wait for it. A `StoreError` that it raises closes the
connection, so it responds with codes: `error_codes.code_of(error)` maps them. Only versions that
are registered are advertised. `broker` has the rest: storage (`drivers`), topics, offsets,
settings, clock, background tasks, and `transactions`, the interface between Produce/Fetch and the
transaction coordinator.
"""

from penstock.brokers.kafka.server import KafkaServer, start_server

__all__ = ["KafkaServer", "start_server"]
