"""Whole chunks of a tier that is a directory, in order, while the next are read.

What bounds such a stream is the processor: a copy out of the page cache and the checksums. So two
threads share each file's pieces, one of them the reader's own and neither with the interpreter, and
buffers are few: what is read again and again into the same memory stays in the processor's cache.

    in memory   the chunk that its reader has, and the next one

The provider gets a file that cannot be read this way: it tries again and reports what is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.tiered.chunk.chunk import BLOCK_SIZE, ChunkEntry
from penstock.tiered.read.chunk_stream import Check, FetchedChunk, Upcoming
from penstock.tiered.read.part_buffers import PartBuffers, SpareBuffers

if TYPE_CHECKING:
    from penstock._native import ReadAhead

_BUFFERS: Final = 2


class FileRequests(NamedTuple):
    """How a stream gets at its chunks."""

    path: Callable[[ChunkEntry], str]
    parts: Callable[[ChunkEntry], int]
    """As how many buffers a chunk counts."""
    get: Callable[[ChunkEntry, memoryview], bytes]
    """Fills a buffer with a whole chunk by asking the provider; returns the sums of its blocks."""
    check: Check


class _Pending(NamedTuple):
    entry: ChunkEntry
    whole: memoryview
    parts: int


class FileStream:
    def __init__(
        self,
        entries: Iterable[ChunkEntry],
        requests: FileRequests,
        spare: SpareBuffers | None = None,
    ) -> None:
        self._entries: Final = Upcoming(entries)
        self._requests: Final = requests
        self._buffers: Final = PartBuffers(_BUFFERS, spare)
        self._pending: Final[deque[_Pending]] = deque()
        self._parts = 0

    def chunks(self) -> Generator[FetchedChunk, None, None]:
        from penstock._native import ReadAhead

        ahead = ReadAhead(BLOCK_SIZE)
        try:
            self._fill(ahead)
            while self._pending:
                pending = self._pending.popleft()
                sums = self._wait_for(ahead, pending)
                footer = self._requests.check(pending.entry, pending.whole, sums)
                chunk = FetchedChunk(pending.entry, footer, pending.whole.toreadonly())
                yield chunk
                chunk.release()
                self._buffers.give_back(pending.whole, pending.parts)
                self._fill(ahead)
            self._entries.raise_failure()
        finally:
            ahead.close()
            self._buffers.close()

    def _fill(self, ahead: ReadAhead) -> None:
        """Ask for as many as there is memory for."""
        while (entry := self._entries.peek()) is not None:
            whole = self._buffers.try_acquire(self._parts, entry.size)
            if whole is None:
                return
            ahead.ask(self._requests.path(entry), whole, entry.data_size)
            parts = self._requests.parts(entry)
            self._pending.append(_Pending(entry, whole, parts))
            self._parts += parts
            self._entries.drop()

    def _wait_for(self, ahead: ReadAhead, pending: _Pending) -> bytes:
        try:
            filled, sums = ahead.wait()
        except OSError:
            filled, sums = -1, b""
        if filled == pending.entry.size:
            return sums
        return self._requests.get(pending.entry, pending.whole)
