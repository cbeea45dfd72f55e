"""A tier by its URL, for planning and for Spark's workers; nothing is created or changed in it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from penstock.errors import BadRequestError
from penstock.record import ShardId
from penstock.tiered import CompositeFlatFile, TierConfig, parse_manifest_key, topic_prefix
from penstock.tiered.providers import check_address

TIERS_MAX: Final = 4
"""Tiers that a worker keeps open; the least recently used is closed first."""


def tier_config(url: str) -> TierConfig:
    """Return how to read a tier; refuse what no executor could reach."""
    # A tier that is read is not created; other schemes have no such option.
    is_directory = urlsplit(reachable(url)).scheme.lower() == "file"
    return TierConfig(url=url, options={"create": "false"} if is_directory else {})


def reachable(url: str) -> str:
    """Return the URL of a tier that executors can reach."""
    if urlsplit(url).scheme.lower() == "memory":
        raise BadRequestError(f"{url} is an in-memory tier; executors cannot reach it")
    check_address(url)
    return url


class OpenTier:
    """One provider, and the shards that are read through it."""

    def __init__(self, url: str) -> None:
        self.config: Final = tier_config(url)
        self.provider: Final = self.config.open()
        self.fetcher: Final = self.config.fetcher(self.provider)
        self._flats: dict[ShardId, CompositeFlatFile] = {}
        self._lock: Final = threading.Lock()

    def flat(self, shard: ShardId) -> CompositeFlatFile:
        with self._lock:
            flat = self._flats.get(shard)
            if flat is None:
                flat = CompositeFlatFile(
                    self.config, shard, provider=self.provider, fetcher=self.fetcher
                )
                self._flats[shard] = flat
            return flat

    def shards(self, topics: Iterable[str] | None) -> list[ShardId]:
        """Return the shards of these topics, or of all, that the tier has a manifest of. Only the
        objects of named topics are listed, unless one of them has none."""
        if topics is not None:
            named = [self._listed(topic_prefix(topic)) for topic in dict.fromkeys(topics)]
            if all(named):
                return sorted(shard for shards in named for shard in shards)
        return self._listed("")

    def _listed(self, prefix: str) -> list[ShardId]:
        shards = (parse_manifest_key(info.key) for info in self.provider.list(prefix))
        return sorted(shard for shard in shards if shard is not None)

    def close(self) -> None:
        self.fetcher.close()
        self.provider.close()


_tiers: dict[tuple[str, str], OpenTier] = {}
_tiers_lock: Final = threading.Lock()


def shared_tier(url: str, query: str) -> OpenTier:
    """Return this process's tier of a query. It stays open for the query's next tasks; an evicted
    one closes with its last reader."""
    with _tiers_lock:
        tier = _tiers.pop((url, query), None) or OpenTier(url)
        _tiers[url, query] = tier
        while len(_tiers) > TIERS_MAX:
            del _tiers[next(iter(_tiers))]
        return tier
