"""InitProducerId: a number for every idempotent producer, never given twice.

Numbers come from the meta service in blocks; those left of a block when the server stops are lost,
which costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.registry import ApiRegistry
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import StoreError

BLOCK: Final = 1_000


class ProducerIds:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._left: Iterator[int] = iter(())

    async def init_producer_id(self, context: RequestContext, request: Fields) -> Response:
        if request.optional_text("transactional_id") is not None:
            if self._broker.init_transactional is None:
                return _rejected(ErrorCode.invalid_request)
            return await self._broker.init_transactional(context, request)
        try:
            number = await self.next_id()
        except StoreError as error:
            return _rejected(code_of(error))
        return {"error_code": ErrorCode.none, "producer_id": number, "producer_epoch": 0}

    async def next_id(self) -> int:
        number = next(self._left, None)
        if number is None:
            # Two requests may both ask for a block: one of the two goes unused.
            block = partial(self._broker.meta.allocate_producer_ids, BLOCK)
            self._left = iter(await self._broker.run_blocking(block))
            number = next(self._left)
        return number


def _rejected(code: ErrorCode) -> Response:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def register(registry: ApiRegistry, broker: KafkaBroker) -> None:
    registry.add(22, 0, 5, ProducerIds(broker).init_producer_id)
