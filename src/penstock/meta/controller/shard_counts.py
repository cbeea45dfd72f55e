"""What each node holds and leads, kept up to date with every change: placement asks for it often.

Fed in the order of the log, on its thread; any thread may ask.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from penstock.meta.controller.decisions import Load
from penstock.meta.events import (
    Event,
    NodePut,
    NodeRemoved,
    ShardDeleted,
    ShardPut,
    TopicDeleted,
    TopicPut,
)
from penstock.meta.state.metadata.rows import SHARDS
from penstock.meta.state.model import Shard
from penstock.meta.state.view import Reader

_Held = tuple[int | None, tuple[int, ...]]
_DEALINGS_REMEMBERED = 4_096


class ShardCounts:
    """`reset`, then `note` of everything that happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[tuple[str, int], _Held] = {}
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        self.changes = 0
        """Grows with every change of a shard, a topic or a node: decisions are then made again."""

    def reset(self, reader: Reader) -> None:
        """Begin with the shards that there are."""
        with self._lock:
            self._shards.clear()
            self._replicas.clear()
            self._leaders.clear()
            for shard in SHARDS.scan(reader):
                self._put(shard)
            self.changes += 1

    def apply(self, events: Iterable[Event]) -> None:
        with self._lock:
            for event in events:
                match event:
                    case ShardPut(shard):
                        self._put(shard)
                        self.changes += 1
                    case ShardDeleted(topic_id, partition):
                        self._drop((topic_id, partition))
                        self.changes += 1
                    case NodePut() | NodeRemoved() | TopicPut() | TopicDeleted():
                        self.changes += 1
                    case _:
                        pass

    def load(self) -> Load:
        with self._lock:
            return Load(dict(self._replicas), dict(self._leaders))

    def _put(self, shard: Shard) -> None:
        key = (shard.topic_id, shard.partition)
        self._drop(key)
        self._shards[key] = _same((shard.leader, shard.replicas))
        self._replicas.update(shard.replicas)
        if shard.leader is not None:
            self._leaders[shard.leader] += 1

    def _drop(self, key: tuple[str, int]) -> None:
        leader, replicas = self._shards.pop(key, (None, ()))
        self._replicas.subtract(replicas)
        if leader is not None:
            self._leaders[leader] -= 1


@lru_cache(_DEALINGS_REMEMBERED)
def _same(held: _Held) -> _Held:
    """Return one object for all shards that lie alike."""
    return held
