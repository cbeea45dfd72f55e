"""Verifies what a tier holds: every block, every unit, every record; a slice at a time.

A full check of a shard also looks at the chain of chunks: offsets ascend without overlap, positions
follow on each other, and every object that the manifest names is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import CorruptionError, NotSupportedError
from penstock.record import ShardId
from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.chunk.chunk_access import OldManifestError
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.providers.contract import ObjectMissingError
from penstock.tiered.shard_tiers import ShardTiers

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile


class ScrubReport(Struct):
    """What a check found."""

    shards: int = 0
    chunks: int = 0
    records: int = 0
    size: int = 0
    damage: list[str] = []


def verify_shard(
    flat: CompositeFlatFile,
    report: ScrubReport,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Check all of a shard's tier; what is wrong is added to the report."""
    report.shards += 1
    manifest = flat.refresh()
    if manifest is None:
        return
    end = position = None
    for entry in _chunks(flat, report):
        if end is not None and entry.first_offset < end:
            report.damage.append(f"{_name(flat, entry)}: its offsets overlap the chunk before")
        if position is not None and entry.position < position:
            report.damage.append(f"{_name(flat, entry)}: its position overlaps the chunk before")
        end, position = entry.end_offset, entry.position + entry.data_size
        verify_chunk(flat, entry, report)
        if progress is not None:
            progress(entry.size)
    if end is not None and end > manifest.end_offset:
        report.damage.append(f"{flat.manifest.key}: chunks reach past the end of the manifest")


def _chunks(flat: CompositeFlatFile, report: ScrubReport) -> Iterator[ChunkEntry]:
    try:
        yield from flat.manifest.chunks_from(-1)
    except (CorruptionError, ObjectMissingError) as error:
        report.damage.append(str(error))


def verify_chunk(
    flat: CompositeFlatFile, entry: ChunkEntry, report: ScrubReport
) -> CorruptionError | ObjectMissingError | None:
    """Read a chunk whole, past all caches, and check every record in it; return what is wrong
    with its bytes."""
    failure: CorruptionError | ObjectMissingError | None = None
    try:
        for chunk in flat.fetcher.stream(flat.manifest.prefix, [entry]):
            report.records += len(flat.reader.records_of(chunk))
    except (CorruptionError, ObjectMissingError) as error:
        failure = error
        report.damage.append(str(error))
    except NotSupportedError as error:
        report.damage.append(str(error))
    report.chunks += 1
    report.size += entry.size
    return failure


def _name(flat: CompositeFlatFile, entry: ChunkEntry) -> str:
    return f"{flat.manifest.prefix}{entry.name}"


class Scrubber:
    """Goes round and round over a node's tiers, `slice_size` bytes at each step."""

    def __init__(self, tiers: ShardTiers, metrics: TierMetrics, slice_size: int) -> None:
        self._tiers: Final = tiers
        self._metrics: Final = metrics
        self._slice_size: Final = slice_size
        self._shard: ShardId | None = None
        self._offset = 0

    def step(self) -> ScrubReport:
        """Verify the next slice; damage is counted and logged."""
        report = ScrubReport()
        shards = self._tiers.shards()
        if not shards or self._slice_size <= 0:
            return report
        later = [shard for shard in shards if self._shard is None or shard >= self._shard]
        for shard, following in pairwise([*(later or shards), None]):
            assert shard is not None
            if shard != self._shard:
                self._shard, self._offset = shard, 0
            try:
                if self._step_shard(shard, report):
                    return report
            except Exception:
                # The next step continues after it: later chunks must be verified, too.
                self._shard, self._offset = following, 0
                raise
        self._shard, self._offset = None, 0
        return report

    def _step_shard(self, shard: ShardId, report: ScrubReport) -> bool:
        """Return whether the slice is used up."""
        flat = self._tiers.flat(shard)
        manifest = None if flat is None else flat.current()
        if flat is None or manifest is None:
            return False
        for entry in flat.reader.chunks.chunks_from(self._offset, manifest):
            failure = verify_chunk(flat, entry, report)
            self._metrics.scrubbed_bytes.inc(entry.size)
            if failure is not None:
                _report_damage(flat, entry, failure)
            self._offset = entry.end_offset
            if report.size >= self._slice_size:
                return True
        return False


def _report_damage(
    flat: CompositeFlatFile, entry: ChunkEntry, failure: CorruptionError | ObjectMissingError
) -> None:
    """Count and log damage, unless nothing refers to the chunk any more."""
    with suppress(OldManifestError):
        flat.reader.chunks.damaged(
            entry, failure, entry.first_offset, entry.end_offset, by_reader=False
        )
