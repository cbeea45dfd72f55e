"""Chunks of one shard that were put, or are in flight, and that its manifest does not list yet.

A power cut or a lost lease leaves them as objects that nothing refers to. They are listed within
half of the grace period: the garbage collector may take older ones for orphans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.codec.format import BATCH_UNIT, QUEUE_UNIT, RawRecord
from penstock.codec.select import core
from penstock.errors import TierUnavailableError
from penstock.platform.clock import Clock
from penstock.record import QueueKind
from penstock.tiered.chunk.chunk import ChunkEntry, ChunkRange, build_chunk, derive_units
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.config import TierConfig
from penstock.tiered.object_names import chunk_name
from penstock.tiered.upload.upload_window import UploadWindow


class StagedChunks:
    def __init__(
        self, manifest: ShardManifest, kind: QueueKind, config: TierConfig, clock: Clock
    ) -> None:
        self._manifest: Final = manifest
        self._kind: Final = kind
        self._clock: Final = clock
        self._late_s: Final = config.grace_ms / 2000
        self._window: Final = UploadWindow(manifest.provider, config.upload_window)
        self._put: Callable[[str, bytes], None] = manifest.provider.put_if_absent
        self._staged: list[tuple[ChunkEntry, float]] = []
        self.next_offset = 0
        """Where the next chunk begins."""

    def __len__(self) -> int:
        return len(self._staged)

    @property
    def end_offset(self) -> int:
        """The offset after the last chunk; 0 without one."""
        return self._staged[-1][0].end_offset if self._staged else 0

    def put(self, position: int, data: bytes, epoch: int, *, is_first: bool) -> None:
        """Put records that start at `position` of the tiered log as a chunk. The first chunk of a
        shard begins with its first record, every other one where the one before ends."""
        raw = core.decode_raw(data, position, position, False)
        assert isinstance(raw, RawRecord), "what was appended is a record"
        shard = self._manifest.shard
        units = derive_units(shard, self._kind, data, position, raw.queue_offset)
        start = raw.queue_offset if is_first else self.next_offset
        end = self._end_of(units, raw.queue_offset)
        where = ChunkRange(start, end, position, epoch, self._clock.now_ms())
        name = chunk_name(epoch, start)
        whole, entry = build_chunk(shard, self._kind, name, data, units, where)
        self._put(f"{self._manifest.prefix}{name}", whole)
        self._staged.append((entry, self._clock.monotonic()))
        self.next_offset = entry.end_offset

    def _end_of(self, units: bytes, first: int) -> int:
        if self._kind is QueueKind.SIMPLE:
            return first + len(units) // QUEUE_UNIT.size
        _, _, _, _, base, count, _, _ = BATCH_UNIT.unpack_from(units, len(units) - BATCH_UNIT.size)
        return int(base) + int(count)

    @contextmanager
    def concurrently(self) -> Iterator[None]:
        """Let `put` return while chunks are in flight, a few at a time; `wait` waits for them
        and raises what failed."""
        self._put = self._window.put
        try:
            yield
        finally:
            self._put = self._manifest.provider.put_if_absent

    def wait(self) -> None:
        self._window.wait()

    def ready(self, until: int) -> list[ChunkEntry]:
        """Return the chunks that end at or below `until`, which the manifest may list; raise
        `TierUnavailableError` when one of them waited too long."""
        chosen = [staged for staged in self._staged if staged[0].end_offset <= until]
        if chosen and self._late_s and self._clock.monotonic() - chosen[0][1] > self._late_s:
            raise TierUnavailableError(
                f"a chunk of {self._manifest.shard.name!r} was not listed within "
                f"{self._late_s:.0f} s and may have been deleted as an orphan; it is uploaded again"
            )
        return [entry for entry, _ in chosen]

    def drop_first(self, count: int) -> None:
        """Drop chunks that the manifest lists now."""
        self._staged = self._staged[count:]

    def reset(self, next_offset: int) -> None:
        """Drop all chunks; the next one begins at `next_offset`."""
        self.abandon()
        self._staged = []
        self.next_offset = next_offset

    def abandon(self) -> None:
        """Wait for the chunks in flight and ignore their outcome."""
        self._window.abandon()
