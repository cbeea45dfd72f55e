"""`Fetcher`: gets bytes of chunks from a provider, checked, few requests at a time.

    part        at most 4 MB of a chunk's data, the unit of sequential reads; the last one comes
                with the footer, so that a chunk read as a whole costs no extra request
    block       64 KiB, the unit of checksums and of single records

A stream (`chunk_stream.py`) has at most `window` requests in flight, 8 × 4 MB, and less in
memory, whatever its reader does. Parts and footers that pages need are cached.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.codec.select import IS_NATIVE, core
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.tiered.chunk.chunk import BLOCK_SIZE, ChunkEntry, Footer, read_footer
from penstock.tiered.maintenance.damage import DamageReports
from penstock.tiered.object_names import MANIFEST
from penstock.tiered.providers.contract import (
    Blocks,
    TierProvider,
    get_range_into,
    get_range_summed,
    path_of,
)
from penstock.tiered.read.async_reads import AsyncReads
from penstock.tiered.read.block_cache import BlockCache
from penstock.tiered.read.chunk_stream import ChunkStream, FetchedChunk, GetBuffer, Span, buffers_of
from penstock.tiered.read.disk_cache import DiskCache
from penstock.tiered.read.file_stream import FileRequests, FileStream
from penstock.tiered.read.part_buffers import SpareBuffers


class FetchSettings(Struct, frozen=True, kw_only=True):
    part_size: int = 4 << 20
    window: int = 8
    cache_size: int = 64 << 20
    footer_cache_size: int = 32 << 20
    small_read_size: int = 256 << 10
    """Reads of at most this many bytes get the blocks that they need, not a whole part."""
    disk_cache_path: str = ""
    """A directory of this process's own for parts that were read; empty: none."""
    disk_cache_size: int = 0


class FetchedRange(NamedTuple):
    """Some of a chunk's data, and the position in the tiered log at which it begins."""

    data: bytes
    position: int


class Fetcher:
    def __init__(
        self,
        provider: TierProvider,
        settings: FetchSettings | None = None,
        damage: DamageReports | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.provider: Final = provider
        self.damage: Final = damage or DamageReports()
        """Where readers report damage."""
        self.settings: Final = settings or FetchSettings()
        self.requests = 0
        self._parts: Final[BlockCache[bytes]] = BlockCache(self.settings.cache_size, len)
        self._footers: Final[BlockCache[Footer]] = BlockCache(
            self.settings.footer_cache_size, lambda footer: footer.memory_size
        )
        self._disk: Final = _disk_cache(self.settings, disk)
        self._spare: Final = SpareBuffers(buffers_of(self.settings.window))
        self._lock: Final = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self.reads: Final = AsyncReads(self.settings.window)
        """For callers that must not wait. Other threads than those that read ahead, for which a
        read may wait."""

    # Single ranges

    def footer(self, prefix: str, entry: ChunkEntry) -> Footer:
        """Return the footer of a chunk, which stays in the cache."""
        key = prefix + entry.name
        return self._footers.get(key, lambda: self._load_footer(key, entry))

    def _load_footer(self, key: str, entry: ChunkEntry) -> Footer:
        tail = self._get(key, entry.data_size, entry.footer_size)
        return self._checked_footer(key, entry, tail)

    def _checked_footer(self, key: str, entry: ChunkEntry, tail: bytes | memoryview) -> Footer:
        footer, listed = read_footer(self._name(key), tail)
        known = (entry.first_offset, entry.end_offset, entry.position, entry.data_size)
        if (
            listed.first_offset,
            listed.end_offset,
            listed.position,
            listed.data_size,
        ) != known:
            raise CorruptionError(
                self._name(key),
                position=entry.data_size,
                reason="its footer is not that of the listed chunk",
            )
        return footer

    def read(self, prefix: str, entry: ChunkEntry, start: int, end: int) -> FetchedRange:
        """Return at least the bytes [start, end) of the tiered log, all of one chunk."""
        key = prefix + entry.name
        first, last = start - entry.position, end - entry.position
        assert 0 <= first < last <= entry.data_size, "a unit points out of its chunk"
        bounds = self._part_bounds(entry)
        part = max(n for n, (begin, _) in enumerate(bounds) if begin <= first)
        begin, stop = bounds[part]
        if last <= stop:
            cached = self._parts.peek((key, part))
            if cached is not None:
                return FetchedRange(cached, entry.position + begin)
            if last - first > self.settings.small_read_size:
                try:
                    data = self._parts.get((key, part), lambda: self._load_part(key, entry, part))
                    return FetchedRange(data, entry.position + begin)
                except CorruptionError:
                    # Some block of the part is damaged, perhaps none that is asked for.
                    return self._read_blocks(prefix, entry, first, last)
        return self._read_blocks(prefix, entry, first, last)

    def _read_blocks(self, prefix: str, entry: ChunkEntry, first: int, last: int) -> FetchedRange:
        key = prefix + entry.name
        begin = first // BLOCK_SIZE * BLOCK_SIZE
        end = min(entry.data_size, -(-last // BLOCK_SIZE) * BLOCK_SIZE)

        def load() -> bytes:
            footer = self.footer(prefix, entry)
            data = self._get(key, begin, end - begin)
            footer.check_blocks(self._name(key), begin // BLOCK_SIZE, data)
            return data

        return FetchedRange(self._parts.get((key, begin, end), load), entry.position + begin)

    def read_ahead(self, prefix: str, entries: Iterable[ChunkEntry]) -> None:
        """Begin to fetch parts that a sequential reader will ask for, a window of them at most."""
        left = self.settings.window // 2
        for entry in entries:
            key = prefix + entry.name
            for part in range(len(self._part_bounds(entry))):
                if left == 0:
                    return
                left -= 1
                self._parts.start(
                    (key, part),
                    lambda key=key, entry=entry, part=part: self._load_part(key, entry, part),  # type: ignore[misc]  # bound now
                    self._pool(),
                )

    def _load_part(self, key: str, entry: ChunkEntry, part: int) -> bytes:
        begin, end = self._part_bounds(entry)[part]
        if end == entry.data_size and self._footers.peek(key) is None:
            data = self._get(key, begin, entry.size - begin)
            tail = data[end - begin :]
            footer = self._footers.get(key, lambda: self._checked_footer(key, entry, tail))
            data = data[: end - begin]
        else:
            footer = self._footers.get(key, lambda: self._load_footer(key, entry))
            cached = self._from_disk(key, footer, begin, end - begin)
            if cached is not None:
                return cached
            data = self._get(key, begin, end - begin)
        footer.check_blocks(self._name(key), begin // BLOCK_SIZE, data)
        if self._disk is not None:
            self._disk.put(key, begin, data)
        return data

    def _from_disk(self, key: str, footer: Footer, begin: int, size: int) -> bytes | None:
        """Return a part that was read before, if the disk has it undamaged."""
        cached = None if self._disk is None else self._disk.get(key, begin, size)
        if cached is None or self._disk is None:
            return None
        try:
            footer.check_blocks(self._name(key), begin // BLOCK_SIZE, cached)
        except CorruptionError:
            self._disk.drop(key, begin, size)
            return None
        return cached

    # Streams

    def stream(self, prefix: str, entries: Iterable[ChunkEntry]) -> Iterator[FetchedChunk]:
        """Yield whole chunks in order, and prefetch the next. Nothing of them is kept
        here: what streams by would only drive out what others come back to."""
        if IS_NATIVE and path_of(self.provider, prefix + MANIFEST) is not None:
            return self._file_stream(prefix, entries).chunks()
        spans = (span for entry in entries for span in self.spans(entry))

        def get(span: Span, get_buffer: GetBuffer) -> bytes | None:
            if span.is_whole:
                return self._get_summed(prefix + span.entry.name, span.entry, get_buffer)
            self._count()
            key = prefix + span.entry.name
            get_range_into(self.provider, key, span.begin, span.end - span.begin, get_buffer)
            return None

        check = partial(self._check, prefix)
        return ChunkStream(spans, self.settings.window, get, check, self._spare).chunks()

    def _file_stream(self, prefix: str, entries: Iterable[ChunkEntry]) -> FileStream:
        def path(entry: ChunkEntry) -> str:
            self._count()
            file = path_of(self.provider, prefix + entry.name)
            assert file is not None, "what is a directory stays one"
            return file

        def get(entry: ChunkEntry, whole: memoryview) -> bytes:
            return self._get_summed(prefix + entry.name, entry, lambda: whole)

        def parts(entry: ChunkEntry) -> int:
            return self._parts_of(entry.size)

        requests = FileRequests(path, parts, get, partial(self._check, prefix))
        return FileStream(entries, requests, self._spare)

    def _get_summed(self, key: str, entry: ChunkEntry, get_buffer: GetBuffer) -> bytes:
        self._count()
        blocks = Blocks(entry.data_size, BLOCK_SIZE)
        return get_range_summed(self.provider, key, 0, entry.size, get_buffer, blocks)

    def _check(
        self, prefix: str, entry: ChunkEntry, whole: memoryview, sums: bytes | None
    ) -> Footer:
        key = prefix + entry.name
        footer = self._checked_footer(key, entry, whole[entry.data_size :])
        if sums is None:
            sums = core.block_checksums(whole[: entry.data_size], BLOCK_SIZE)
        footer.check_sums(self._name(key), 0, sums)
        return footer

    def spans(self, entry: ChunkEntry) -> list[Span]:
        """Return the requests that get a whole object, of about the size of a part each."""
        size = -(-entry.size // self._parts_of(entry.size))
        begins = range(0, entry.size, size)
        return [Span(entry, begin, min(begin + size, entry.size)) for begin in begins]

    def _parts_of(self, size: int) -> int:
        """Return in how many parts so many bytes come: one may be a quarter larger than others."""
        return max(1, -(-size * 4 // (self.settings.part_size * 5)))

    def _part_bounds(self, entry: ChunkEntry) -> list[tuple[int, int]]:
        blocks = -(-entry.data_size // BLOCK_SIZE)
        size = -(-blocks // self._parts_of(entry.data_size)) * BLOCK_SIZE
        end = entry.data_size
        return [(begin, min(begin + size, end)) for begin in range(0, end, size)] or [(0, 0)]

    def _get(self, key: str, start: int, size: int) -> bytes:
        self._count()
        return self.provider.get_range(key, start, size)

    def _count(self) -> None:
        with self._lock:
            self.requests += 1

    def _name(self, key: str) -> str:
        return f"{self.provider.url.rstrip('/')}/{key}"

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self.settings.window, thread_name_prefix="penstock-fetch"
                )
            return self._executor

    def close(self) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        self.reads.close()
        self._spare.pop_all()
        if self._disk is not None:
            self._disk.close()


def _disk_cache(settings: FetchSettings, disk: Disk | None) -> DiskCache | None:
    if not settings.disk_cache_path or settings.disk_cache_size <= 0:
        return None
    return DiskCache(settings.disk_cache_path, settings.disk_cache_size, disk or LocalDisk())
