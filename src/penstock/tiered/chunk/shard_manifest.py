"""The manifest of one shard as its readers and writers use it.

A change is a function of the manifest that is there: it is applied, put by compare-and-set, and
applied again to what another writer has put meanwhile. An uploader names its epoch with every
change; when another has taken a higher one, `LeaseLostError` ends its work. Of two that take the
same epoch, the compare-and-set lets exactly one have it.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from penstock.errors import BusyError, NotSupportedError, StaleWriteError
from penstock.record import QueueKind, ShardId
from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.chunk.manifest import (
    Manifest,
    SegmentEntry,
    decode_manifest,
    decode_segment,
    encode_manifest,
)
from penstock.tiered.object_names import MANIFEST, shard_prefix
from penstock.tiered.providers.contract import ObjectMissingError, TierProvider

CHANGES_MAX: Final = 50
"""How often a change is tried again when others change the manifest at the same time."""
DESCRIPTORS_MAX: Final = 64
"""Descriptors of sealed segments that are kept in memory."""


class LeaseLostError(StaleWriteError):
    """Another uploader has taken the shard over."""


class ShardManifest:
    def __init__(self, provider: TierProvider, shard: ShardId, owner: str = "") -> None:
        """`owner` is the cluster on whose behalf changes are made; empty: that of an operator,
        whose changes leave the owner as it is."""
        self.provider: Final = provider
        self.owner: Final = owner
        self.shard: Final = shard
        self.prefix: Final = shard_prefix(shard)
        self.key: Final = f"{self.prefix}{MANIFEST}"
        self.writer: Final = uuid.uuid4().hex
        self._lock: Final = threading.RLock()
        self._loaded: tuple[Manifest, str] | None = None
        self._was_looked_at = False
        self._descriptors: OrderedDict[str, tuple[ChunkEntry, ...]] = OrderedDict()

    @property
    def current(self) -> Manifest | None:
        """The manifest as it was last seen; None when none was."""
        loaded = self._loaded
        return None if loaded is None else loaded[0]

    def known(self) -> Manifest | None:
        """Return the manifest as it was last seen, read if it was not read yet: a shard that has
        none is not asked for it again and again."""
        if self._loaded is None and not self._was_looked_at:
            return self.load()
        return self.current

    def load(self) -> Manifest | None:
        """Read the manifest anew; None when the tier has nothing of this shard."""
        with self._lock:
            try:
                data, version = self.provider.get(self.key)
            except ObjectMissingError:
                self._loaded = None
                self._was_looked_at = True
                return None
            manifest = decode_manifest(self._name(self.key), data)
            self._loaded = (manifest, version)
            return manifest

    def acquire(self, kind: QueueKind, epoch: int | None = None, *, take_over: bool = False) -> int:
        """Take the shard for uploading, under `epoch` (that of a lease) or the next free one;
        create the manifest if there is none. With `take_over` it becomes this owner's, also when
        another cluster had it. Returns the epoch."""
        with self._lock:
            self.load()

            def take(found: Manifest) -> Manifest:
                if found.kind is not kind:
                    raise NotSupportedError(
                        f"the tier holds {self.shard.name!r} with {found.kind.value} queues"
                    )
                wanted = found.epoch + 1 if epoch is None else epoch
                if wanted <= found.epoch:
                    raise LeaseLostError(
                        f"epoch {wanted} of {self.shard.name!r} is not after {found.epoch}"
                    )
                return replace(found, epoch=wanted, destroyed_ms=None)

            return self.change(take, kind=kind, take_over=take_over).epoch

    def change(
        self,
        function: Callable[[Manifest], Manifest | None],
        *,
        epoch: int | None = None,
        kind: QueueKind = QueueKind.SIMPLE,
        take_over: bool = False,
    ) -> Manifest:
        """Replace the manifest by what `function` makes of it; None leaves it as it is."""
        with self._lock:
            for _ in range(CHANGES_MAX):
                if self._loaded is None:
                    self.load()
                found, version = self._loaded or (self._empty(kind), None)
                if epoch is not None and found.epoch != epoch:
                    raise LeaseLostError(
                        f"{self.shard.name!r} was taken over: epoch {found.epoch} follows {epoch}"
                    )
                if not take_over:
                    self._check_owner(found)
                new = function(found)
                if new is None:
                    return found
                new = replace(
                    new,
                    writer=self.writer,
                    revision=found.revision + 1,
                    owner=self.owner or found.owner,
                )
                try:
                    version = self.provider.compare_and_set(self.key, encode_manifest(new), version)
                except StaleWriteError:
                    self._loaded, self._was_looked_at = None, False
                    continue
                self._loaded = (new, version)
                return new
        raise BusyError(f"the manifest of {self.shard.name!r} is changed all the time")

    def is_foreign(self, found: Manifest) -> bool:
        """Say whether the shard belongs to another cluster."""
        return bool(self.owner and found.owner) and found.owner != self.owner

    def _check_owner(self, found: Manifest) -> None:
        if self.is_foreign(found):
            raise LeaseLostError(
                f"the tier of {self.shard.name!r} was taken over by cluster {found.owner} "
                f"(penstock tier restore); cluster {self.owner} must not change it"
            )

    def _empty(self, kind: QueueKind) -> Manifest:
        return Manifest(topic=self.shard.topic, partition=self.shard.partition, kind=kind)

    # Chunks

    def chunks_of(self, segment: SegmentEntry) -> tuple[ChunkEntry, ...]:
        """Return the chunks of a sealed segment, from its descriptor."""
        with self._lock:
            found = self._descriptors.get(segment.name)
            if found is not None:
                self._descriptors.move_to_end(segment.name)
                return found
        key = f"{self.prefix}{segment.name}"
        chunks = decode_segment(self._name(key), self.provider.get(key).data)
        with self._lock:
            self._descriptors[segment.name] = chunks
            while len(self._descriptors) > DESCRIPTORS_MAX:
                self._descriptors.popitem(last=False)
        return chunks

    def chunks_from(self, offset: int, manifest: Manifest | None = None) -> Iterator[ChunkEntry]:
        """Yield the chunks that end after `offset`, ascending."""
        found = manifest or self.current
        if found is None:
            return
        for segment in found.segments:
            if segment.end_offset > offset:
                yield from (c for c in self.chunks_of(segment) if c.end_offset > offset)
        yield from (chunk for chunk in found.chunks if chunk.end_offset > offset)

    def chunks_back(self, manifest: Manifest | None = None) -> Iterator[ChunkEntry]:
        """Yield all chunks, the newest first."""
        found = manifest or self.current
        if found is None:
            return
        yield from reversed(found.chunks)
        for segment in reversed(found.segments):
            yield from reversed(self.chunks_of(segment))

    def _name(self, key: str) -> str:
        return f"{self.provider.url.rstrip('/')}/{key}"
