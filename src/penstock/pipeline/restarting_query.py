"""A streaming query that is started again when something outside of our code made it fail.

A Python worker that could not start in time on a busy machine, a connection that broke: the
checkpoint says where the query goes on, so starting it again loses nothing and repeats nothing. So
it is for our own errors that time heals: a store that another process has open, a node that does
not answer. The others are final, since they would only come back: a stage that raises, a topic that
is not there, records that retention took.

Spark gives the Python process of a source ten seconds to start, and no setting changes that. So
sources start one after another, and a query that failed waits before it tries again, longer each
time: a machine that is too busy is not made busier.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = get_logger(__name__)

RESTART_DELAYS_S: Final = (0.0, 2.0, 5.0, 15.0, 30.0)
"""Before each start in a row; a batch that was completed in between begins the row anew."""
START_TIMEOUT_S: Final = 30.0
_INITIALIZING: Final = "Initializing sources"
POLL_INTERVAL_S: Final = 0.05
COUNT_INTERVAL_S: Final = 1.0
"""Spark remembers the last hundred batches of a query, no more."""


class RestartingQuery:
    """A query, started at once, and what it has done through all of its starts."""

    def __init__(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        self.name: Final = name
        self._start: Final = start
        self._restarts = 0
        self._restart_at: float | None = None
        self._query = self._start_query()
        self._counted_at = time.monotonic()
        self._last_batch = -1
        self.batches = 0
        self.rows = 0

    def _start_query(self) -> StreamingQuery:
        """Start it, and wait until its source has started, too, or has failed to."""
        query = self._start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while query.isActive and query.status["message"] == _INITIALIZING:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL_S)
        return query

    @property
    def active(self) -> bool:
        """Whether it runs, or is about to run again."""
        return self._restart_at is not None or bool(self._query.isActive)

    @property
    def busy(self) -> bool:
        """Whether a batch with something in it is under way."""
        status = self._query.status
        working = status["isTriggerActive"] and status["isDataAvailable"]
        return bool(self._query.isActive and working)

    def poll(self) -> None:
        """Start it again when it failed; raise its error when that does not help."""
        from penstock.pipeline.jobs.spark_work import as_store_error, is_final

        if self._restart_at is not None:
            if time.monotonic() >= self._restart_at:
                self._restart_at = None
                self._query = self._start_query()
            return
        failure = self._query.exception()
        if failure is None:
            if time.monotonic() - self._counted_at > COUNT_INTERVAL_S:
                self.count()
            return
        before = self.batches
        self.count()
        if self.batches > before:
            self._restarts = 0
        error = as_store_error(str(failure))
        if is_final(str(failure)) or self._restarts == len(RESTART_DELAYS_S):
            raise error
        self._restart_at = time.monotonic() + RESTART_DELAYS_S[self._restarts]
        self._restarts += 1
        _log.warning("query_restarted", query=self.name, reason=str(error), time=self._restarts)

    def count(self) -> None:
        """Add up the batches that were completed since the last time."""
        self._counted_at = time.monotonic()
        for progress in self._query.recentProgress:
            if progress["numInputRows"] and progress["batchId"] > self._last_batch:
                self._last_batch = progress["batchId"]
                self.batches += 1
                self.rows += progress["numInputRows"]

    def stop(self) -> None:
        """Stop it; `batches` and `rows` are then complete."""
        self._query.stop()
        self.count()
