"""Consumers' offsets, each commit through the meta service's log before it is answered.

Nothing that was answered is lost, not even by a power cut. Concurrent commits share the log's
syncs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from penstock.errors import (
    BadRequestError,
    GroupMovedError,
    RequestError,
    StaleWriteError,
    StoreError,
)
from penstock.meta import (
    GroupOffsets,
    NewGroupOffsets,
    NewOffset,
    OffsetClient,
    OffsetEntry,
    check_text,
)
from penstock.offsets.groups import GroupTable, LocalGroup
from penstock.offsets.strategy import (
    GroupCommit,
    OffsetCommit,
    check_commit,
    check_shard,
)
from penstock.platform.clock import Clock
from penstock.record import ShardId


class OffsetStorageManager:
    """Commits kept by the meta service alone."""

    def __init__(self, meta: OffsetClient, table: GroupTable, clock: Clock) -> None:
        self._meta = meta
        self._table = table
        self._clock = clock

    def commit(self, namespace: str, group: str, offsets: Mapping[ShardId, OffsetCommit]) -> None:
        """Commit offsets of a group; they are safe when this returns.

        Raises `StaleWriteError` when the group was reset, or taken by another node, meanwhile:
        then those of its shards that were touched there keep the newer offset. `GroupMovedError`
        when another node had the group until now: nothing was stored.
        """
        if offsets:
            self.commit_in(self._table.join(namespace, group), offsets)

    def commit_in(
        self, local: LocalGroup, offsets: Mapping[ShardId, OffsetCommit]
    ) -> tuple[int, int]:
        """Commit offsets of a group that has an epoch; return the pair of the last one."""
        entries = [self.entry(local, shard, commit) for shard, commit in offsets.items()]
        name = local.name
        stale = self._meta.save_offsets([GroupOffsets(name.namespace, name.group, tuple(entries))])
        # A commit that a later one of this process overtook counts as stored.
        fenced = [entry for entry in stale if entry.epoch > entries[0].epoch]
        if fenced:
            self._table.lost_to(local, fenced[0].epoch)
            raise _too_late(name.group, [entry.shard for entry in fenced])
        return entries[-1].epoch, entries[-1].sequence

    def commit_groups(self, commits: Sequence[GroupCommit]) -> list[StoreError | None]:
        """Commit offsets of many groups in as few log entries as possible; return for each group
        why its offsets were not stored, or None. Each group's are stored all or none."""
        outcomes: list[StoreError | None] = [None] * len(commits)
        checked: list[int] = []
        for number, commit in enumerate(commits):
            try:
                _check(commit)
                self._table.wait_while_held(self._table.add(commit.namespace, commit.group))
            except StoreError as error:
                outcomes[number] = error
            else:
                checked.append(number)
        try:
            moved = self.claim([commits[number] for number in checked])
        except StoreError as error:
            return [error if outcome is None else outcome for outcome in outcomes]
        for number in moved:
            outcomes[checked[number]] = GroupMovedError(commits[checked[number]].group)
        checked = [number for number in checked if outcomes[number] is None]
        stored = self._try_commit([commits[number] for number in checked])
        for number, outcome in zip(checked, stored, strict=True):
            outcomes[number] = outcome
        return outcomes

    def claim(self, commits: Sequence[GroupCommit]) -> list[int]:
        """Claim the groups of commits for this node; return the numbers of those that another node
        had. Its consumers may have committed there after they sent these commits, and gave them up.
        Where this node is alone, groups are claimed with their first commit."""
        if self._table.node_id is None:
            return []
        locals_ = [self._table.add(commit.namespace, commit.group) for commit in commits]
        missing = [number for number, local in enumerate(locals_) if not local.epoch]
        if not missing:
            return []
        taken = self._meta.claim_groups([locals_[number].name for number in missing])
        self._table.adopt([(locals_[n], one) for n, one in zip(missing, taken, strict=True)])
        return [
            number
            for number, one in zip(missing, taken, strict=True)
            if self._table.is_from_another(one.previous) or not locals_[number].epoch
        ]

    def _try_commit(self, commits: Sequence[GroupCommit]) -> Sequence[StoreError | None]:
        try:
            return self._commit_checked(commits) if commits else ()
        except StoreError as error:
            if isinstance(error, RequestError) and len(commits) > 1:
                # One group that can never be stored must not keep the others from it.
                return [outcome for commit in commits for outcome in self._try_commit([commit])]
            return [error] * len(commits)

    def _commit_checked(self, commits: Sequence[GroupCommit]) -> list[StoreError | None]:
        table, now_ms = self._table, self._clock.now_ms()
        locals_ = [table.add(commit.namespace, commit.group) for commit in commits]
        saves: list[GroupOffsets] = []
        firsts: list[NewGroupOffsets] = []
        taking: list[LocalGroup] = []
        moved: set[tuple[str, str]] = set()
        for local, commit in zip(locals_, commits, strict=True):
            entries: list[OffsetEntry] = []
            try:
                for shard, offset_commit in commit.offsets.items():
                    epoch, sequence = table.next_pair(local)
                    entries.append(_entry(shard, offset_commit, epoch, sequence, now_ms))
            except StaleWriteError:
                if table.node_id is not None:
                    moved.add((commit.namespace, commit.group))
                    continue
                new = [
                    NewOffset(
                        shard,
                        offset_commit.offset,
                        offset_commit.leader_epoch,
                        offset_commit.metadata,
                    )
                    for shard, offset_commit in commit.offsets.items()
                ]
                firsts.append(NewGroupOffsets(commit.namespace, commit.group, tuple(new)))
                taking.append(local)
            else:
                saves.append(GroupOffsets(commit.namespace, commit.group, tuple(entries)))
        stale, taken = self._meta.commit_groups(saves, firsts)
        table.adopt(list(zip(taking, taken, strict=True)))
        rejected: dict[tuple[str, str], list[str]] = {}
        own = {(save.namespace, save.group): save.entries[-1].epoch for save in saves}
        for stale_offset in stale:
            key = stale_offset.namespace, stale_offset.group
            if stale_offset.epoch > own[key]:
                rejected.setdefault(key, []).append(stale_offset.shard)
                table.lost_to(table.add(*key), stale_offset.epoch)
        return [_outcome(commit, rejected, moved) for commit in commits]

    def entry(self, local: LocalGroup, shard: ShardId, commit: OffsetCommit) -> OffsetEntry:
        """Return a commit as the meta service takes it, with the next pair of its group."""
        check_shard(shard)
        check_commit(commit)
        epoch, sequence = self._table.next_pair(local)
        return _entry(shard.name, commit, epoch, sequence, self._clock.now_ms())


def _entry(shard: str, commit: OffsetCommit, epoch: int, sequence: int, now_ms: int) -> OffsetEntry:
    return OffsetEntry(
        shard=shard,
        offset=commit.offset,
        epoch=epoch,
        sequence=sequence,
        commit_timestamp_ms=now_ms,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
    )


def _outcome(
    commit: GroupCommit,
    rejected: Mapping[tuple[str, str], Sequence[str]],
    moved: Container[tuple[str, str]],
) -> StoreError | None:
    key = commit.namespace, commit.group
    if key in moved:
        return GroupMovedError(commit.group)
    return _too_late(commit.group, rejected[key]) if key in rejected else None


def _check(commit: GroupCommit) -> None:
    if not commit.offsets:
        raise BadRequestError(f"a commit of group {commit.group!r} names no shard")
    for shard, offset in commit.offsets.items():
        check_text("a shard", shard)
        check_commit(offset)


def _too_late(group: str, shards: Sequence[str]) -> StaleWriteError:
    return StaleWriteError(
        f"group {group!r} was reset or taken over; commits to {', '.join(shards[:3])} were too late"
    )
