"""Calls to a shard whose leader changes are made again; nothing was done before."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.adapter import leader_changes
from penstock.adapter.batch_parts import check_all_written
from penstock.adapter.leader_changes import LeaderChanges, Part, Result
from penstock.engine.contract import Written
from penstock.engine.handler import StorageEngineHandler
from penstock.errors import DeadlineError, NotLeaderError, NotSentError, StoreError
from penstock.platform.clock import SystemClock
from penstock.record import Offset, Record

MOVED = NotLeaderError("orders_0", leader=None)
UNSENT = NotSentError("node 2: connection refused; nothing was sent")


def changes(*, leader: int | None = 2, is_replicated: bool = True) -> LeaderChanges:
    entry = SimpleNamespace(meta=SimpleNamespace(leader=leader), is_replicated=is_replicated)
    cache = SimpleNamespace(shards={"orders_0": entry, "orders_1": entry})
    handler = SimpleNamespace(clock=SystemClock(), cache=cache)
    return LeaderChanges(cast("StorageEngineHandler", handler))


@pytest.mark.parametrize("error", [MOVED, UNSENT])
def test_a_call_is_made_again_until_the_shard_has_a_leader_that_serves_it(
    error: StoreError,
) -> None:
    tries: list[int] = []

    def call() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise error
        return "done"

    assert changes().repeat("orders_0", error, call) == "done"
    assert len(tries) == 3


def test_a_call_with_an_unknown_outcome_is_not_made_again() -> None:
    tries: list[int] = []

    def call() -> str:
        tries.append(1)
        raise DeadlineError("the outcome is unknown")

    with pytest.raises(DeadlineError):
        changes().repeat("orders_0", MOVED, call)
    assert tries == [1]


@pytest.mark.parametrize(("leader", "is_replicated"), [(None, True), (2, False)])
def test_a_shard_that_no_other_node_can_lead_is_not_waited_for(
    leader: int | None, is_replicated: bool
) -> None:
    def call() -> str:
        raise AssertionError("not called")

    with pytest.raises(NotLeaderError):
        changes(leader=leader, is_replicated=is_replicated).repeat("orders_0", MOVED, call)


def test_the_wait_for_a_leader_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_changes, "WAIT_S", 0.1)

    def call() -> str:
        raise MOVED

    with pytest.raises(NotLeaderError):
        changes().repeat("orders_0", MOVED, call)


def test_only_the_parts_of_a_batch_that_were_not_written_are_written_again() -> None:
    parts: list[Part] = [("orders_0", [Record(b"a")]), ("orders_1", [Record(b"b")])]
    written = Written(Offset(7), 1)
    again: list[Sequence[Part]] = []

    def write(some: Sequence[Part]) -> list[Result]:
        again.append(some)
        return [Written(Offset(9), 1)]

    for error in (MOVED, UNSENT):
        results = changes().repeat_parts(parts, [written, error], write)
        assert results == [written, Written(Offset(9), 1)]
    assert again == [[parts[1]]] * 2


def test_a_batch_of_which_nothing_is_known_to_be_written_is_not_called_undone() -> None:
    """A caller that may repeat what was not done must not repeat what another leader has."""
    lost = DeadlineError("the connection was lost; the outcome is unknown")
    for error in (MOVED, UNSENT):
        with pytest.raises(DeadlineError, match="outcome is unknown"):
            check_all_written("orders", [0, 1], {0: error, 1: lost})
        with pytest.raises(type(error)):
            check_all_written("orders", [0, 1], {0: error, 1: error})
