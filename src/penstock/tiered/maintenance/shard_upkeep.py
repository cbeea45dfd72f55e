"""Maintenance of one shard in a tier: sealing, expiry, deletes, garbage, destruction.

Any process may repeat each of these, also after a crash half-way: each step is one change of the
manifest, or the removal of an object that no manifest refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from penstock.platform.clock import Clock
from penstock.tiered.chunk import manifest_changes as changes
from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.chunk.manifest import Manifest, SegmentEntry, describe_segment, encode_segment
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.config import TierConfig
from penstock.tiered.object_names import is_penstock_object, segment_name


class GarbageReport(Struct):
    """What a collection found and did."""

    deleted: int = 0
    deleted_size: int = 0
    waiting: int = 0
    """Objects that are garbage, but not for long enough."""
    leftovers: int = 0
    """Parts of objects that were never finished; they are removed."""
    foreign: list[str] = []
    """Objects that are none of ours; they are left alone."""


class CompositeUpkeep:
    def __init__(self, manifest: ShardManifest, config: TierConfig, clock: Clock) -> None:
        self._manifest: Final = manifest
        self._config: Final = config
        self._clock: Final = clock

    # Sealing

    def sealed_if_due(self, manifest: Manifest, now_ms: int) -> Manifest:
        """Return the manifest with its open segment sealed when it is large or old enough."""
        if not manifest.chunks:
            return manifest
        size = sum(chunk.data_size for chunk in manifest.chunks)
        age_ms = now_ms - manifest.chunks[0].created_ms
        if size < self._config.segment_size and age_ms < self._config.segment_age_ms:
            return manifest
        return self._sealed(manifest, now_ms)

    def _sealed(self, manifest: Manifest, now_ms: int) -> Manifest:
        name = self.put_descriptor(manifest.epoch, manifest.chunks)
        return changes.seal(manifest, describe_segment(name, manifest.chunks, now_ms))

    def put_descriptor(self, epoch: int, chunks: tuple[ChunkEntry, ...]) -> str:
        name = segment_name(epoch, chunks[0].first_offset)
        key = f"{self._manifest.prefix}{name}"
        self._manifest.provider.put_if_absent(key, encode_segment(chunks))
        return name

    def seal(self, *, only_if_due: bool = True) -> bool:
        """Seal the open segment; return whether one was sealed."""
        now_ms = self._clock.now_ms()

        def change(manifest: Manifest) -> Manifest | None:
            if not manifest.chunks:
                return None
            new = (
                self.sealed_if_due(manifest, now_ms)
                if only_if_due
                else self._sealed(manifest, now_ms)
            )
            return None if new is manifest else new

        before = self._manifest.current
        return self._manifest.change(change) is not before

    # Deleting

    def expire(self, expire_ms: int) -> int:
        """Drop chunks whose records are all older; return the first offset of the tier then."""

        def change(manifest: Manifest) -> Manifest | None:
            chunks_of = self._chunks_of(manifest)
            offset = changes.expired_until(manifest, expire_ms, chunks_of)
            return changes.truncate_before(manifest, offset, chunks_of, self._clock.now_ms())

        return self._truncated(change)

    def expire_size(self, size_max: int) -> int:
        """Drop the oldest chunks until at most `size_max` bytes of records are left."""

        def change(manifest: Manifest) -> Manifest | None:
            chunks_of = self._chunks_of(manifest)
            offset = changes.size_until(manifest, size_max, chunks_of)
            return changes.truncate_before(manifest, offset, chunks_of, self._clock.now_ms())

        return self._truncated(change)

    def truncate_before(self, offset: int) -> int:
        return self._truncated(
            lambda manifest: changes.truncate_before(
                manifest, offset, self._chunks_of(manifest), self._clock.now_ms()
            )
        )

    def _truncated(self, change: Callable[[Manifest], Manifest | None]) -> int:
        before = self._manifest.current
        start = self._change_if_there(change)
        if self._manifest.current is not before:
            self.trim()
        return start

    def trim(self) -> None:
        """Give a sealed segment that begins before the tier does a list without the chunks that
        are before it: they become garbage, and do not wait for the last of the segment."""
        manifest = self._manifest.current
        if manifest is None:
            return
        for segment in manifest.segments:
            if segment.first_offset >= manifest.start_offset:
                return
            old = self._manifest.chunks_of(segment)
            kept = tuple(chunk for chunk in old if chunk.end_offset > manifest.start_offset)
            if not kept or len(kept) == len(old):
                continue
            name = self.put_descriptor(manifest.epoch, kept)
            described = describe_segment(name, kept, segment.sealed_ms)
            dropped = [chunk.name for chunk in old[: len(old) - len(kept)]]
            self._swap(segment, described, dropped)

    def _swap(self, old: SegmentEntry, new: SegmentEntry, dropped: list[str]) -> None:
        now_ms = self._clock.now_ms()
        self._manifest.change(
            lambda manifest: changes.swap_segment(manifest, old, new, dropped, now_ms)
        )

    def delete_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make offsets holes, for every reader that sees the manifest from now on."""
        added = list(ranges)
        self._change_if_there(lambda manifest: changes.delete_ranges(manifest, added))

    def _change_if_there(self, change: Callable[[Manifest], Manifest | None]) -> int:
        if (self._manifest.current or self._manifest.load()) is None:
            return 0
        return self._manifest.change(change).start_offset

    def start_over(self) -> None:
        """Empty a destroyed shard so that one of its name can be written."""
        now_ms = self._clock.now_ms()

        def change(manifest: Manifest) -> Manifest | None:
            if manifest.destroyed_ms is None:
                return None
            return changes.start_over(manifest, self._chunks_of(manifest), now_ms)

        self._manifest.change(change)

    def _chunks_of(self, manifest: Manifest) -> changes.ChunksOf:
        return {segment.name: self._manifest.chunks_of(segment) for segment in manifest.segments}

    def destroy(self) -> None:
        """Mark the shard destroyed, then remove what may go by now. Again: the rest."""
        if self._manifest.load() is None:
            self._remove_all_if_alone()
            return
        now_ms = self._clock.now_ms()
        manifest = self._manifest.change(lambda manifest: changes.destroy(manifest, now_ms))
        assert manifest.destroyed_ms is not None, "just set"
        if self._clock.expiry_ms() - manifest.destroyed_ms >= self._config.grace_ms:
            self._remove_all()

    def _remove_all_if_alone(self) -> None:
        """A destruction that was interrupted after the manifest left at most old objects."""
        self.collect_garbage()

    def _remove_all(self) -> None:
        provider = self._manifest.provider
        for info in list(provider.list(self._manifest.prefix)):
            if is_penstock_object(info.key.rpartition("/")[2]):
                provider.delete(info.key)
        provider.delete(self._manifest.key)
        self._manifest.load()

    # Garbage

    def collect_garbage(self) -> GarbageReport:
        """Delete objects of this shard that nothing has referred to for the grace period."""
        report = GarbageReport()
        listed = list(self._manifest.provider.list(self._manifest.prefix))
        # The manifest is read after the list: what it refers to now is kept whatever was listed.
        manifest = self._manifest.load()
        if manifest is not None and manifest.destroyed_ms is not None:
            self.destroy()
            report.deleted = len(listed) if self._manifest.current is None else 0
            report.waiting = len(listed) - report.deleted
            return report
        kept = self._referred(manifest)
        since = (
            {}
            if manifest is None
            else {dead_object.name: dead_object.since_ms for dead_object in manifest.garbage}
        )
        before_ms = self._clock.expiry_ms() - self._config.grace_ms
        for info in listed:
            name = info.key.rpartition("/")[2]
            if name in kept or info.key == self._manifest.key:
                continue
            if not is_penstock_object(name) or info.key.count("/") != self._manifest.prefix.count(
                "/"
            ):
                report.foreign.append(info.key)
            elif max(info.modified_ms, since.get(name, 0)) > before_ms:
                report.waiting += 1
            else:
                self._manifest.provider.delete(info.key)
                report.deleted += 1
                report.deleted_size += info.size
        self._drop_garbage(since, {info.key.rpartition("/")[2] for info in listed}, before_ms)
        return report

    def _referred(self, manifest: Manifest | None) -> set[str]:
        if manifest is None:
            return set()
        kept = {chunk.name for chunk in self._manifest.chunks_from(-1, manifest)}
        return kept | {segment.name for segment in manifest.segments}

    def _drop_garbage(self, since: dict[str, int], listed: set[str], before_ms: int) -> None:
        """Strike garbage off the manifest that is deleted."""
        names = frozenset(
            name for name, ms in since.items() if ms <= before_ms or name not in listed
        )
        if names:
            self._manifest.change(lambda manifest: changes.drop_garbage(manifest, names))
