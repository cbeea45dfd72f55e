"""A tier made from a store, with small chunks, so that a test has many of them."""

from __future__ import annotations

from pathlib import Path

from penstock.engine.segment.store import SegmentStore
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.upload.dispatcher import upload_shard


def upload(store: SegmentStore, url: str, *, chunk_size: int = 2_000) -> None:
    """Bring every shard of a store into the tier."""
    config = TierConfig(url=url, chunk_size=chunk_size, segment_size=5 * chunk_size)
    provider = config.open()
    for shard in store.shards():
        flat = CompositeFlatFile(config, shard, store.kind(shard), provider=provider)
        flat.acquire()
        upload_shard(store, flat)
        flat.shutdown()
    provider.close()


def chunk_files(tier: Path) -> list[Path]:
    return sorted(tier.rglob("*.chunk"))
