"""The tiers of one node: a flat file for each shard that has one, providers shared by URL."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.errors import SetupError, TierUnavailableError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.record import ShardId
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.damage import DamageReports
from penstock.tiered.providers import TierProvider
from penstock.tiered.read.fetcher import Fetcher, FetchSettings
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata
from penstock.tiered.rocketmq.metadata_store import TieredMetadataStore

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

_CHUNK_SIZES: Final = (4096, 1 << 30)


class ShardTiers:
    def __init__(
        self,
        config: TierConfig,
        *,
        metadata_store: TieredMetadataStore | None = None,
        clock: Clock | None = None,
        damage: DamageReports | None = None,
    ) -> None:
        """`config` is the node's own tier; a shard may name another URL."""
        self.config: Final = config
        self.metadata_store: Final = metadata_store
        self.clock: Final = clock or SystemClock()
        self.damage: Final = damage or DamageReports(clock=self.clock)
        self.cache_disk: Disk | None = None
        """Where the fetchers keep their disk caches; None: the machine's disk."""
        self._lock: Final = threading.Lock()
        self._opened: dict[str, tuple[TierProvider, Fetcher]] = {}
        self._flats: dict[ShardId, CompositeFlatFile] = {}
        self._configs: dict[ShardId, ShardConfig] = {}

    def watch(self, shard: ShardId, config: ShardConfig) -> None:
        """Keep a shard in a tier from now on, or no longer, as its configuration says."""
        with self._lock:
            known = self._configs.get(shard)
            if config.tiering is None or not config.tiering.enabled:
                self._configs.pop(shard, None)
                self._flats.pop(shard, None)
                return
            self._configs[shard] = config
            if known is None or known.tiering is None or _differ(known.tiering, config.tiering):
                self._flats.pop(shard, None)

    def shards(self) -> list[ShardId]:
        with self._lock:
            return sorted(self._configs)

    def config_of(self, shard: ShardId) -> ShardConfig | None:
        return self._configs.get(shard)

    def chunk_size_of(self, shard: ShardId) -> int:
        """Return with how many bytes of records an upload begins, and a chunk ends."""
        return self._chunk_size(self._configs.get(shard))

    def _chunk_size(self, config: ShardConfig | None) -> int:
        tiering = None if config is None else config.tiering
        own = None if tiering is None else tiering.upload_bytes
        least, most = _CHUNK_SIZES
        return self.config.chunk_size if own is None else min(max(least, own), most)

    def flat(self, shard: ShardId) -> CompositeFlatFile | None:
        """Return the flat file of a shard; None when it has no tier. Opens no connection; raises
        `TierSetupError` for an invalid address."""
        opened = self._flats.get(shard)
        if opened is not None:
            return opened
        with self._lock:
            config = self._configs.get(shard)
            if config is None or config.tiering is None:
                return None
            if shard not in self._flats:
                self._flats[shard] = self._make(shard, config, config.tiering)
            return self._flats[shard]

    def opened(self, shard: ShardId) -> CompositeFlatFile | None:
        """Return the flat file of a shard if it was asked for before."""
        return self._flats.get(shard)

    def _make(
        self, shard: ShardId, config: ShardConfig, tiering: ShardTiering
    ) -> CompositeFlatFile:
        # Here, so that a store without a tier does not load it.
        from penstock.tiered.composite_flat_file import CompositeFlatFile

        url = tiering.url or self.config.url
        provider, fetcher = self._open(url)
        return CompositeFlatFile(
            replace(self.config, url=url, chunk_size=self._chunk_size(config)),
            shard,
            config.kind,
            provider=provider,
            fetcher=fetcher,
            metadata_store=self.metadata_store,
            clock=self.clock,
        )

    def _open(self, url: str) -> tuple[TierProvider, Fetcher]:
        if url not in self._opened:
            config = replace(self.config, url=url, fetch=self._fetch_settings())
            provider = config.open()
            self._opened[url] = (provider, config.fetcher(provider, self.damage, self.cache_disk))
        return self._opened[url]

    def _fetch_settings(self) -> FetchSettings:
        """Return the settings of the next tier: each has a cache of its own on the disk."""
        settings = self.config.fetch
        if not settings.disk_cache_path:
            return settings
        return replace(settings, disk_cache_path=f"{settings.disk_cache_path}/{len(self._opened)}")

    def remove(self, shard: ShardId) -> CompositeFlatFile | None:
        """Remove a shard and return its flat file. It is removed also when its tier cannot be
        opened, which is raised."""
        with self._lock:
            config = self._configs.pop(shard, None)
            flat = self._flats.pop(shard, None)
            if flat is not None or config is None or config.tiering is None:
                return flat
            return self._make(shard, config, config.tiering)

    def bounds(self, shard: ShardId) -> tuple[int, int]:
        """Return [start, end) of what the tier holds, as last seen; from the metadata store when
        the tier does not answer, or cannot be used as it is set up."""
        try:
            flat = self.flat(shard)
            manifest = None if flat is None else flat.current()
        except (TierUnavailableError, SetupError):
            known = None if self.metadata_store is None else self.metadata_store.get_queue(shard)
            return (0, 0) if known is None else (known.min_offset, known.max_offset)
        return (0, 0) if manifest is None else (manifest.start_offset, manifest.end_offset)

    def data_size(self, shard: ShardId) -> int:
        """Return the bytes of records that the tier holds, as last seen; from the metadata store
        when the tier has not answered since this process started."""
        flat = self.opened(shard)
        manifest = None if flat is None else flat.manifest.current
        if manifest is not None or self.metadata_store is None:
            return 0 if manifest is None else manifest.data_size
        segments: list[FileSegmentMetadata] = []
        self.metadata_store.iterate_file_segment(segments.append, queue=shard)
        return sum(segment.size for segment in segments)

    def provider(self, url: str) -> TierProvider:
        """Return the tier of an address."""
        with self._lock:
            return self._open(url)[0]

    def providers(self) -> list[TierProvider]:
        """Return the tiers that were used so far."""
        with self._lock:
            return [provider for provider, _ in self._opened.values()]

    def close(self) -> None:
        if self.metadata_store is not None:
            self.metadata_store.close()
        with self._lock:
            for flat in self._flats.values():
                flat.shutdown()
            for provider, fetcher in self._opened.values():
                fetcher.close()
                provider.close()
            self._opened = {}


def _differ(before: ShardTiering, after: ShardTiering) -> bool:
    """Say whether a flat file made for one does not serve the other."""
    return (before.url, before.upload_bytes) != (after.url, after.upload_bytes)
