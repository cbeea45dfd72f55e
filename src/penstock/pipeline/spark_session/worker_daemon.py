"""The process that Spark's Python workers are forked from, with everything loaded.

Spark's own daemon loads nothing before it forks, since what it would load starts threads: every
worker, and every short process that plans a query, then loads pyarrow and this package by itself,
half a second each, all at the same time when a query begins. `worker_python` keeps libraries from
starting threads, and has the daemon load them once. Forked workers share that memory, and their
garbage collector does not walk through it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final, ParamSpec

_Arguments = ParamSpec("_Arguments")

_NEEDED: Final = (
    "pyarrow.compute",
    "penstock.codec.select",
    "penstock.pipeline.source",
    "penstock.pipeline.sink",
    "penstock.pipeline.jobs.spark_work",
)
_TASKS: Final = "pyspark.worker"
_PLANNERS: Final = "pyspark.sql.worker."


def main() -> None:
    """Load what a worker needs, then do what Spark's daemon does."""
    from pyspark import daemon

    preload(sys.argv[1] if len(sys.argv) > 1 else _TASKS)
    vars(daemon)["worker"] = ignore_broken_pipe(daemon.worker)
    daemon.manager()


def ignore_broken_pipe(worker: Callable[_Arguments, int]) -> Callable[_Arguments, int]:
    """Wrap a worker so that it ends without a traceback when Spark has closed its socket. Spark
    closes the sockets of workers it no longer needs, and Unix sockets report that immediately."""

    def work(*positional: _Arguments.args, **named: _Arguments.kwargs) -> int:
        try:
            return worker(*positional, **named)
        except BrokenPipeError:
            return 1

    return work


def preload(worker: str) -> None:
    """Load the module that the workers run, and what it will want."""
    if worker == _TASKS or worker.startswith(_PLANNERS):
        for name in (worker, *_NEEDED):
            try:
                import_module(name)
            except ImportError:  # the worker itself says what it lacks
                break
        os.register_at_fork(after_in_child=_reseed_numpy)
        gc.collect()
        gc.freeze()


def _reseed_numpy() -> None:
    """Let a worker's numpy draw other numbers than those of its siblings."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
