"""Queries that fail outside of our code are started again, one source at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import StoreError
from penstock.pipeline import restarting_query
from penstock.pipeline.restarting_query import RestartingQuery

SLOW = "Python worker failed to connect back."


class Query:
    """A query of Spark's as far as `RestartingQuery` looks at it."""

    def __init__(self, looks: int = 0, failure: str | None = None) -> None:
        self._looks = looks
        self._failure = failure
        self.stopped = False
        self.recentProgress: list[dict[str, int]] = []

    @property
    def isActive(self) -> bool:  # noqa: N802 - a name of Spark's
        return self._failure is None and not self.stopped

    @property
    def status(self) -> dict[str, object]:
        self._looks -= 1
        message = "Initializing sources" if self._looks >= 0 else "Processing new data"
        return {"message": message, "isTriggerActive": True, "isDataAvailable": True}

    @property
    def is_starting(self) -> bool:
        return self._looks > 0

    def exception(self) -> str | None:
        return self._failure

    def stop(self) -> None:
        self.stopped = True


def start_of(*queries: Query) -> Callable[[], StreamingQuery]:
    left = iter(queries)
    return lambda: cast("StreamingQuery", next(left))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting_query, "POLL_INTERVAL_S", 0)


def test_the_next_source_starts_when_the_last_one_has_begun() -> None:
    query = Query(looks=5)
    restarting = RestartingQuery("export", start_of(query))
    assert not query.is_starting
    assert restarting.active


def test_a_source_that_never_begins_holds_the_others_up_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting_query, "START_TIMEOUT_S", 0.01)
    assert RestartingQuery("export", start_of(Query(looks=10**9))).active


def test_a_query_whose_source_started_too_late_is_started_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting_query, "RESTART_DELAYS_S", (3600.0,))
    second = Query()
    restarting = RestartingQuery("export", start_of(Query(failure=SLOW), second))
    restarting.poll()
    # It waits: it has not ended, and nothing is under way.
    restarting.poll()
    assert restarting.active
    assert not restarting.busy
    monkeypatch.setattr(restarting, "_restart_at", 0.0)
    restarting.poll()
    assert restarting.active
    restarting.stop()
    assert second.stopped


def test_one_that_fails_again_and_again_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting_query, "RESTART_DELAYS_S", (0.0, 0.0))
    restarting = RestartingQuery("export", start_of(*(Query(failure=SLOW) for _ in range(3))))
    for _ in range(4):
        restarting.poll()
    with pytest.raises(StoreError, match=f"^Spark: {SLOW}$"):
        restarting.poll()


def test_a_batch_that_was_completed_begins_the_row_of_starts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting_query, "RESTART_DELAYS_S", (0.0,))
    queries = [Query(failure=SLOW) for _ in range(3)]
    for number, query in enumerate(queries):
        query.recentProgress = [{"numInputRows": 1, "batchId": number}]
    restarting = RestartingQuery("export", start_of(*queries, Query()))
    for _ in range(6):
        restarting.poll()
    assert restarting.batches == restarting.rows == 3
    assert restarting.active


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        ("penstock.errors.LockedError: data is open in another process", True),
        ("penstock.errors.DeadlineError: nobody answers at 127.0.0.1:1", True),
        ("penstock.errors.NotLeaderError: this node does not lead 'a_0'", True),
        ("penstock.errors.BadRequestError: topic 'orders' does not exist", False),
    ],
)
def test_errors_that_time_heals_are_tried_again(failure: str, again: bool) -> None:
    restarting = RestartingQuery("stages", start_of(Query(failure=failure), Query()))
    if again:
        restarting.poll()
        assert restarting.active
    else:
        with pytest.raises(StoreError):
            restarting.poll()
