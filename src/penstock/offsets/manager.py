"""`OffsetManager`: the committed offsets of consumer groups, for every storage engine.

    manager = OffsetManager.open("data/offsets", meta)
    manager.commit_offset("billing", ShardId("orders-01J…", 0), 17)
    manager.get_offset("billing", ShardId("orders-01J…", 0)).offset      # 17: the next to read

An offset is keyed by (namespace, group, shard) and is the next one to read; a later commit
replaces an earlier one, whether it is lower or higher. Each commit is stored by one of two
strategies, chosen by `enable_cache` in the settings or in the call: cached (see `cache` for the
window that it may lose) or direct. Both may be mixed, even for one shard: reads always show the
newest commit.

Methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from penstock.errors import BadRequestError, StoreError
from penstock.meta import (
    DEFAULT_NAMESPACE,
    CommittedOffset,
    GroupInfo,
    GroupName,
    NewGroupOffsets,
    NewOffset,
    OffsetClient,
)
from penstock.meta.storage import Database, RocksDatabase
from penstock.offsets import coordinator_rpc as rpc
from penstock.offsets.cache import OffsetCacheManager
from penstock.offsets.config import CACHE_FAMILY, OffsetConfig
from penstock.offsets.groups import GroupTable, LocalGroup
from penstock.offsets.persistent import OffsetStorageManager
from penstock.offsets.strategy import (
    NO_LEADER_EPOCH,
    GroupCommit,
    OffsetCommit,
    check_commit,
    check_offset,
    check_shard,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.record import Offset, ShardId

CommitOne = Callable[[str, str, ShardId, int, str, int], None]
"""Commits an offset of (namespace, group, shard), with its metadata and leader epoch."""


class OffsetManager:
    """Entering starts the flusher; leaving saves the cached commits."""

    def __init__(
        self,
        meta: OffsetClient,
        database: Database,
        *,
        clock: Clock | None = None,
        config: OffsetConfig | None = None,
        owns_database: bool = False,
    ) -> None:
        """`database` has the family `CACHE_FAMILY`; it is closed by `stop` only if owned."""
        clock = clock if clock is not None else SystemClock()
        self._meta = meta
        self._database = database
        self._owns_database = owns_database
        self._clock = clock
        self._config = config if config is not None else OffsetConfig()
        self._enable_cache = self._config.enable_cache
        self._table = GroupTable(meta, wait_seconds_max=self._config.commit_timeout_ms / 1000)
        self.cache = OffsetCacheManager(meta, database, self._table, clock, self._config)
        self.storage = OffsetStorageManager(meta, self._table, clock)
        self._commit_one: CommitOne = self.cache.commit_one
        self._is_stopped = False

    @classmethod
    def open(
        cls,
        path: str,
        meta: OffsetClient,
        *,
        clock: Clock | None = None,
        config: OffsetConfig | None = None,
    ) -> OffsetManager:
        """Open or create a small RocksDB for the cache in `path`, and start."""

        def make(database: Database) -> OffsetManager:
            return cls(meta, database, clock=clock, config=config, owns_database=True)

        return open_manager(path, make, clock)

    def stop(self) -> None:
        """Save the cached commits and end. Stopping twice does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            self.cache.stop()
        finally:
            if self._owns_database:
                self._database.close()

    def __enter__(self) -> OffsetManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- commits ----------------------------------------------------------------------------------

    def commit_offset(
        self,
        group: str,
        shard: ShardId,
        offset: int,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: str = "",
        leader_epoch: int = NO_LEADER_EPOCH,
        enable_cache: bool | None = None,
    ) -> None:
        """Commit the next offset to read of one shard."""
        if self._enable_cache if enable_cache is None else enable_cache:
            self._commit_one(namespace, group, shard, offset, metadata, leader_epoch)
        else:
            commit = OffsetCommit(Offset(offset), metadata, leader_epoch)
            self._commit(namespace, group, {shard: commit}, is_cached=False)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        enable_cache: bool | None = None,
    ) -> None:
        """Commit offsets of several shards, all or none."""
        is_cached = self._enable_cache if enable_cache is None else enable_cache
        self._commit(namespace, group, offsets, is_cached=is_cached)

    def _commit(
        self,
        namespace: str,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        is_cached: bool,
    ) -> None:
        if not is_cached:
            self._commit_directly(namespace, group, offsets)
        elif len(offsets) == 1:  # the commonest case, and four times cheaper alone
            ((shard, commit),) = offsets.items()
            self.cache.commit_one(
                namespace, group, shard, commit.offset, commit.metadata, commit.leader_epoch
            )
        else:
            self.cache.commit(namespace, group, offsets)

    def _commit_directly(
        self, namespace: str, group: str, offsets: Mapping[ShardId, OffsetCommit]
    ) -> None:
        if offsets:
            local = self._table.join(namespace, group)
            pair = self.storage.commit_in(local, offsets)
            self.cache.drop(local, offsets, pair)

    def commit_groups(self, commits: Sequence[GroupCommit]) -> list[StoreError | None]:
        """Commit offsets of many groups directly, in one log entry for each log that they touch;
        return for each group the error that prevented it, or None."""
        # Older commits in the cache have lower pairs, and so change nothing when they are saved.
        return self.storage.commit_groups(commits)

    def commit_new_offsets(self, groups: Sequence[NewGroupOffsets]) -> list[StoreError | None]:
        """As `commit_groups`, for offsets that came through the meta service's gRPC interface."""
        commits = [
            GroupCommit(
                group.namespace,
                group.group,
                {
                    new.shard: OffsetCommit(Offset(new.offset), new.metadata, new.leader_epoch)
                    for new in group.offsets
                },
            )
            for group in groups
        ]
        return self.commit_groups(commits)

    def compare_and_set(
        self,
        group: str,
        shard: ShardId,
        offset: int,
        *,
        expected: int | None,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: str = "",
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> None:
        """Commit `offset` only if the shard's offset is `expected` (None: there is none), else
        raise `StaleWriteError`. Always direct; earlier cached commits of the group are counted."""
        if expected is not None:
            check_offset(expected)
        commit = check_commit(OffsetCommit(Offset(offset), metadata, leader_epoch))
        name = check_shard(shard).name
        self._execute(rpc.CompareAndSet(namespace, group, name, expected, commit))

    def reset_offsets(
        self,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        request_id: str = "",
    ) -> None:
        """Set offsets, also backwards. No earlier commit can undo it, on this node or another,
        repeated or late."""
        self._execute(rpc.Reset(rpc.group_commit(namespace, group, offsets), request_id))

    # -- reads ------------------------------------------------------------------------------------

    def get_offset(
        self, group: str, shard: ShardId, *, namespace: str = DEFAULT_NAMESPACE
    ) -> CommittedOffset | None:
        """Return what a group has committed for a shard, or None."""
        return self._read_one(namespace, group, shard)

    def get_offsets(
        self, group: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[ShardId, CommittedOffset]:
        """Return all that a group has committed; unknown group: empty."""
        return self._read(namespace, group)

    def read_offsets(
        self, group: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[ShardId, CommittedOffset]:
        """As `get_offsets`, without the commits that are cached on other nodes."""
        return OffsetManager._read(self, namespace, group)

    def _read_one(self, namespace: str, group: str, shard: ShardId) -> CommittedOffset | None:
        # The cache is read first: its entry can be saved, and removed here, between the two reads.
        cached = self.cache.find(namespace, group, shard)
        saved = self._meta.get_offset(namespace, group, check_shard(shard).name)
        return _newer(cached, saved)

    def _read(self, namespace: str, group: str) -> dict[ShardId, CommittedOffset]:
        cached = self.cache.find_all(namespace, group)
        offsets = dict(cached)
        for name, saved in self._meta.get_offsets(namespace, group).items():
            try:
                shard = ShardId.parse(name)
            except BadRequestError:
                continue  # saved over gRPC under a name that is not one of a shard
            newer = _newer(cached.get(shard), saved)
            assert newer is not None, "one of the two is there"
            offsets[shard] = newer
        return offsets

    def list_groups(self, namespace: str | None = None) -> list[GroupInfo]:
        return self._meta.list_groups(namespace)

    def get_group(self, group: str, *, namespace: str = DEFAULT_NAMESPACE) -> GroupInfo | None:
        return self._meta.get_group(namespace, group)

    # -- removals ---------------------------------------------------------------------------------

    def delete_offsets(
        self, group: str, shards: Sequence[ShardId], *, namespace: str = DEFAULT_NAMESPACE
    ) -> int:
        """Remove offsets of a group; return how many there were."""
        names = [check_shard(shard).name for shard in shards]
        if not names:
            return 0
        return self._execute(rpc.DeleteOffsets(namespace, group, names)).count

    def delete_group(self, group: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove a group and all of its offsets; `UnknownGroupError` if there is none."""
        self._execute(rpc.DeleteGroup(namespace, group))

    def expire_idle_groups(
        self, idle_ms: int, *, keep: Collection[GroupName] = ()
    ) -> list[GroupName]:
        """Remove groups that have not committed for `idle_ms`, except those in `keep` (which have
        members, for example); return them."""
        self.flush()
        return self._meta.expire_groups(max(0, self._clock.expiry_ms() - idle_ms), keep=keep)

    def remove_topic(self, topic_id: str, partitions: Collection[int] | None = None) -> int:
        """Remove all groups' offsets of a deleted topic, or of some of its partitions; return how
        many there were."""
        self.flush()
        return self._meta.delete_topic_offsets(topic_id, partitions)

    # -- changes of a group, with its commits held ------------------------------------------------

    def _execute(self, change: rpc.GroupChange) -> rpc.Reply:
        """Make a change where the group is coordinated: here."""
        return self._apply(change)

    def _apply(self, change: rpc.GroupChange) -> rpc.Reply:
        namespace, group = rpc.group_of(change)
        with self._table.hold(namespace, group) as local:
            match change:
                case rpc.CompareAndSet():
                    self._table.claim_epoch(namespace, group)
                    self.cache.flush_group(local)
                    entry = self.storage.entry(local, ShardId.parse(change.shard), change.commit)
                    self._meta.compare_and_set_offset(
                        namespace, group, entry, expected=change.expected
                    )
                case rpc.Reset():
                    self._reset(local, change)
                case rpc.DeleteOffsets():
                    self.cache.flush_group(local)
                    # The removal has a new epoch; later commits must have a newer one.
                    self._table.renew(local, 0)
                    count = self._meta.delete_offsets(namespace, group, change.shards)
                    return rpc.Reply(count=count)
                case rpc.DeleteGroup():
                    self.cache.flush_group(local)
                    self._table.renew(local, 0)
                    self._meta.delete_group(namespace, group)
        return rpc.Reply()

    def _reset(self, local: LocalGroup, change: rpc.Reset) -> None:
        offsets = rpc.offsets_by_shard(change.commit)
        if not offsets:
            raise BadRequestError("the reset names no shard; name at least one")
        new = [
            NewOffset(shard.name, commit.offset, commit.leader_epoch, commit.metadata)
            for shard, commit in offsets.items()
        ]
        namespace, group = rpc.group_of(change)
        epoch = self._meta.reset_offsets(namespace, group, new, request_id=change.request_id)
        self._table.renew(local, epoch)
        self.cache.drop(local, offsets, (epoch, 0))

    # -- saving -----------------------------------------------------------------------------------

    def flush(self) -> int:
        """Save the cached commits now and return their number; raise when that fails."""
        return self.cache.step()

    def hand_over(self, group: str, *, namespace: str = DEFAULT_NAMESPACE, epoch: int = 0) -> None:
        """Save the cached commits of a group and stop the use of epochs below `epoch`, the one of
        the node that takes the group (0: of any). A later commit here takes the group back, under a
        new epoch."""
        with self._table.hold(namespace, group) as local:
            self.cache.flush_group(local)
            if epoch:
                self._table.release(local, epoch)
            else:
                self._table.renew(local, 0)


ManagerT = TypeVar("ManagerT", bound=OffsetManager)


def open_manager(
    path: str, make: Callable[[Database], ManagerT], clock: Clock | None = None
) -> ManagerT:
    """Open the database of a manager's cache, make the manager, and start it."""
    database = RocksDatabase.open(path, [CACHE_FAMILY], clock=clock, in_place=True)
    try:
        manager = make(database)
        manager.cache.start()
    except BaseException:
        database.close()
        raise
    return manager


def _newer(first: CommittedOffset | None, second: CommittedOffset | None) -> CommittedOffset | None:
    if first is None or second is None:
        return first if second is None else second
    return max(first, second, key=lambda committed: committed.pair)
