"""A tier by configuration: all that a process needs to use one, and to send to another."""

from __future__ import annotations

from msgspec import Struct, field

from penstock.platform.disk import Disk
from penstock.tiered.maintenance.damage import DamageReports
from penstock.tiered.providers import TierProvider, open_provider
from penstock.tiered.read.fetcher import Fetcher, FetchSettings

_HOUR_MS = 3_600_000
CHUNK_SIZE = 17 << 18
"""A little more than 4 MB, so that chunks that the end of a log file cuts short are made up for:
four requests get 16 MB or more."""


class TierConfig(Struct, frozen=True, kw_only=True):
    """Picklable; `open` gives the provider of this process."""

    url: str
    options: dict[str, str] = field(default_factory=dict)
    """For the provider: endpoint, region, keys; credentials belong in the environment."""
    chunk_size: int = CHUNK_SIZE
    """Bytes of records in one chunk, at most (one record may be larger)."""
    segment_size: int = 256 << 20
    """Bytes after which a segment is sealed."""
    segment_age_ms: int = 24 * _HOUR_MS
    grace_ms: int = _HOUR_MS
    """How long an object that nothing refers to is kept: readers and uploads take no longer."""
    upload_window: int = 4
    """Chunks of one shard that are put at the same time, at most."""
    fetch: FetchSettings = FetchSettings()
    owner: str = ""
    """The cluster that uploads; shards of another one are not changed. Empty: an operator."""

    def open(self) -> TierProvider:
        return open_provider(self.url, self.options)

    def fetcher(
        self,
        provider: TierProvider | None = None,
        damage: DamageReports | None = None,
        disk: Disk | None = None,
    ) -> Fetcher:
        return Fetcher(provider or self.open(), self.fetch, damage, disk)
