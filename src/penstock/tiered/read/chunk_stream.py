"""Whole chunks of a tier in order; the next ones are prefetched.

    in flight   at most `window` requests of about 4 MB each, across chunks
    in memory   fewer than half as many; what has come counts until its reader asks for the next

A tier that is far away gets the whole window: all of it is latency. A near one, such as files in
the page cache, gets little of it: idle answers only take memory, which costs more when it is first
touched than the copy into it does. There the reader's own thread and one helper take requests from
one queue: a thread that must be woken costs as much as a copy, so neither waits for the other while
there is anything to get.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.errors import BadRequestError
from penstock.platform.clock import SystemClock
from penstock.tiered.chunk.chunk import ChunkEntry, Footer
from penstock.tiered.read.part_buffers import PartBuffers, SpareBuffers

_WINDOW_MIN: Final = 2
_PREPARED_MAX: Final = 8 << 20
_LATENCIES: Final = 4
_AT_ONCE_S: Final = 0.003


class FetchedChunk:
    """A whole chunk: its data is a log file whose base is the chunk's position.

    It belongs to the reader until that asks for the next one; a reader that needs the bytes for
    longer keeps `data`."""

    __slots__ = ("_data", "entry", "footer")

    def __init__(self, entry: ChunkEntry, footer: Footer, data: memoryview) -> None:
        self.entry: Final = entry
        self.footer: Final = footer
        self._data: memoryview | None = data

    @property
    def data(self) -> memoryview:
        if self._data is None:
            raise BadRequestError(
                f"the buffer of chunk {self.entry.name!r} is in use again: keep `data` before you "
                "ask for the next chunk"
            )
        return self._data

    def release(self) -> None:
        self._data = None


class Span(NamedTuple):
    """One request: the bytes [begin, end) of a chunk's object."""

    entry: ChunkEntry
    begin: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == self.entry.size

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.is_last


GetBuffer = Callable[[], memoryview]
"""Gives the buffer for an answer that has begun; the same one when it is called again."""
Get = Callable[[Span, GetBuffer], bytes | None]
"""Fills a buffer; returns the checksums of its blocks if they were taken on the way."""
Check = Callable[[ChunkEntry, memoryview, bytes | None], Footer]


_Item = TypeVar("_Item")


class Upcoming(Generic[_Item]):
    """What to ask for next. When that fails, the reader gets the error in its place, after the
    chunks before it."""

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items: Final = iter(items)
        self._first: _Item | None = None
        self._failure: Exception | None = None

    def peek(self) -> _Item | None:
        """Return the next one, which stays; None when there is no more."""
        if self._first is None and self._failure is None:
            try:
                self._first = next(self._items, None)
            except Exception as error:  # noqa: BLE001 - see `raise_failure`
                self._failure = error
        return self._first

    def drop(self) -> None:
        self._first = None

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def buffers_of(window: int) -> int:
    """Return how many parts a stream has in memory: connections, their threads and what these
    leave with the allocator take as much again as three, and all of it shall be one window."""
    return max(1, window // 2 - 1)


class _Request(NamedTuple):
    span: Span
    chunk: _Buffer
    done: Future[Footer | None]


class _Buffer:
    """Where a chunk goes: taken when the first of its bytes come."""

    def __init__(self, buffers: PartBuffers, number: int, size: int) -> None:
        self._buffers: Final = buffers
        self._number: Final = number
        self._size: Final = size
        self._lock: Final = threading.Lock()
        self._view: memoryview | None = None
        self.requests = 0

    def whole(self) -> memoryview:
        with self._lock:
            if self._view is None:
                self._view = self._buffers.acquire(self._number, self._size)
            return self._view

    def reserve(self) -> bool:
        """Take it before any byte came, unless that would wait; say whether it is taken."""
        with self._lock:
            if self._view is None:
                self._view = self._buffers.try_acquire(self._number, self._size)
            return self._view is not None

    def give_back(self) -> None:
        self._buffers.give_back(self.whole(), self.requests)


class ChunkStream:
    """Gets the chunks that spans ask for: each whole chunk is checked in the thread that got it,
    and one in several parts when the last of them has come."""

    def __init__(
        self,
        spans: Iterable[Span],
        window: int,
        get: Get,
        check: Check,
        spare: SpareBuffers | None = None,
    ) -> None:
        self._clock: Final = SystemClock()
        self._spans: Final = Upcoming(spans)
        self._window_max: Final = window
        self._get: Final = get
        self._check: Final = check
        # Its own threads: those of a reader that pauses wait for memory. One more for the helper.
        self._pool: Final = ThreadPoolExecutor(window + 1, thread_name_prefix="penstock-stream")
        self._buffers: Final = PartBuffers(buffers_of(window), spare)
        self._window_min: Final = min(window, _WINDOW_MIN)
        self._lock: Final = threading.Lock()
        self._size = self._window_min
        self._is_near = False
        self._there = 0
        self._latencies: Final[deque[float]] = deque(maxlen=_LATENCIES)
        self._latency_s = math.inf
        self._number = 0
        self._under_way = 0
        self._requests: Final[deque[_Request]] = deque()
        self._open: Final[SimpleQueue[_Request | None]] = SimpleQueue()
        """Requests to a near tier that no thread has begun, in order; None ends the helper."""
        self._claimed: _Request | None = None
        """One of these that the reader took for itself, and has not begun for want of memory."""
        self._has_helper = False
        self._filling: _Buffer | None = None
        """That of a chunk of which only the first parts were asked for."""

    def chunks(self) -> Generator[FetchedChunk, None, None]:
        try:
            self._fill()
            while self._requests:
                request = self._requests.popleft()
                footer = self._wait_for(request)
                entry = request.span.entry
                if request.span.is_last:
                    whole = request.chunk.whole()
                    footer = self._check(entry, whole, None) if footer is None else footer
                    chunk = FetchedChunk(entry, footer, whole.toreadonly())
                    yield chunk
                    chunk.release()
                    request.chunk.give_back()
                self._fill()
            self._spans.raise_failure()
        finally:
            self._buffers.close()
            self._open.put(None)
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait_for(self, head: _Request) -> Footer | None:
        """Return what a request brought; while that takes, get ready for more."""
        if head.done.done():
            self._found_there()
            return head.done.result()
        while not head.done.done() and self._get_one(head):
            pass
        if head.done.done():
            return head.done.result()
        self._there = 0
        try:
            return head.done.result(_AT_ONCE_S)
        except TimeoutError:
            if self._latency_s < _AT_ONCE_S:
                return head.done.result()
        self._widen()
        size = head.span.entry.size
        while not head.done.done() and size <= _PREPARED_MAX and self._buffers.prepare(size):
            pass
        return head.done.result()

    def _get_one(self, head: _Request) -> bool:
        """Get what no thread has begun in this thread, if the tier is near; say whether there was
        any. Only this thread gives memory back, so it waits for it only when it is `head`'s turn,
        which has its share for sure."""
        try:
            mine = self._claimed or self._open.get_nowait()
        except Empty:
            return False
        if mine is None:
            return False
        self._claimed = None
        if mine is not head and not (mine.span.is_whole and mine.chunk.reserve()):
            self._claimed = mine
            return False
        self._run(mine)
        return True

    def _help(self) -> None:
        """Get what no thread has begun, until the stream ends."""
        while (request := self._open.get()) is not None:
            self._run(request)

    def _run(self, request: _Request) -> None:
        try:
            request.done.set_result(self._load(request.span, request.chunk))
        except Exception as error:  # noqa: BLE001 - it is raised where the chunk is awaited
            request.done.set_exception(error)

    def _found_there(self) -> None:
        """Answers come in bursts; a reader that never waits through a whole window is slow."""
        self._there += 1
        if self._there > self._window_max and self._size > self._window_min:
            self._there = 0
            self._size -= 1

    def _answered(self, latency_s: float) -> None:
        """An answer began: the least of a few says how far away the tier is, since others wait
        for the processor, too."""
        with self._lock:
            self._latencies.append(latency_s)
            self._latency_s = min(self._latencies)
        is_near = self._latency_s < _AT_ONCE_S
        if is_near and not self._is_near:
            self._is_near = True
            self._size = self._window_min
        elif self._is_near and not is_near:
            self._widen()

    def _widen(self) -> None:
        """The tier is far away: all of the window is latency."""
        self._is_near = False
        self._size = self._window_max
        self._fill()

    def _fill(self) -> None:
        """Ask for more: as many as the window has room for, and half as many again while the
        first of them keeps those after it waiting."""
        with self._lock:
            while self._under_way < self._size and len(self._requests) < self._size * 3 // 2:
                span = self._spans.peek()
                if span is None:
                    return
                self._spans.drop()
                if self._filling is None:
                    self._filling = _Buffer(self._buffers, self._number, span.entry.size)
                chunk = self._filling
                chunk.requests += 1
                self._number += 1
                self._requests.append(self._ask(span, chunk))
                if span.is_last:
                    self._filling = None

    def _ask(self, span: Span, chunk: _Buffer) -> _Request:
        if not self._is_near:
            self._under_way += 1
            return _Request(span, chunk, self._pool.submit(self._load_and_go_on, span, chunk))
        request = _Request(span, chunk, Future())
        self._open.put(request)
        if not self._has_helper:
            self._has_helper = True
            self._pool.submit(self._help)
        return request

    def _load_and_go_on(self, span: Span, chunk: _Buffer) -> Footer | None:
        try:
            return self._load(span, chunk)
        finally:
            with self._lock:
                self._under_way -= 1
            if not self._buffers.closed:
                self._fill()

    def _load(self, span: Span, chunk: _Buffer) -> Footer | None:
        begun = self._clock.monotonic()
        latency: list[float] = []

        def get_buffer() -> memoryview:
            latency.append(self._clock.monotonic() - begun)
            return chunk.whole()[span.begin : span.end]

        sums = self._get(span, get_buffer)
        self._answered(latency[0])
        return self._check(span.entry, chunk.whole(), sums) if span.is_whole else None
