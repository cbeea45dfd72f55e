"""Old records of a shard in a tier: chunks and manifests in a directory or an object store.

    TieredDispatcher ──▶ CompositeFlatFile ──▶ chunks and a manifest ──▶ provider
    readers          ──▶ Fetcher           ◀──────────────────────────┘

Other packages import from here, from `providers` (object stores by URL) and from `admin` (what
operators do with a tier) only; an import contract in `pyproject.toml` protects the modules below.
A name is loaded with its first use. Importing this package opens and starts nothing: Spark workers
use it without a node.
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.tiered.build import NodeDirectory, build_node_engine
    from penstock.tiered.catalog.directory_tiers import (
        ATTACHING,
        TIER_DIRECTORY,
        TIER_URL,
        TopicTier,
        find_tiers,
        own_tier_url,
    )
    from penstock.tiered.chunk.chunk import ChunkEntry, Footer
    from penstock.tiered.chunk.manifest import Manifest
    from penstock.tiered.chunk.shard_manifest import LeaseLostError
    from penstock.tiered.composite_flat_file import CompositeFlatFile
    from penstock.tiered.config import CHUNK_SIZE, TierConfig
    from penstock.tiered.engine import TieredSegmentEngine
    from penstock.tiered.maintenance.upkeep import TierLimits
    from penstock.tiered.metrics import TierMetrics
    from penstock.tiered.object_names import parse_manifest_key, topic_prefix
    from penstock.tiered.read.fetcher import FetchSettings
    from penstock.tiered.rocketmq.tier import RocketMqTier
    from penstock.tiered.upload.committed_log import without_aborted
    from penstock.tiered.upload.dispatcher import sync_deleted, upload_shard

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "build": "NodeDirectory build_node_engine",
            "catalog.directory_tiers": (
                "ATTACHING TIER_DIRECTORY TIER_URL TopicTier find_tiers own_tier_url"
            ),
            "chunk.chunk": "ChunkEntry Footer",
            "chunk.manifest": "Manifest",
            "chunk.shard_manifest": "LeaseLostError",
            "composite_flat_file": "CompositeFlatFile",
            "config": "CHUNK_SIZE TierConfig",
            "engine": "TieredSegmentEngine",
            "maintenance.upkeep": "TierLimits",
            "metrics": "TierMetrics",
            "object_names": "parse_manifest_key topic_prefix",
            "read.fetcher": "FetchSettings",
            "rocketmq.tier": "RocketMqTier",
            "upload.committed_log": "without_aborted",
            "upload.dispatcher": "sync_deleted upload_shard",
        },
    )

__all__ = [
    "ATTACHING",
    "CHUNK_SIZE",
    "TIER_DIRECTORY",
    "TIER_URL",
    "ChunkEntry",
    "CompositeFlatFile",
    "FetchSettings",
    "Footer",
    "LeaseLostError",
    "Manifest",
    "NodeDirectory",
    "RocketMqTier",
    "TierConfig",
    "TierLimits",
    "TierMetrics",
    "TieredSegmentEngine",
    "TopicTier",
    "admin",
    "build_node_engine",
    "find_tiers",
    "own_tier_url",
    "parse_manifest_key",
    "providers",
    "sync_deleted",
    "topic_prefix",
    "upload_shard",
    "without_aborted",
]
