"""A streaming query that is restarted after failures outside of this package.

Such failures are a Python worker that did not start in time on a busy machine, a broken connection,
or one of our retryable errors: a store that another process has open, a node that does not answer.
The query resumes from its checkpoint, so a restart neither loses nor repeats rows. Other errors are
final: a stage that raises, a missing topic, records deleted by retention.

Spark gives the Python process of a source ten seconds to start, which no setting changes. Sources
therefore start one after another, and the restart delay grows with each attempt.
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
"""Delay before each consecutive restart; a completed batch resets the count."""
START_TIMEOUT_S: Final = 30.0
_INITIALIZING: Final = "Initializing sources"
POLL_INTERVAL_S: Final = 0.05
COUNT_INTERVAL_S: Final = 1.0
"""Spark keeps the progress of the last hundred batches only."""


class RestartingQuery:
    """A query and its totals over all restarts. The constructor starts it."""

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
        """Start the query, and wait until its source has started or failed."""
        query = self._start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while query.isActive and query.status["message"] == _INITIALIZING:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL_S)
        return query

    @property
    def active(self) -> bool:
        """Whether it runs or waits for a restart."""
        return self._restart_at is not None or bool(self._query.isActive)

    @property
    def busy(self) -> bool:
        """Whether a batch with records is being processed."""
        status = self._query.status
        working = status["isTriggerActive"] and status["isDataAvailable"]
        return bool(self._query.isActive and working)

    def poll(self) -> None:
        """Restart the query if it failed; raise its error if that is final or the last attempt."""
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
        """Add the batches completed since the last call."""
        self._counted_at = time.monotonic()
        for progress in self._query.recentProgress:
            if progress["numInputRows"] and progress["batchId"] > self._last_batch:
                self._last_batch = progress["batchId"]
                self.batches += 1
                self.rows += progress["numInputRows"]

    def stop(self) -> None:
        """Stop the query and complete `batches` and `rows`."""
        self._query.stop()
        self.count()
