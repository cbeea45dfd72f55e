"""Footers, bytes and lists of the chunks of one shard, with errors that say which offsets they
concern.

An object that is missing or damaged may have been replaced meanwhile: the manifest is read anew
before it is called damage. When that no longer names the object, `OldManifestError` lets the reader
begin again. Damage that remains is noted (`damage.py`) and raised as `TierDamageError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import (
    CorruptionError,
    StaleReadError,
    TierDamageError,
    TierObjectMissingError,
)
from penstock.tiered.chunk.chunk import ChunkEntry, Footer
from penstock.tiered.chunk.manifest import Manifest, SegmentEntry
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.providers.contract import ObjectMissingError
from penstock.tiered.read.chunk_stream import FetchedChunk
from penstock.tiered.read.fetcher import FetchedRange, Fetcher

FAILURES: Final = (CorruptionError, ObjectMissingError)
"""What an object that is not as it was written raises below this module."""


class OldManifestError(StaleReadError):
    """The tier was changed while it was read; it is known by now what it holds."""


class ChunkAccess:
    def __init__(self, manifest: ShardManifest, fetcher: Fetcher) -> None:
        self._manifest: Final = manifest
        self._fetcher: Final = fetcher

    # Lists

    def chunks_from(
        self, offset: int, manifest: Manifest, since_ms: int | None = None
    ) -> Iterator[ChunkEntry]:
        """Yield the chunks that end after `offset`, ascending; those whose records are all older
        than `since_ms` are left out, and the lists of such segments are not read."""

        def is_chosen(part: ChunkEntry | SegmentEntry) -> bool:
            return part.end_offset > offset and (since_ms is None or part.max_ms >= since_ms)

        for segment in filter(is_chosen, manifest.segments):
            yield from filter(is_chosen, self.chunks_of(segment))
        yield from filter(is_chosen, manifest.chunks)

    def chunks_back(self, manifest: Manifest) -> Iterator[ChunkEntry]:
        """Yield all chunks, the newest first."""
        yield from reversed(manifest.chunks)
        for segment in reversed(manifest.segments):
            yield from reversed(self.chunks_of(segment))

    def chunks_of(self, segment: SegmentEntry) -> tuple[ChunkEntry, ...]:
        with self._telling(segment, segment.first_offset, segment.end_offset):
            return self._manifest.chunks_of(segment)

    # Bytes

    def footer(self, entry: ChunkEntry) -> Footer:
        with self._telling(entry, entry.first_offset, entry.end_offset):
            return self._fetcher.footer(self._manifest.prefix, entry)

    def fetch(
        self, entry: ChunkEntry, start: int, end: int, offsets: tuple[int, int]
    ) -> FetchedRange:
        """Return at least the bytes [start, end) of the tiered log, which hold the records of
        `offsets` [first, end) and are in one chunk."""
        with self._telling(entry, *offsets):
            return self._fetcher.read(self._manifest.prefix, entry, start, end)

    def stream(self, entries: Iterable[ChunkEntry]) -> Iterator[FetchedChunk]:
        """Yield whole chunks in order, while the next are on their way."""
        asked: deque[ChunkEntry] = deque()

        def noted() -> Iterator[ChunkEntry]:
            for entry in entries:
                asked.append(entry)
                yield entry

        chunks = self._fetcher.stream(self._manifest.prefix, noted())
        while True:
            try:
                chunk = next(chunks, None)
            except TierDamageError:
                raise
            except FAILURES as error:
                if not asked:
                    raise
                entry = asked[0]
                raise self.damaged(entry, error, entry.first_offset, entry.end_offset) from error
            if chunk is None:
                return
            yield chunk
            asked.popleft()

    # Damage

    @contextmanager
    def _telling(
        self, entry: ChunkEntry | SegmentEntry, first_offset: int, end_offset: int
    ) -> Iterator[None]:
        try:
            yield
        except TierDamageError:
            raise
        except FAILURES as error:
            raise self.damaged(entry, error, first_offset, end_offset) from error

    def damaged(
        self,
        entry: ChunkEntry | SegmentEntry,
        error: CorruptionError | ObjectMissingError,
        first_offset: int,
        end_offset: int,
        *,
        by_reader: bool = True,
    ) -> TierDamageError:
        """Return what to raise for an object that failed; `OldManifestError` is raised when
        nothing refers to it any more."""
        name = f"{self._fetcher.provider.url.rstrip('/')}/{self._manifest.prefix}{entry.name}"
        if not self._is_named(entry):
            self._fetcher.damage.forget(name)
            raise OldManifestError(
                f"{self._manifest.shard.name!r} was compacted or repaired while it was read; "
                "read again"
            ) from error
        if isinstance(error, CorruptionError):
            found = TierDamageError(
                name,
                shard=self._manifest.shard.name,
                first_offset=first_offset,
                end_offset=end_offset,
                position=error.position,
                reason=error.reason,
            )
        else:
            found = TierObjectMissingError(
                name,
                shard=self._manifest.shard.name,
                first_offset=first_offset,
                end_offset=end_offset,
                position=0,
                reason="the object is missing, although the manifest names it",
            )
        self._fetcher.damage.note(found, by_reader=by_reader)
        return found

    def _is_named(self, entry: ChunkEntry | SegmentEntry) -> bool:
        """Say whether the manifest, read anew, still names an object."""
        found = self._manifest.load()
        if found is None or found.destroyed_ms is not None:
            return False
        if isinstance(entry, SegmentEntry):
            return any(segment.name == entry.name for segment in found.segments)
        for segment in found.segments:
            if segment.first_offset <= entry.first_offset < segment.end_offset:
                try:
                    chunks = self._manifest.chunks_of(segment)
                except FAILURES:
                    return True
                return any(chunk.name == entry.name for chunk in chunks)
        return any(chunk.name == entry.name for chunk in found.chunks)
