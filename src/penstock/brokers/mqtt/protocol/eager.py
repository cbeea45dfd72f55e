"""Begins a coroutine in the present turn of the loop: work that need not wait needs no task."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import coroutine


def begin(work: Coroutine[object, None, None]) -> Coroutine[object, None, None] | None:
    """Run `work` up to its first wait. Return what continues it; None: it has ended. Raises what
    `work` raises until then. `work` must not ask for its task before it waits."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return _continue(work, waits_for)


async def _continue(work: Coroutine[object, None, None], waits_for: object) -> None:
    await _pass_on(work, waits_for)


@coroutine
def _pass_on(
    work: Coroutine[object, None, None], waits_for: object
) -> Generator[object, None, None]:
    """Let the task wait for what `work` waits for, until `work` has ended."""
    throw: BaseException | None
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - such as a cancellation: passed on
            throw = error
        else:
            throw = None
        try:
            waits_for = work.send(None) if throw is None else work.throw(throw)
        except StopIteration:
            return
