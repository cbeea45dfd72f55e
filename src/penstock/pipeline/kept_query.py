"""A streaming query that is started again when something outside of our code made it fail.

A Python worker that could not start in time on a busy machine, a connection that broke: the
checkpoint says where the query goes on, so starting it again loses nothing and repeats nothing. Our
own errors are final, since they would only come back: a stage that raises, a topic that is not
there, records that retention took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = get_logger(__name__)

RESTARTS_MAX: Final = 3
"""In a row: a batch that was completed in between begins the count anew."""
COUNT_EVERY_S: Final = 1.0
"""Spark remembers the last hundred batches of a query, no more."""


class KeptQuery:
    """A query, started at once, and what it has done through all of its starts."""

    def __init__(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        self.name: Final = name
        self._start: Final = start
        self._query = start()
        self._restarts = 0
        self._counted_at = time.monotonic()
        self._last_batch = -1
        self.batches = 0
        self.rows = 0

    @property
    def active(self) -> bool:
        return bool(self._query.isActive)

    @property
    def busy(self) -> bool:
        """Whether a batch with something in it is under way."""
        status = self._query.status
        return self.active and bool(status["isTriggerActive"] and status["isDataAvailable"])

    def look(self) -> None:
        """Start it again when it failed; raise its error when that does not help."""
        from penstock.pipeline.jobs.spark_work import as_store_error, is_ours

        failure = self._query.exception()
        if failure is None:
            if time.monotonic() - self._counted_at > COUNT_EVERY_S:
                self.count()
            return
        before = self.batches
        self.count()
        if self.batches > before:
            self._restarts = 0
        error = as_store_error(str(failure))
        if is_ours(str(failure)) or self._restarts == RESTARTS_MAX:
            raise error
        self._restarts += 1
        _log.warning("query_restarted", query=self.name, reason=str(error), time=self._restarts)
        self._query = self._start()

    def count(self) -> None:
        """Add up the batches that were completed since the last time."""
        self._counted_at = time.monotonic()
        for each in self._query.recentProgress:
            if each["numInputRows"] and each["batchId"] > self._last_batch:
                self._last_batch = each["batchId"]
                self.batches += 1
                self.rows += each["numInputRows"]

    def stop(self) -> None:
        """Stop it; `batches` and `rows` are then complete."""
        self._query.stop()
        self.count()
