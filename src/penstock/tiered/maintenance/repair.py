"""Finds what is damaged or missing in a tier, says what can be restored, and restores it.

A damaged chunk is written again, at its old place, from what is sound in it, from an older
generation that was not deleted yet, and from the log of the node that uploaded it. Offsets that are
found nowhere become holes, so that readers go on after them. Nothing is changed without `apply`;
each change is one compare-and-set of the manifest, also beside a node that uploads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.codec.deleted_ranges import coalesce
from penstock.errors import CorruptionError, StoreError
from penstock.record import ShardId
from penstock.tiered.chunk import manifest_changes as changes
from penstock.tiered.chunk.chunk import ChunkEntry, ChunkRange, build_chunk, derive_units
from penstock.tiered.chunk.manifest import Manifest, SegmentEntry, describe_segment
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.repair_sources import (
    LocalLog,
    RecordsByOffset,
    offsets_in,
    other_chunks,
    records_in,
    sound_records,
)
from penstock.tiered.maintenance.scrubber import ScrubReport, verify_chunk
from penstock.tiered.maintenance.upkeep import flat_files_of
from penstock.tiered.object_names import chunk_name
from penstock.tiered.providers.contract import ObjectMissingError
from penstock.tiered.upload.relocate import relocate_record

_Failure = CorruptionError | ObjectMissingError


class Repair(Struct, frozen=True, kw_only=True):
    """One object that is not as it was written. Counts are of offsets."""

    shard: str
    object_name: str
    first_offset: int
    end_offset: int
    is_missing: bool
    reason: str
    sound: int = 0
    """Still in the object."""
    from_generation: int = 0
    """In an older generation that was not deleted yet."""
    from_log: int = 0
    """In the node's log."""
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges [first, end) that are found nowhere."""
    applied: bool = False

    @property
    def lost_count(self) -> int:
        return sum(end - first for first, end in self.lost)


class RepairReport(Struct):
    shards: int = 0
    chunks: int = 0
    repairs: list[Repair] = []
    unreadable: list[str] = []
    """Manifests that cannot be read: nothing of their shards can be repaired."""


def repair_tier(
    config: TierConfig,
    *,
    shard: ShardId | None = None,
    data: str | None = None,
    older: bool = False,
    apply: bool = False,
) -> RepairReport:
    """Check everything; `data` is the directory of the node whose log may still hold records.
    With `older`, records of older generations are used even where it is unknown whether they were
    deleted since."""
    report = RepairReport()
    unreadable: list[StoreError] = []
    local = None if data is None else LocalLog(data)
    try:
        for flat in flat_files_of(config, config.open(), shard, unreadable):
            report.shards += 1
            _ShardRepair(flat, local, report, older=older).run(apply=apply)
    finally:
        if local is not None:
            local.close()
    report.unreadable = [str(error) for error in unreadable]
    return report


class _Planned(Struct):
    repair: Repair
    entry: ChunkEntry
    records: RecordsByOffset


class _ShardRepair:
    def __init__(
        self,
        flat: CompositeFlatFile,
        local: LocalLog | None,
        report: RepairReport,
        *,
        older: bool,
    ) -> None:
        self._older: Final = older
        self._flat: Final = flat
        self._local: Final = local
        self._report: Final = report
        self._others: list[ChunkEntry] | None = None

    def run(self, *, apply: bool) -> None:
        manifest = self._flat.refresh()
        if manifest is None:
            return
        for segment in manifest.segments:
            try:
                chunks = self._flat.manifest.chunks_of(segment)
            except (CorruptionError, ObjectMissingError) as error:
                self._repair_descriptor(manifest, segment, error, apply=apply)
                continue
            planned = self._plan(manifest, chunks)
            done = apply and planned and self._swap_in_segment(segment, chunks, planned)
            self._add_to_report(planned, applied=bool(done))
        for plan in self._plan(manifest, manifest.chunks):
            self._add_to_report([plan], applied=apply and self._swap_open(plan))

    def _add_to_report(self, planned: Iterable[_Planned], *, applied: bool) -> None:
        self._report.repairs += [replace(plan.repair, applied=applied) for plan in planned]

    # Finding

    def _plan(self, manifest: Manifest, chunks: Iterable[ChunkEntry]) -> list[_Planned]:
        planned: list[_Planned] = []
        for entry in chunks:
            self._report.chunks += 1
            failure = verify_chunk(self._flat, entry, ScrubReport())
            if failure is not None:
                planned.append(self._plan_chunk(manifest, entry, failure))
        return planned

    def _plan_chunk(self, manifest: Manifest, entry: ChunkEntry, failure: _Failure) -> _Planned:
        records, footer = sound_records(self._flat, entry)
        expected = None if footer is None else {first for first, _ in offsets_in(footer, entry)}
        sound = _count(records)
        for older in self._generations(manifest, entry, has_footer=footer is not None):
            _add(records, records_in(self._flat, older), entry, expected)
        with_older = _count(records)
        if self._local is not None:
            flat = self._flat
            log = self._local.records(flat.shard, flat.kind, entry.first_offset, entry.end_offset)
            _add(records, log, entry, expected)
        _fit(records, self._room(manifest, entry))
        expected_ranges = (
            [(entry.first_offset, entry.end_offset)]
            if footer is None
            else offsets_in(footer, entry)
        )
        repair = Repair(
            shard=self._flat.shard.name,
            object_name=f"{self._flat.manifest.prefix}{entry.name}",
            first_offset=entry.first_offset,
            end_offset=entry.end_offset,
            is_missing=isinstance(failure, ObjectMissingError),
            reason=str(failure),
            sound=sound,
            from_generation=with_older - sound,
            from_log=_count(records) - with_older,
            lost=self._lost(manifest, expected_ranges, records),
        )
        return _Planned(repair, entry, records)

    def _lost(
        self, manifest: Manifest, ranges: Iterable[tuple[int, int]], records: RecordsByOffset
    ) -> tuple[tuple[int, int], ...]:
        """Return the wanted offsets that are neither found nor deleted."""
        deleted = self._flat.reader.deleted(manifest)
        present = {offset for first, (end, _) in records.items() for offset in range(first, end)}
        singles = (
            (offset, offset + 1)
            for first, end in ranges
            for offset in range(max(first, manifest.start_offset), end)
            if offset not in present and offset not in deleted
        )
        return tuple(coalesce(list(singles)))

    def _generations(
        self, manifest: Manifest, entry: ChunkEntry, *, has_footer: bool
    ) -> Iterator[ChunkEntry]:
        """Yield chunks that held the same offsets. Without its footer, it is unknown which
        records compaction or a deletion had removed from it: older ones would bring them back."""
        if self._others is None:
            self._others = list(other_chunks(self._flat, self._named(manifest)))
        for candidate in self._others:
            if (
                candidate.first_offset < entry.end_offset
                and entry.first_offset < candidate.end_offset
            ):
                is_same = (candidate.data_size, candidate.units) == (entry.data_size, entry.units)
                if self._older or has_footer or is_same:
                    yield candidate

    def _known(self, manifest: Manifest) -> Iterator[ChunkEntry]:
        """Yield the chunks that the manifest names, as far as their lists can be read."""
        for segment in manifest.segments:
            try:
                yield from self._flat.manifest.chunks_of(segment)
            except (CorruptionError, ObjectMissingError):
                continue
        yield from manifest.chunks

    def _named(self, manifest: Manifest) -> set[str]:
        return {chunk.name for chunk in self._known(manifest)}

    def _room(self, manifest: Manifest, entry: ChunkEntry) -> int:
        """Return how many bytes the tiered log has for a chunk, before the next one."""
        later = (
            chunk.position for chunk in self._known(manifest) if chunk.position > entry.position
        )
        segments = (
            segment.position for segment in manifest.segments if segment.position > entry.position
        )
        return min((*later, *segments, manifest.position)) - entry.position

    # Repairing

    def _epoch(self) -> int:
        manifest = self._flat.current()
        assert manifest is not None, "a shard that is repaired has a manifest"
        return manifest.epoch

    def _write(self, planned: _Planned) -> ChunkEntry | None:
        """Put a chunk of what was found; None when nothing was."""
        flat, entry = self._flat, planned.entry
        parts: list[bytes] = []
        position = entry.position
        for first in sorted(planned.records):
            message = planned.records[first][1]
            parts.append(relocate_record(message, position))
            position += len(message)
        if not parts:
            return None
        body, epoch = b"".join(parts), self._epoch()
        first = min(planned.records)
        units = derive_units(flat.shard, flat.kind, body, entry.position, first)
        where = ChunkRange(
            entry.first_offset, entry.end_offset, entry.position, epoch, flat.clock.now_ms()
        )
        name = chunk_name(epoch, entry.first_offset)
        whole, written = build_chunk(flat.shard, flat.kind, name, body, units, where)
        flat.provider.put_if_absent(f"{flat.manifest.prefix}{name}", whole)
        return written

    def _swap_open(self, planned: _Planned) -> bool:
        new, now_ms = self._write(planned), self._flat.clock.now_ms()
        done = False

        def change(manifest: Manifest) -> Manifest | None:
            nonlocal done
            swapped = changes.swap_chunk(manifest, planned.entry, new, now_ms)
            done = swapped is not None
            return None if swapped is None else _with_holes(swapped, planned.repair.lost)

        self._flat.manifest.change(change)
        return done

    def _swap_in_segment(
        self, segment: SegmentEntry, chunks: tuple[ChunkEntry, ...], planned: list[_Planned]
    ) -> bool:
        written = {plan.entry.name: self._write(plan) for plan in planned}
        new = [entry for chunk in chunks if (entry := written.get(chunk.name, chunk)) is not None]
        lost = [hole for plan in planned for hole in plan.repair.lost]
        return self._swap_segment(segment, tuple(new), list(written), lost)

    def _swap_segment(
        self,
        segment: SegmentEntry,
        new: tuple[ChunkEntry, ...],
        replaced: list[str],
        lost: Iterable[tuple[int, int]],
    ) -> bool:
        flat, now_ms = self._flat, self._flat.clock.now_ms()
        described = None
        if new:
            name = flat.upkeep.put_descriptor(self._epoch(), new)
            described = describe_segment(name, new, segment.sealed_ms)
        holes, done = list(lost), False

        def change(manifest: Manifest) -> Manifest | None:
            nonlocal done
            swapped = changes.swap_segment(manifest, segment, described, replaced, now_ms)
            done = swapped is not None
            return None if swapped is None else _with_holes(swapped, holes)

        flat.manifest.change(change)
        return done

    def _repair_descriptor(
        self, manifest: Manifest, segment: SegmentEntry, failure: _Failure, *, apply: bool
    ) -> None:
        """Make the list of a sealed segment's chunks again, from the chunks themselves."""
        dead = {dead_object.name for dead_object in manifest.garbage}
        end = segment.position + segment.data_size
        candidates = sorted(
            (
                entry
                for entry in other_chunks(self._flat, self._named(manifest))
                if entry.name not in dead
                and segment.first_offset <= entry.first_offset < segment.end_offset
                and segment.position <= entry.position < end
            ),
            key=lambda entry: (entry.first_offset, -entry.epoch),
        )
        chunks: list[ChunkEntry] = []
        for entry in candidates:
            if not chunks or entry.first_offset >= chunks[-1].end_offset:
                chunks.append(replace(entry, created_ms=segment.created_ms))
        covered = {chunk.first_offset: (chunk.end_offset, b"") for chunk in chunks}
        # A list that is as long as it was lacks nothing: what is between its chunks was a hole.
        is_whole = len(chunks) == segment.chunks
        expected_ranges = [] if is_whole else [(segment.first_offset, segment.end_offset)]
        lost = self._lost(manifest, expected_ranges, covered)
        self._report.repairs.append(
            Repair(
                shard=self._flat.shard.name,
                object_name=f"{self._flat.manifest.prefix}{segment.name}",
                first_offset=segment.first_offset,
                end_offset=segment.end_offset,
                is_missing=isinstance(failure, ObjectMissingError),
                reason=str(failure),
                sound=_count(covered),
                lost=lost,
                applied=apply and self._swap_segment(segment, tuple(chunks), [], lost),
            )
        )


def _add(
    records: RecordsByOffset, more: RecordsByOffset, entry: ChunkEntry, expected: set[int] | None
) -> None:
    """Add records of other places that belong in a chunk and were not found before."""
    for first, record in more.items():
        inside = entry.first_offset <= first < entry.end_offset
        if inside and first not in records and (expected is None or first in expected):
            records[first] = record


def _fit(records: RecordsByOffset, room: int) -> None:
    """Leave out what the place of a chunk does not hold: positions of other chunks are fixed."""
    for first in sorted(records):
        room -= len(records[first][1])
        if room < 0:
            del records[first]


def _count(records: RecordsByOffset) -> int:
    return sum(end - first for first, (end, _) in records.items())


def _with_holes(manifest: Manifest, lost: Iterable[tuple[int, int]]) -> Manifest:
    return changes.delete_ranges(manifest, lost) or manifest
