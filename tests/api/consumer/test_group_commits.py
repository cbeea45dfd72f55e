"""A consumer sends a commit again while its group moves; the nodes do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import penstock
from penstock.api import Store
from penstock.api.backend import Backend
from penstock.api.consumer.group_commits import REPEAT_S, GroupCommits
from penstock.api.requests.groups import CommitOffsets
from penstock.api.requests.node import Request
from penstock.errors import GroupMovedError, UnknownTopicError
from penstock.record import Offset
from penstock.testing import ManualClock

R = TypeVar("R")


class Moving:
    """The backend of a store, whose groups move a number of times."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.moves = 0
        self.sent = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def execute(self, request: Request[R]) -> R:
        if isinstance(request, CommitOffsets):
            self.sent += 1
            if self.moves:
                self.moves -= 1
                raise GroupMovedError(request.group)
        return self._backend.execute(request)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with penstock.open(tmp_path / "data") as opened:
        opened.create_topic("work").write_many([b"a", b"b", b"c"])
        monkeypatch.setattr(opened, "_backend", Moving(opened._backend))
        yield opened


def moving(store: Store) -> Moving:
    backend: object = store._backend
    assert isinstance(backend, Moving)
    return backend


@pytest.mark.parametrize("is_member", [True, False])
def test_a_commit_is_sent_again_while_the_group_moves(store: Store, is_member: bool) -> None:
    assigned = None if is_member else [("work", 0)]
    with store.consumer("g", ["work"], assign=assigned) as consumer:
        assert len(list(consumer)) == 3
        moving(store).moves = 2
        consumer.commit()
        assert moving(store).sent == 3
    assert store.describe_group("g").total_lag == 0


class Passing(ManualClock):
    """Time passes while it is waited for."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds)
        return event.is_set()


def test_the_repetition_of_a_commit_ends(store: Store) -> None:
    backend, clock = moving(store), Passing()
    backend.moves = 1_000_000
    began = clock.monotonic()
    with pytest.raises(GroupMovedError):
        GroupCommits(store._backend, clock).send(CommitOffsets("g", {("work", 0): Offset(1)}))
    assert REPEAT_S <= clock.monotonic() - began < REPEAT_S + 1
    assert 10 < backend.sent < 100


def test_other_errors_of_a_commit_are_not_repeated(store: Store) -> None:
    with store.consumer("g", ["work"], assign=[("work", 0)]) as consumer:
        assert len(list(consumer)) == 3
        store.topic("work").delete()
        with pytest.raises(UnknownTopicError):
            consumer.commit()
    assert moving(store).sent == 1
