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
    chunks_from,
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

            def raise_epoch(manifest: Manifest) -> Manifest:
                if manifest.kind is not kind:
                    raise NotSupportedError(
                        f"the tier holds {self.shard.name!r} with {manifest.kind.value} queues, "
                        f"not {kind.value}"
                    )
                next_epoch = manifest.epoch + 1 if epoch is None else epoch
                if next_epoch <= manifest.epoch:
                    raise LeaseLostError(
                        f"epoch {next_epoch} of {self.shard.name!r} is not after {manifest.epoch}"
                    )
                return replace(manifest, epoch=next_epoch, destroyed_ms=None)

            return self.change(raise_epoch, kind=kind, take_over=take_over).epoch

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
                manifest, version = self._loaded or (self._empty(kind), None)
                if epoch is not None and manifest.epoch != epoch:
                    raise LeaseLostError(
                        f"{self.shard.name!r} was taken over: its epoch is {manifest.epoch}, "
                        f"not {epoch}"
                    )
                if not take_over:
                    self._check_owner(manifest)
                new = function(manifest)
                if new is None:
                    return manifest
                new = replace(
                    new,
                    writer=self.writer,
                    revision=manifest.revision + 1,
                    owner=self.owner or manifest.owner,
                )
                try:
                    version = self.provider.compare_and_set(self.key, encode_manifest(new), version)
                except StaleWriteError:
                    self._loaded, self._was_looked_at = None, False
                    continue
                self._loaded = (new, version)
                return new
        raise BusyError(
            f"the manifest of {self.shard.name!r} was changed by other writers during "
            f"{CHANGES_MAX} attempts; try again"
        )

    def is_foreign(self, manifest: Manifest) -> bool:
        """Say whether the shard belongs to another cluster."""
        return bool(self.owner and manifest.owner) and manifest.owner != self.owner

    def _check_owner(self, manifest: Manifest) -> None:
        if self.is_foreign(manifest):
            raise LeaseLostError(
                f"the tier of {self.shard.name!r} was taken over by cluster {manifest.owner} "
                f"(penstock tier restore); cluster {self.owner} must not change it"
            )

    def _empty(self, kind: QueueKind) -> Manifest:
        return Manifest(topic=self.shard.topic, partition=self.shard.partition, kind=kind)

    # Chunks

    def chunks_of(self, segment: SegmentEntry) -> tuple[ChunkEntry, ...]:
        """Return the chunks of a sealed segment, from its descriptor."""
        with self._lock:
            cached = self._descriptors.get(segment.name)
            if cached is not None:
                self._descriptors.move_to_end(segment.name)
                return cached
        key = f"{self.prefix}{segment.name}"
        chunks = decode_segment(self._name(key), self.provider.get(key).data)
        with self._lock:
            self._descriptors[segment.name] = chunks
            while len(self._descriptors) > DESCRIPTORS_MAX:
                self._descriptors.popitem(last=False)
        return chunks

    def chunks_from(self, offset: int, manifest: Manifest | None = None) -> Iterator[ChunkEntry]:
        """Yield the chunks that end after `offset`, ascending."""
        current = manifest or self.current
        return iter(()) if current is None else chunks_from(current, offset, self.chunks_of)

    def _name(self, key: str) -> str:
        return f"{self.provider.url.rstrip('/')}/{key}"
