"""The settings of the offset layer, with their defaults and units."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

CACHE_FAMILY: Final = "offset-cache"
"""The column family of the local RocksDB that holds commits which the meta service lacks."""


class OffsetConfig(Struct, frozen=True):
    enable_cache: bool = True
    """Commits go to the local RocksDB and are saved in batches; False: each through the meta log
    before it is answered. A call can say otherwise for itself."""
    flush_interval_ms: int = 100
    """How often cached commits are saved: ten requests a second for a node."""
    pending_max: int = 10_000
    """Offsets that may wait to be saved. At the limit a commit of another offset waits."""
    commit_timeout_ms: int = 30_000
    """How long a commit waits for room, before it fails with `BusyError`."""
    retry_interval_max_ms: int = 5_000
    """The longest pause between saves while they fail; pauses double up to it."""
