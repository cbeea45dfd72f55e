"""Excludes loaded modules from the garbage collection of Spark's Python workers."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_frozen = False


def freeze_loaded_objects() -> None:
    """Freeze all loaded objects of this worker, once.

    Spark makes a worker collect garbage after every task, which visits every object of every module
    (a tenth of a second) although modules stay loaded until the worker ends.
    """
    global _is_frozen  # noqa: PLW0603 - one for the process, as its collector is
    if not _is_frozen and TaskContext.get() is not None:
        _is_frozen = True
        gc.collect()
        gc.freeze()
