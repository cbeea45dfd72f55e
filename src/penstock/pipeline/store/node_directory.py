"""Finds the store in a directory, and the names of its topics.

    data/            of a node: `segment` holds the store, `meta` the names
    data/segment     the store of a node: the names are next to it
    data             of a store alone, or RocketMQ's: topics are named as they are stored

A topic of another namespace than the default one is `namespace/name`. The metadata is read without
a lock, beside a running node, as of now.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.engine.segment import ReadOnlyStore
from penstock.errors import BadRequestError, SetupError
from penstock.platform.log import get_logger
from penstock.record import ShardId

_log = get_logger(__name__)

DEFAULT_NAMESPACE: Final = "default"
SEGMENT: Final = "segment"
_META: Final = "meta"
_DATABASE: Final = "CURRENT"
"""Every RocksDB instance has this file."""


class StoreDirectory:
    """A store and the names of its topics."""

    def __init__(self, given: str, root: str, names: dict[str, str]) -> None:
        self.given: Final = given
        self.root: Final = root
        self.names: Final = names
        """By the name that a topic is stored under."""
        self._stored: Final = {name: stored for stored, name in names.items()}

    def shown(self, shard: ShardId) -> ShardId:
        name = self.names.get(shard.topic)
        return shard if name is None else ShardId(name, shard.partition)

    def stored(self, shard: ShardId) -> ShardId:
        name = self._stored.get(shard.topic)
        return shard if name is None else ShardId(name, shard.partition)

    def stored_name(self, name: str) -> str:
        """Return the stored name of a topic or a shard."""
        if name in self._stored:
            return self._stored[name]
        topic, separator, partition = name.rpartition("_")
        return f"{self._stored.get(topic, topic)}{separator}{partition}"

    def names_of(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the names of these stored topics, as far as they have another."""
        return {topic: self.names[topic] for topic in topics if topic in self.names}

    def knows(self, shards: Iterable[ShardId]) -> bool:
        """Return whether the names of all stored topics are known."""
        return not self.names or all(shard.topic in self.names for shard in shards)


def directory_ids(place: StoreDirectory, view: ReadOnlyStore) -> dict[str, str]:
    """Return the ids of topics by name: those of the node's metadata; of a plain store, the name
    and the birth of the topic's first partition."""
    ids = {name: stored for stored, name in place.names.items()}
    for shard in sorted(view.shards(), reverse=True):  # the first partition comes last, and counts
        if shard.topic not in place.names:
            born_at = view.state(shard).born_at
            ids[shard.topic] = f"{shard.topic}@{born_at}" if born_at else ""
    return {topic: known for topic, known in ids.items() if known}


def store_root(path: str) -> str:
    """Return the root of the store's files: the directory, or a node's `segment`."""
    root = Path(path)
    inner = root / SEGMENT
    is_node = inner.is_dir() and (root / _META / _DATABASE).is_file()
    return str(inner) if is_node else path


def refuse_node(path: str) -> None:
    """Raise `BadRequestError` for a node's store: its metadata would miss the writes."""
    if meta_of(store_root(path)) is not None:
        raise BadRequestError(
            f"{path} belongs to a node: start it (penstock serve) and write to its host:port "
            "(option 'endpoint')"
        )


def find_store(path: str) -> StoreDirectory:
    """Return the store in a directory; opening it raises if there is none."""
    root = store_root(path)
    meta = meta_of(root)
    return StoreDirectory(path, root, {} if meta is None else _names(meta))


def meta_of(root: str) -> Path | None:
    """Return the metadata directory of the node that owns this store; None without a node."""
    meta = Path(root).parent / _META
    return meta if Path(root).name == SEGMENT and (meta / _DATABASE).is_file() else None


def _names(meta: Path) -> dict[str, str]:
    # Imported here: a plain store is read without RocksDB.
    from penstock.meta.offline import read_topics

    try:
        topics = read_topics(str(meta))
    except SetupError as error:
        _log.warning("topic_names_unknown", path=str(meta), reason=str(error))
        return {}
    return {
        topic.topic_id: topic.name
        if topic.namespace == DEFAULT_NAMESPACE
        else f"{topic.namespace}/{topic.name}"
        for topic in topics
    }
