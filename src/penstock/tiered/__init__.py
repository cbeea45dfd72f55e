"""Old records of a shard in a tier: chunks and manifests in a directory or an object store.

    TieredDispatcher ──▶ CompositeFlatFile ──▶ chunks and a manifest ──▶ provider
    readers          ──▶ Fetcher           ◀──────────────────────────┘

Other packages import from here, from `providers` (object stores by URL) and from `admin` (what
operators do with a tier) only; an import contract in `pyproject.toml` protects the modules below.
A name is loaded with its first use. Importing this package opens and starts nothing: Spark workers
use it without a node.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

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

_MODULES: Final = {
    "ATTACHING": "catalog.directory_tiers",
    "CHUNK_SIZE": "config",
    "TIER_DIRECTORY": "catalog.directory_tiers",
    "TIER_URL": "catalog.directory_tiers",
    "ChunkEntry": "chunk.chunk",
    "CompositeFlatFile": "composite_flat_file",
    "FetchSettings": "read.fetcher",
    "Footer": "chunk.chunk",
    "LeaseLostError": "chunk.shard_manifest",
    "Manifest": "chunk.manifest",
    "NodeDirectory": "build",
    "RocketMqTier": "rocketmq.tier",
    "TierConfig": "config",
    "TierLimits": "maintenance.upkeep",
    "TierMetrics": "metrics",
    "TieredSegmentEngine": "engine",
    "TopicTier": "catalog.directory_tiers",
    "build_node_engine": "build",
    "find_tiers": "catalog.directory_tiers",
    "own_tier_url": "catalog.directory_tiers",
    "parse_manifest_key": "object_names",
    "sync_deleted": "upload.dispatcher",
    "topic_prefix": "object_names",
    "upload_shard": "upload.dispatcher",
    "without_aborted": "upload.committed_log",
}

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
    "build_node_engine",
    "find_tiers",
    "own_tier_url",
    "parse_manifest_key",
    "sync_deleted",
    "topic_prefix",
    "upload_shard",
    "without_aborted",
]

if not TYPE_CHECKING:  # else a misspelt name would pass the type checker

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
