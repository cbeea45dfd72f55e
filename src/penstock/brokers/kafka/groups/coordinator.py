"""The node's `GroupCoordinator` as the Kafka front end uses it: coroutines and Kafka's error codes,
in the front end's namespace.

Waiting requests get their responses on the event loop; those that wait when the server stops are
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.wire.fields import Fields
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Answer, Caller, Join, Joined, Sync, Synced
from penstock.groups.state_machine import GroupMachine
from penstock.meta import DEFAULT_NAMESPACE


def caller_of(request: Fields, generation: str = "generation_id") -> Caller:
    """Return the member that sent a request."""
    return Caller(
        request.text("member_id"),
        request.number(generation, -1),
        request.optional_text("group_instance_id"),
    )


class KafkaGroups:
    def __init__(self, groups: GroupCoordinator, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._groups: Final = groups
        self._namespace: Final = namespace
        self._waiting: Final[set[asyncio.Future[Answer]]] = set()

    async def join(self, group_id: str, request: Join) -> Joined:
        def ask(done: Callable[[Answer], None]) -> None:
            self._groups.join(group_id, request, done, namespace=self._namespace)

        response = await self._ask(ask)
        return response if isinstance(response, Joined) else Joined(response.error)

    async def sync(self, group_id: str, request: Sync) -> Synced:
        def ask(done: Callable[[Answer], None]) -> None:
            self._groups.sync(group_id, request, done, namespace=self._namespace)

        response = await self._ask(ask)
        return response if isinstance(response, Synced) else Synced(response.error)

    def heartbeat(self, group_id: str, caller: Caller) -> ErrorCode:
        return ErrorCode(self._groups.heartbeat(group_id, caller, namespace=self._namespace))

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        code = self._groups.leave(group_id, member_id, instance_id, namespace=self._namespace)
        return ErrorCode(code)

    def check_commit(
        self, group_id: str, caller: Caller, *, in_transaction: bool = False
    ) -> ErrorCode:
        """Say whether `caller` may commit offsets of a group."""
        code = self._groups.check_commit(
            group_id, caller, namespace=self._namespace, in_transaction=in_transaction
        )
        return ErrorCode(code)

    def find(self, group_id: str) -> GroupMachine | None:
        """Return a group that has, or is about to have, members."""
        return self._groups.find(group_id, namespace=self._namespace)

    def with_members(self) -> Iterator[tuple[str, GroupMachine]]:
        for key, machine in self._groups.with_members(self._namespace):
            yield key.group, machine

    async def close(self) -> None:
        """Cancel the requests that wait. Members stay until their sessions time out."""
        for waiting in list(self._waiting):
            waiting.cancel()

    async def _ask(self, ask: Callable[[Callable[[Answer], None]], None]) -> Answer:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Answer] = loop.create_future()
        self._waiting.add(waiting)

        def resolve(response: Answer) -> None:
            if not waiting.done():
                waiting.set_result(response)

        def done(response: Answer) -> None:
            """Called from any thread, and from this one before `ask` returns."""
            with suppress(RuntimeError):  # the server has stopped: its loop is closed
                loop.call_soon_threadsafe(resolve, response)

        try:
            ask(done)
            return await waiting
        finally:
            self._waiting.discard(waiting)
