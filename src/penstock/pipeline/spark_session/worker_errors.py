"""Hides the traceback of `StoreError` in Spark's error messages.

Spark copies the traceback of a Python worker into its own message. Our errors say what is wrong and
what to do without the frames, so the worker, which ends with the error, drops them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from penstock.errors import StoreError

_Arguments = ParamSpec("_Arguments")
_T = TypeVar("_T")

HIDE: Final = "SPARK_HIDE_TRACEBACK"


def hide_traceback(call: Callable[_Arguments, _T]) -> Callable[_Arguments, _T]:
    """Wrap a method that Spark calls in a worker."""

    @wraps(call)
    def work(*positional: _Arguments.args, **named: _Arguments.kwargs) -> _T:
        try:
            return call(*positional, **named)
        except StoreError:
            os.environ[HIDE] = "1"
            raise

    return work


def hide_traceback_in_rows(
    call: Callable[_Arguments, Iterator[_T]],
) -> Callable[_Arguments, Iterator[_T]]:
    """Wrap a method that returns an iterator to Spark."""

    @wraps(call)
    def work(*positional: _Arguments.args, **named: _Arguments.kwargs) -> Iterator[_T]:
        try:
            yield from call(*positional, **named)
        except StoreError:
            os.environ[HIDE] = "1"
            raise

    return work
