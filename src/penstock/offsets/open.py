"""Opens the offset manager of a node."""

from __future__ import annotations

from penstock.meta import (
    GroupCoordinators,
    OffsetClient,
)
from penstock.meta.storage import Database
from penstock.offsets.cluster_manager import ClusterOffsetManager, OffsetPeers
from penstock.offsets.config import OffsetConfig
from penstock.offsets.manager import OffsetManager, open_manager
from penstock.platform.clock import Clock
from penstock.settings import OffsetSettings


def open_offsets(
    path: str,
    meta: OffsetClient,
    coordinators: GroupCoordinators,
    peers: OffsetPeers | None,
    settings: OffsetSettings,
    clock: Clock,
) -> OffsetManager:
    """Open or create the database of a node's offset cache in `path`, and start its manager;
    without `peers` the node is alone."""
    config = OffsetConfig(
        enable_cache=settings.enable_cache,
        flush_interval_ms=settings.flush_interval_ms,
        pending_max=settings.pending_max,
        commit_timeout_ms=settings.commit_timeout_ms,
    )
    if peers is None:
        return OffsetManager.open(path, meta, clock=clock, config=config)
    links = peers

    def make(database: Database) -> ClusterOffsetManager:
        return ClusterOffsetManager(
            meta, database, coordinators, links, clock=clock, config=config, owns_database=True
        )

    return open_manager(path, make, clock)
