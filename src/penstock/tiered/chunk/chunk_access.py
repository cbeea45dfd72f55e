"""Footers, bytes and lists of the chunks of one shard, with errors that say which offsets they
concern.

An object that is missing or damaged may have been replaced meanwhile: the manifest is read anew
before it is called damage. When that no longer names the object, `OldManifestError` lets the reader
begin again. Damage that remains is reported (`damage.py`) and raised as `TierDamageError`.
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
from penstock.tiered.chunk.manifest import Manifest, SegmentEntry, chunks_from
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
        return chunks_from(manifest, offset, self.chunks_of, since_ms)

    def chunks_back(self, manifest: Manifest) -> Iterator[ChunkEntry]:
        """Yield all chunks, the newest first."""
        yield from reversed(manifest.chunks)
        for segment in reversed(manifest.segments):
            yield from reversed(self.chunks_of(segment))

    def chunks_of(self, segment: SegmentEntry) -> tuple[ChunkEntry, ...]:
        with self._damage_reported(segment, segment.first_offset, segment.end_offset):
            return self._manifest.chunks_of(segment)

    # Bytes

    def footer(self, entry: ChunkEntry) -> Footer:
        with self._damage_reported(entry, entry.first_offset, entry.end_offset):
            return self._fetcher.footer(self._manifest.prefix, entry)

    def fetch(
        self, entry: ChunkEntry, start: int, end: int, offsets: tuple[int, int]
    ) -> FetchedRange:
        """Return at least the bytes [start, end) of the tiered log, which hold the records of
        `offsets` [first, end) and are in one chunk."""
        with self._damage_reported(entry, *offsets):
            return self._fetcher.read(self._manifest.prefix, entry, start, end)

    def stream(self, entries: Iterable[ChunkEntry]) -> Iterator[FetchedChunk]:
        """Yield whole chunks in order; the next ones are prefetched."""
        requested: deque[ChunkEntry] = deque()

        def remembered() -> Iterator[ChunkEntry]:
            for entry in entries:
                requested.append(entry)
                yield entry

        chunks = self._fetcher.stream(self._manifest.prefix, remembered())
        while True:
            try:
                chunk = next(chunks, None)
            except TierDamageError:
                raise
            except FAILURES as error:
                if not requested:
                    raise
                entry = requested[0]
                raise self.damaged(entry, error, entry.first_offset, entry.end_offset) from error
            if chunk is None:
                return
            yield chunk
            requested.popleft()

    # Damage

    @contextmanager
    def _damage_reported(
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
            self._fetcher.damage.clear(name)
            raise OldManifestError(
                f"{self._manifest.shard.name!r} was compacted or repaired while it was read; "
                "read again"
            ) from error
        if isinstance(error, CorruptionError):
            kind, position, reason = TierDamageError, error.position, error.reason
        else:
            kind, position = TierObjectMissingError, 0
            reason = "the object is missing, although the manifest names it"
        failure = kind(
            name,
            shard=self._manifest.shard.name,
            first_offset=first_offset,
            end_offset=end_offset,
            position=position,
            reason=reason,
        )
        self._fetcher.damage.report(failure, by_reader=by_reader)
        return failure

    def _is_named(self, entry: ChunkEntry | SegmentEntry) -> bool:
        """Say whether the manifest, read anew, still names an object."""
        current = self._manifest.load()
        if current is None or current.destroyed_ms is not None:
            return False
        if isinstance(entry, SegmentEntry):
            return any(segment.name == entry.name for segment in current.segments)
        for segment in current.segments:
            if segment.first_offset <= entry.first_offset < segment.end_offset:
                try:
                    chunks = self._manifest.chunks_of(segment)
                except FAILURES:
                    return True
                return any(chunk.name == entry.name for chunk in chunks)
        return any(chunk.name == entry.name for chunk in current.chunks)
