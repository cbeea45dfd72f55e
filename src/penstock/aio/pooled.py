"""`in_pool`: a method of the synchronous API as a coroutine that runs it in the store's threads.

    class AsyncTopic(Pooled[Topic]):
        read_by_key = in_pool(Topic.read_by_key)

The coroutine has the arguments, the result and the docstring of the method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Concatenate, Final, Generic, ParamSpec, TypeVar, cast

from penstock.aio.thread_pool import CallExecutor

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Pooled(Generic[S]):
    """An object of the synchronous API, and the threads that its calls run in."""

    def __init__(self, target: S, calls: CallExecutor) -> None:
        self._target: Final = target
        self._calls: Final = calls


def in_pool(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[Pooled[S], P], Coroutine[object, None, R]]:
    name = method.__name__

    @wraps(method)
    async def call(self: Pooled[S], /, *arguments: P.args, **named: P.kwargs) -> R:
        bound = cast("Callable[P, R]", getattr(self._target, name))
        return await self._calls.run(bound, *arguments, **named)

    return call
