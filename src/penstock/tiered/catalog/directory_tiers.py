"""Finds the tier of each topic of a data directory; opens, locks and changes nothing.

    DATA/tier-url      the node's own tier (the setting `tiering.url`), written by the node; empty:
                       the directory `tier` beside it
    DATA/segment       each shard's configuration: whether it has a tier, and whether another one
    DATA/meta          the topics' names

A running node may use the directory meanwhile. The address never holds credentials: these come
from the environment of the process that reads the tier.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from penstock.engine.contract import ShardConfig
from penstock.engine.segment import ReadOnlyStore
from penstock.errors import NotAStoreError, SetupError
from penstock.meta import Topic
from penstock.meta.offline import read_topics
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger
from penstock.record import ShardId
from penstock.tiered.object_names import MANIFEST, shard_prefix, topic_prefix

TIER_URL: Final = "tier-url"
"""The file of a data directory that says which tier is the node's own."""
TIER_DIRECTORY: Final = "tier"
ATTACHING: Final = "attaching"
"""A data directory with this file holds half of an attached tier."""
_URL_SIZE_MAX: Final = 8192
_log: Final = get_logger(__name__)
_configs: Final = msgspec.msgpack.Decoder(ShardConfig)


class TopicTier(Struct, frozen=True, kw_only=True):
    """Where the old records of one topic are."""

    topic_id: str
    """The topic as the store, and so its tier, names it."""
    namespace: str = ""
    name: str = ""
    """As clients call it; empty when the metadata cannot be read."""
    url: str | None
    """The address of the tier; None when only the node's settings say it (no `tier-url` yet)."""
    prefix: str
    """What the keys of all objects of the topic begin with."""
    uploader: str
    partitions: tuple[int, ...]

    def shard(self, partition: int) -> ShardId:
        return ShardId(self.topic_id, partition)

    def manifest(self, partition: int) -> str:
        """Return the key of the object that decides what the tier holds of a partition."""
        return f"{shard_prefix(self.shard(partition))}{MANIFEST}"


def own_tier_url(path: str) -> str | None:
    """Return the address of the node's own tier; None when the directory does not say."""
    directory = f"{os.path.abspath(path)}/{TIER_DIRECTORY}"
    try:
        with open(f"{path}/{TIER_URL}", "rb") as file:
            url = file.read(_URL_SIZE_MAX).decode().strip()
    except FileNotFoundError:
        # A node before this file was introduced: the default shows by its directory.
        return f"file://{quote(directory)}" if os.path.isdir(directory) else None
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path}/{TIER_URL} cannot be read: {error}") from error
    return url or f"file://{quote(directory)}"


def save_tier_url(disk: Disk, path: str, url: str) -> None:
    """Write the setting `tiering.url` of the node into its directory, unless it is there. A full
    disk is not the end of the node: the next start writes it."""
    name, content = f"{path}/{TIER_URL}", f"{url}\n".encode()
    try:
        if not disk.exists(name) or _content(disk, name) != content:
            disk.replace(name, content)
    except OSError as error:
        _log.warning("tier_url_not_noted", path=name, reason=str(error))


def _content(disk: Disk, name: str) -> bytes:
    file = disk.open(name, writable=False)
    try:
        return bytes(file.read_at(0, _URL_SIZE_MAX))
    finally:
        file.close()


def find_tiers(path: str) -> list[TopicTier]:
    """Return the topics of a data directory that have a tier, by topic id; `NotAStoreError` for a
    directory without a segment store."""
    root = f"{path}/segment"
    if not os.path.isdir(root):
        raise NotAStoreError(f"{path} holds no segment store: {root} does not exist")
    known = _topics(path)
    own = own_tier_url(path)
    tiers: dict[str, TopicTier] = {}
    view = ReadOnlyStore.open(root)
    try:
        for shard in sorted(view.shards()):
            packed = view.state(shard).config
            tiering = _configs.decode(packed).tiering if packed else None
            if tiering is None or not tiering.enabled:
                continue
            before = tiers.get(shard.topic)
            topic = known.get(shard.topic)
            tiers[shard.topic] = TopicTier(
                topic_id=shard.topic,
                namespace="" if topic is None else topic.namespace,
                name="" if topic is None else topic.name,
                url=tiering.url or own,
                prefix=topic_prefix(shard.topic),
                uploader=tiering.uploader,
                partitions=(*(() if before is None else before.partitions), shard.partition),
            )
    finally:
        view.close()
    return list(tiers.values())


def _topics(path: str) -> dict[str, Topic]:
    """Return the topics by id; empty when the metadata is missing or cannot be read."""
    try:
        return {topic.topic_id: topic for topic in read_topics(f"{path}/meta")}
    except SetupError:
        return {}
