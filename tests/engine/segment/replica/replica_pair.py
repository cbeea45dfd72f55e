"""Two stores with copies of one shard, and what replication does between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Self, TypeVar

from tests.engine.segment.rig import Rig, create

from penstock.engine.segment.replica.replica_log import CompanionLog, SegmentReplicaLog
from penstock.engine.segment.store import SegmentStore
from penstock.record import Flush, QueueKind, ShardId

SHARD: Final = ShardId("orders", 0)
T = TypeVar("T")


def logs_of(store: SegmentStore) -> tuple[SegmentReplicaLog, CompanionLog]:
    return store.replicas.logs(SHARD)


class Pair:
    def __init__(
        self, kind: QueueKind = QueueKind.SIMPLE, flush: Flush = Flush.ASYNC, *, epoch: int = 1
    ) -> None:
        self.leader = Rig()
        self.follower = Rig()
        for rig in (self.leader, self.follower):
            create(rig.store, SHARD, kind=kind, flush=flush)
            logs_of(rig.store)
        for log in logs_of(self.leader.store):
            log.begin_epoch(epoch)

    @classmethod
    def of(cls, leader: Rig, follower: Rig) -> Self:
        """Return two stores that have the shard already."""
        pair = cls.__new__(cls)
        pair.leader, pair.follower = leader, follower
        for log in logs_of(leader.store):
            log.begin_epoch(1)
        return pair

    def do(self, action: Callable[[], T]) -> T:
        """Do something on the leader that waits for its command; commit that."""
        results: list[T] = []
        waiting = threading.Thread(target=lambda: results.append(action()))
        waiting.start()
        companion = logs_of(self.leader.store)[1]
        while waiting.is_alive():
            companion.set_commit(companion.end)
            waiting.join(0.001)
        return results[0]


def copy_all(pair: Pair, *, max_size: int = 700) -> None:
    """Copy everything that the follower lacks, as the core does."""
    pairs = zip(logs_of(pair.leader.store), logs_of(pair.follower.store), strict=True)
    for ours, theirs in pairs:
        if theirs.end < ours.start:
            theirs.restart_at(ours.start)
        while theirs.end < ours.end:
            theirs.append_range(ours.read_range(theirs.end, max_size)[0])


def commit_all(pair: Pair, *, data: bool = False) -> None:
    """Commit everything that each store has; with `data`, on the leader only."""
    for rig in (pair.leader,) if data else (pair.leader, pair.follower):
        for log in logs_of(rig.store):
            log.set_commit(log.end)
