"""Follows the topics of a node's directory into their tiers: what the log no longer holds is there.

    DATA/tier-url      the node's own tier (the setting `tiering.url`), where the node wrote it;
                       empty, or not there: the directory `tier` beside it
    DATA/segment       each shard's configuration: whether it has a tier, and whether another one

A shard whose log begins at its first offset needs no tier. One that has old records in a tier that
nothing in the directory names is refused: reading it would leave these records out silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.engine.contract import ShardConfig
from penstock.engine.segment import ReadOnlyStore
from penstock.errors import BadRequestError
from penstock.pipeline.store.node_directory import meta_of
from penstock.record import ShardId

if TYPE_CHECKING:
    from penstock.pipeline.read.tier_source import TierSource

_configs: Final = msgspec.msgpack.Decoder(ShardConfig)


def own_tier(root: str) -> str | None:
    """Return the tier of the node whose store this is; None if it is not recorded."""
    if meta_of(root) is None:
        return None
    # Here, so that a directory is read without what only tiers need.
    from penstock.tiered import own_tier_url

    return own_tier_url(str(Path(root).absolute().parent))


def tier_of(view: ReadOnlyStore, root: str, stored: ShardId) -> str | None:
    """Return the URL of the tier that may hold older records of a shard than its log; None when it
    has no tier, or its log holds everything; `BadRequestError` when its URL is not recorded."""
    packed = view.state(stored).config
    tiering = _configs.decode(packed).tiering if packed else None
    if tiering is None or not tiering.enabled or int(view.bounds(stored).earliest) == 0:
        return None
    url = tiering.url or own_tier(root)
    if url is None:
        raise BadRequestError(
            f"older records of {stored.name!r} are in the tier of its node, and {root} does not "
            "record its URL: set the option 'tier', or read from the node (option 'endpoint')"
        )
    return url


class Tiers:
    """The tiers of a directory's shards, opened when they are needed."""

    def __init__(self, view: ReadOnlyStore, root: str) -> None:
        self._view: Final = view
        self._root: Final = root
        self._open: Final[dict[str, TierSource]] = {}

    def of(self, stored: ShardId) -> TierSource | None:
        """Return the tier with the older records of a shard."""
        url = tier_of(self._view, self._root, stored)
        if url is None:
            return None
        if url not in self._open:
            # Here, so that a directory is read without what only tiers need.
            from penstock.pipeline.read.tier_source import TierSource

            self._open[url] = TierSource(url, None)
        return self._open[url]

    def refresh(self) -> None:
        for tier in self._open.values():
            tier.refresh()

    def close(self) -> None:
        for tier in self._open.values():
            tier.close()
