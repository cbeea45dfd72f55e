"""Makes a data directory from a tier alone: the catalogue says what the topics are, the manifests
where each shard ends.

Topics keep their ids, names, options and offsets: the log of each shard begins where its tier ends,
and older offsets are read from the tier. The new directory is another cluster: every manifest is
taken over under its id, so that a node of the old one which comes back can no longer change the
tier. Groups go on at their committed offsets, at most at the end of the shard.

A new directory appears under its name only when it is complete. What fails before leaves a
directory beside it that can be deleted; a second attempt takes the manifests over again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.engine.routing.storage_cache import shard_config
from penstock.engine.segment import SegmentSettings, SegmentStore, holds_store
from penstock.errors import AlreadyExistsError, BadRequestError, NotAStoreError, SetupError
from penstock.meta import (
    DEFAULT_NAMESPACE,
    ROWS_MAX,
    STORAGE_ALIASES,
    NewOffset,
    StandaloneMetaClient,
    TieringPolicy,
    TopicConfig,
    parse_ulid,
)
from penstock.platform.clock import SystemClock
from penstock.platform.data_directory import LOCK, check_path, lock_directory
from penstock.platform.disk import Disk, absolute_path
from penstock.platform.local_disk import LocalDisk
from penstock.record import Flush, QueueKind, ShardId
from penstock.tiered.catalog.catalog import (
    Catalogue,
    CatalogueTopic,
    list_catalogues,
    put_catalogue,
)
from penstock.tiered.catalog.directory_tiers import ATTACHING, save_tier_url
from penstock.tiered.chunk.manifest import Manifest
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.upkeep import shards_in
from penstock.tiered.providers.contract import TierProvider

_SEGMENT: Final = STORAGE_ALIASES["segment"]


class RestoredShard(Struct, frozen=True, kw_only=True):
    shard: str
    topic: str
    start_offset: int
    next_offset: int
    """Where writing goes on: the end of the tier."""


class Restored(Struct, frozen=True, kw_only=True):
    cluster_id: str
    """That of the new directory."""
    restored_from: str
    catalogue_ms: int
    """When the catalogue was written; 0: there was none, and names are derived from ids."""
    topics: int
    shards: list[RestoredShard]
    groups: int
    offsets_moved_back: int
    """Committed offsets above the end of their shard: what they counted was never uploaded."""


def restore_tier(
    config: TierConfig,
    data: str,
    settings: SegmentSettings,
    *,
    node_id: int = 1,
    cluster_id: str | None = None,
) -> Restored:
    """Make a new data directory of a tier; `settings` are those of the node's new store."""
    path, disk = check_path(data), LocalDisk()
    if disk.is_directory(path) and disk.list(path):
        raise BadRequestError(
            f"{path} is not empty; restore into a new directory, or attach the tier to this one"
        )
    building = f"{path}.restoring"
    if disk.exists(building):
        raise SetupError(
            f"{building} was left by an attempt that failed; delete it and restore again"
        )
    tier = _Tier(config, cluster_id)
    disk.make_directory(building)
    try:
        restored = _build(tier, building, settings, node_id=node_id)
    except BaseException:
        with suppress(OSError):
            disk.remove_tree(building)
        raise
    publish_directory(disk, building, path)
    return restored


def publish_directory(disk: Disk, building: str, path: str) -> None:
    """Give a complete directory its name, which survives a power cut when this returns: without
    it, the node would begin as a new one."""
    disk.remove_empty(path)
    disk.rename(building, path)
    disk.sync_directory(absolute_path(path).rpartition("/")[0] or "/")


def attach_tier(
    config: TierConfig,
    data: str,
    settings: SegmentSettings,
    *,
    node_id: int = 1,
    cluster_id: str | None = None,
) -> Restored:
    """Add the topics of a tier to the data directory of a stopped node. Topics that it has are
    passed over; a name that another topic has there is rejected before anything is changed. An
    attempt that was cut short leaves a mark, and no node starts before it is repeated."""
    path, disk = check_path(data), LocalDisk()
    if disk.status(f"{path}/meta/CURRENT") is None:
        raise NotAStoreError(f"{path} is not the data directory of a node; use restore")
    lock = lock_directory(disk, path, frozenset({LOCK}))
    try:
        tier = _Tier(config, cluster_id)
        is_again = disk.exists(f"{path}/{ATTACHING}")
        with StandaloneMetaClient.open(f"{path}/meta", node_id=node_id) as meta:
            _new_topics(tier, meta, is_again=is_again)  # rejects before anything is changed
        disk.replace(f"{path}/{ATTACHING}", f"{config.url}\n".encode())
        done = _build(tier, path, settings, node_id=node_id, is_again=is_again)
        disk.remove(f"{path}/{ATTACHING}")
    finally:
        lock.release()
    return done


class _Tier:
    """What a tier says of itself."""

    def __init__(self, config: TierConfig, cluster_id: str | None) -> None:
        self.config: Final = config
        self.provider: Final[TierProvider] = config.open()
        manifests: dict[ShardId, Manifest] = {}
        deleted: set[str] = set()
        for shard in shards_in(self.provider):
            manifest = ShardManifest(self.provider, shard).load()
            if manifest is not None and manifest.destroyed_ms is not None:
                deleted.add(shard.topic)
            elif manifest is not None:
                manifests[shard] = manifest
        self.manifests: Final = manifests
        self._deleted: Final = deleted
        self.catalogue: Final = self._choose(cluster_id)
        self.topics: Final = self._known_topics()
        if not self.topics:
            raise BadRequestError(f"{self.provider.url} holds no topic to restore")

    def _choose(self, cluster_id: str | None) -> Catalogue | None:
        catalogues = list_catalogues(self.provider)
        if cluster_id is not None:
            catalogues = [
                catalogue for catalogue in catalogues if catalogue.cluster_id == cluster_id
            ]
            if not catalogues:
                raise BadRequestError(f"{self.provider.url} has no catalogue of {cluster_id}")
        current = [
            catalogue for catalogue in catalogues if not catalogue.taken_over_by
        ] or catalogues
        if len(current) > 1:
            names = ", ".join(catalogue.cluster_id for catalogue in current)
            raise BadRequestError(
                f"{self.provider.url} holds topics of {len(current)} clusters ({names}); name one "
                "with --cluster"
            )
        return current[0] if current else None

    def _known_topics(self) -> list[CatalogueTopic]:
        if self.catalogue is not None:
            return [topic for topic in self.catalogue.topics if topic.topic_id not in self._deleted]
        # A tier of an earlier version: what the ids and the manifests say.
        partitions: dict[str, int] = {}
        for shard in self.manifests:
            count = partitions.get(shard.topic, 0)
            partitions[shard.topic] = max(count, shard.partition + 1)
        return [
            CatalogueTopic(
                topic_id=topic_id,
                namespace=DEFAULT_NAMESPACE,
                name=_name_of(topic_id),
                partitions=count,
                config=TopicConfig(queue_kind=self._kind_of(topic_id).value),
            )
            for topic_id, count in sorted(partitions.items())
        ]

    def _kind_of(self, topic_id: str) -> QueueKind:
        return next(
            manifest.kind for shard, manifest in self.manifests.items() if shard.topic == topic_id
        )


def _build(
    tier: _Tier, path: str, settings: SegmentSettings, *, node_id: int, is_again: bool = False
) -> Restored:
    clock = SystemClock()
    with StandaloneMetaClient.open(f"{path}/meta", node_id=node_id) as meta:
        own = meta.cluster_id
        topics = _new_topics(tier, meta, is_again=is_again)
        owned = replace(tier.config, owner=own)
        shards = _acquire_shards(tier, owned, topics)
        _create_shards(path, settings, topics, shards)
        for topic in topics:
            if meta.get_topic_by_id(topic.topic_id) is None:
                meta.restore_topic(
                    topic.topic_id, topic.name, topic.namespace, topic.partitions, topic.config
                )
        ends = {shard.shard: shard.next_offset for shard in shards}
        groups, moved_back = _restore_offsets(tier, meta, ends)
        old = tier.catalogue
        origin = "" if old is None else old.cluster_id
        put_catalogue(
            tier.provider,
            Catalogue(
                cluster_id=own,
                topics=tuple(topics),
                groups=() if old is None else old.groups,
                written_ms=clock.now_ms(),
                restored_from=origin,
            ),
        )
        if old is not None and origin != own:
            put_catalogue(tier.provider, replace(old, taken_over_by=own))
    save_tier_url(LocalDisk(), path, tier.config.url)
    return Restored(
        cluster_id=own,
        restored_from=origin,
        catalogue_ms=0 if old is None else old.written_ms,
        topics=len(topics),
        shards=shards,
        groups=groups,
        offsets_moved_back=moved_back,
    )


def _new_topics(
    tier: _Tier, meta: StandaloneMetaClient, *, is_again: bool = False
) -> list[CatalogueTopic]:
    """Return the topics to create, each with the address of its tier. They name it themselves: it
    is not the node's own until a setting says so. `is_again`: also those that an attempt before
    may have created in part."""
    topics: list[CatalogueTopic] = []
    for topic in tier.topics:
        if meta.get_topic_by_id(topic.topic_id) is not None and not is_again:
            continue
        known = meta.get_topic(topic.name, namespace=topic.namespace)
        if known is not None and known.topic_id != topic.topic_id:
            raise AlreadyExistsError(
                f"the directory has another topic {topic.name!r}; rename or delete it first"
            )
        policy = topic.config.tiering or TieringPolicy()
        config = replace(
            topic.config,
            storage_type=_SEGMENT,
            replication=1,
            min_insync=None,
            tiering=replace(policy, provider=tier.config.url, storage_level="NOT_IN_DISK"),
        )
        topics.append(replace(topic, config=config))
    return topics


def _acquire_shards(
    tier: _Tier, config: TierConfig, topics: list[CatalogueTopic]
) -> list[RestoredShard]:
    """Fence every other owner off, then see where each shard ends: nothing is added any more."""
    shards: list[RestoredShard] = []
    for topic in topics:
        kind = QueueKind(topic.config.queue_kind)
        for partition in range(topic.partitions):
            shard = ShardId(topic.topic_id, partition)
            flat = CompositeFlatFile(config, shard, kind, provider=tier.provider)
            flat.manifest.acquire(kind, take_over=True)
            flat.fetcher.close()
            shards.append(
                RestoredShard(
                    shard=shard.name,
                    topic=topic.name,
                    start_offset=flat.min_offset,
                    next_offset=flat.commit_offset,
                )
            )
    return shards


def _create_shards(
    path: str,
    settings: SegmentSettings,
    topics: list[CatalogueTopic],
    shards: list[RestoredShard],
) -> None:
    """Create the shards in the log, each beginning where its tier ends."""
    ends = {shard.shard: shard.next_offset for shard in shards}
    root = f"{path}/segment"
    # Every position depends on the sizes of an existing store, which are in it.
    is_there = holds_store(LocalDisk(), root)
    with SegmentStore.open(root, replace(settings, sizes=None) if is_there else settings) as store:
        for topic in topics:
            config = shard_config(topic.config)
            for partition in range(topic.partitions):
                shard = ShardId(topic.topic_id, partition)
                store.create_shard(
                    shard,
                    config.kind,
                    Flush(config.flush),
                    msgspec.msgpack.encode(config),
                    ends[shard.name],
                )


def _restore_offsets(
    tier: _Tier, meta: StandaloneMetaClient, ends: dict[str, int]
) -> tuple[int, int]:
    """Commit the offsets of the catalogue's groups; return how many groups, and how many offsets
    were above the end of their shard."""
    count = moved_back = 0
    for group in () if tier.catalogue is None else tier.catalogue.groups:
        own = [committed for committed in group.offsets if committed.shard in ends]
        moved_back += sum(committed.offset > ends[committed.shard] for committed in own)
        new = [
            NewOffset(
                committed.shard,
                min(committed.offset, ends[committed.shard]),
                committed.leader_epoch,
                committed.metadata,
            )
            for committed in own
        ]
        for first in range(0, len(new), ROWS_MAX):
            meta.reset_offsets(group.namespace, group.group, new[first : first + ROWS_MAX])
        count += bool(new)
    return count, moved_back


def _name_of(topic_id: str) -> str:
    """Return the part of a topic's name that its id has."""
    name, between, rest = topic_id.rpartition("-")
    return name if between and parse_ulid(rest) is not None else topic_id
