"""How far compressed batches are inflated, and where.

A batch of a few bytes can hold gigabytes. Bounds, from the smallest:

    quick       on the event loop: what an ordinary batch needs, and no more
    batch       in a thread of a small pool: `kafka.batch_inflated_size_max`, or less for a batch
                that grows more than `RATIO_MAX` times
    request     all batches of a request together, so that many small ones do no more harm

The pool has few threads and takes batches of all connections in turn; a batch that passes the
quick check never waits for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

QUICK_SIZE_MIN: Final = 64 << 10
QUICK_SIZE_MAX: Final = 1 << 20
SLOW_QUICK_SIZE_MAX: Final = 256 << 10
SLOW_CODECS: Final = frozenset({1, 4})
"""gzip and zstd take several times as long as snappy and lz4 for the same bytes."""
QUICK_RATIO: Final = 8
"""Ordinary content is compressed less than that; what grows more is checked in the pool."""
SMALL_SIZE: Final = 16 << 20
"""What every batch may grow to, however small it is: a record of many equal bytes is legal."""
RATIO_MAX: Final = 256
REQUEST_SIZE_MIN: Final = 64 << 20
REQUEST_RATIO: Final = 32
STEP_SIZE: Final = 16 << 20
"""Bytes that the pool inflates for one connection before it serves the next."""
THREADS_MIN: Final = 2
THREADS_MAX: Final = 4


def quick_limit(size: int, codec: int) -> int:
    """Return how many bytes of a batch of `size` are inflated on the event loop."""
    limit = SLOW_QUICK_SIZE_MAX if codec in SLOW_CODECS else QUICK_SIZE_MAX
    return min(max(QUICK_SIZE_MIN, QUICK_RATIO * size), limit)


def batch_limit(size: int, inflated_size_max: int) -> int:
    """Return how many bytes the records of a batch of `size` may have."""
    return min(max(SMALL_SIZE, RATIO_MAX * size), inflated_size_max)


def request_limit(size: int, inflated_size_max: int) -> int:
    """Return how many bytes all batches of a request may have that are not checked quickly."""
    return max(REQUEST_SIZE_MIN, inflated_size_max, REQUEST_RATIO * size)


class InflationPool:
    """The threads in which batches are inflated that take longer. Each connection has at most one
    call here, so connections bound what waits."""

    def __init__(self) -> None:
        threads = min(THREADS_MAX, max(THREADS_MIN, (os.cpu_count() or 1) // 2))
        self._executor: Final = ThreadPoolExecutor(threads, thread_name_prefix="penstock-inflate")

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def close(self) -> None:
        """Drop waiting batches; running ones are bounded and end soon."""
        self._executor.shutdown(wait=False, cancel_futures=True)
