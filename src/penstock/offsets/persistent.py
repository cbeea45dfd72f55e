"""Consumers' offsets, each commit through the meta service's log before it is answered.

Nothing that was answered is lost, not even by a power cut. Concurrent commits share the log's
syncs.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clock import Clock
from penstock.errors import StaleWriteError
from penstock.meta.client import GroupOffsets, OffsetClient, OffsetEntry
from penstock.offsets.groups import GroupTable, LocalGroup
from penstock.offsets.strategy import (
    OffsetCommit,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_shard,
)
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
        then those of its shards that were touched there keep the newer offset.
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
        # A commit that a later one of this process overtook was stored, as far as anybody can tell.
        fenced = [one for one in stale if one.epoch > entries[0].epoch]
        if fenced:
            self._table.lost_to(local, fenced[0].epoch)
            raise StaleWriteError(
                f"group {name.group!r} was reset or taken over; commits to "
                f"{', '.join(one.shard for one in fenced[:3])} came too late"
            )
        return entries[-1].epoch, entries[-1].sequence

    def entry(self, local: LocalGroup, shard: ShardId, commit: OffsetCommit) -> OffsetEntry:
        """Return a commit as the meta service takes it, with the next pair of its group."""
        check_shard(shard)
        epoch, sequence = self._table.next_pair(local)
        return OffsetEntry(
            shard=shard.name,
            offset=check_offset(commit.offset),
            epoch=epoch,
            sequence=sequence,
            commit_timestamp_ms=self._clock.now_ms(),
            leader_epoch=check_leader_epoch(commit.leader_epoch),
            metadata=check_metadata(commit.metadata),
        )
