"""Keeps the catalogues of a node's tiers up to date: with every round of upkeep, when something in
them has changed. In a cluster, the node that leads the metadata does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from penstock.errors import SetupError, StoreError
from penstock.meta import CommittedOffset, GroupInfo, Topic
from penstock.platform.clock import Clock
from penstock.record import ShardId
from penstock.tiered.catalog.catalog import (
    Catalogue,
    CatalogueGroup,
    CatalogueTopic,
    GroupOffset,
    key_of,
    put_catalogue,
)
from penstock.tiered.shard_tiers import ShardTiers


class CataloguedMeta(Protocol):
    """What is asked of the meta service."""

    @property
    def cluster_id(self) -> str: ...

    def leads_metadata(self) -> bool: ...

    def list_topics(self, namespace: str | None = None) -> list[Topic]: ...

    def list_groups(self, namespace: str | None = None) -> list[GroupInfo]: ...

    def get_offsets(self, namespace: str, group: str) -> dict[str, CommittedOffset]: ...


class CatalogueWriter:
    def __init__(
        self, meta: CataloguedMeta, clock: Clock, flush: Callable[[], object] = lambda: None
    ) -> None:
        """`flush` lets the meta service know of all commits."""
        self._meta: Final = meta
        self._flush: Final = flush
        self._clock: Final = clock
        self._written: dict[str, Catalogue] = {}
        """By the tier's address: what was written last, without its time."""

    def save(self, tiers: ShardTiers) -> int:
        """Write the catalogues that have changed; return how many. One tier that fails keeps none
        of the others waiting; what went wrong is raised at the end, unless the tier cannot be used
        as it is set up, which its shards report."""
        if not self._meta.leads_metadata():
            return 0
        count = 0
        self._flush()
        failure: StoreError | None = None
        catalogues = self._make(tiers)
        for url in set(self._written) - catalogues.keys():
            tiers.provider(url).delete(key_of(self._meta.cluster_id))  # its last topic was deleted
            del self._written[url]
        for url, catalogue in catalogues.items():
            if self._written.get(url) == catalogue:
                continue
            try:
                now_ms = self._clock.now_ms()
                put_catalogue(tiers.provider(url), replace(catalogue, written_ms=now_ms))
            except SetupError:
                continue
            except StoreError as error:
                failure = error
                continue
            self._written[url] = catalogue
            count += 1
        if failure is not None:
            raise failure
        return count

    def _make(self, tiers: ShardTiers) -> dict[str, Catalogue]:
        topics: dict[str, list[Topic]] = {}
        for topic in self._meta.list_topics():
            url = _tier_of(topic, tiers)
            if url is not None:
                topics.setdefault(url, []).append(topic)
        if not topics:
            return {}
        groups = [
            (group, self._meta.get_offsets(group.namespace, group.group))
            for group in self._meta.list_groups()
        ]
        return {
            url: Catalogue(
                cluster_id=self._meta.cluster_id,
                topics=tuple(_described(topic) for topic in own),
                groups=tuple(_groups_of(own, groups)),
            )
            for url, own in topics.items()
        }


def _tier_of(topic: Topic, tiers: ShardTiers) -> str | None:
    """Return the address of a topic's tier; None when it has none."""
    policy = topic.config.tiering
    if policy is not None:
        return None if policy.storage_level == "DISABLE" else policy.provider or tiers.config.url
    shards = (ShardId(topic.topic_id, partition) for partition in range(topic.partitions))
    is_here = any(tiers.config_of(shard) is not None for shard in shards)
    return tiers.config.url if is_here else None


def _described(topic: Topic) -> CatalogueTopic:
    return CatalogueTopic(
        topic_id=topic.topic_id,
        namespace=topic.namespace,
        name=topic.name,
        partitions=topic.partitions,
        config=topic.config,
        created_at_ms=topic.created_at_ms,
    )


def _groups_of(
    topics: list[Topic], groups: list[tuple[GroupInfo, dict[str, CommittedOffset]]]
) -> list[CatalogueGroup]:
    """Return the groups that have committed offsets of these topics, with these offsets."""
    ids = {topic.topic_id for topic in topics}
    chosen = []
    for info, offsets in groups:
        own = tuple(
            GroupOffset(shard, committed.offset, committed.leader_epoch, committed.metadata)
            for shard, committed in sorted(offsets.items())
            if shard.rpartition("_")[0] in ids
        )
        if own:
            chosen.append(CatalogueGroup(namespace=info.namespace, group=info.group, offsets=own))
    return chosen
