"""Committed offsets of consumer groups: cached and saved in batches, or saved directly.

`OffsetManager` serves a single node; `ClusterOffsetManager` routes each group to its coordinator.
"""

from penstock.offsets.cluster_manager import ClusterOffsetManager, OffsetPeers
from penstock.offsets.manager import OffsetManager
from penstock.offsets.open import open_offsets
from penstock.offsets.strategy import GroupCommit, OffsetCommit

__all__ = [
    "ClusterOffsetManager",
    "GroupCommit",
    "OffsetCommit",
    "OffsetManager",
    "OffsetPeers",
    "open_offsets",
]
