"""Spares Spark's Python workers a walk through everything that they have loaded."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_frozen = False


def freeze_loaded_objects() -> None:
    """Take all that is loaded by now out of the garbage collection of this worker, once.

    Spark has a worker collect after every task. That walks through every object of every module,
    a tenth of a second, for nothing: what is loaded stays for as long as the worker lives.
    """
    global _is_frozen  # noqa: PLW0603 - one for the process, as its collector is
    if not _is_frozen and TaskContext.get() is not None:
        _is_frozen = True
        gc.collect()
        gc.freeze()
