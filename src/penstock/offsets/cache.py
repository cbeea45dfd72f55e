"""Consumers' offsets, committed to the local RocksDB and saved in batches.

    commit ──▶ local RocksDB, in the page cache ──▶ every 100 ms: one save ──▶ meta service
                                                        then the local rows go

Consumers commit far more often than the meta service should write: one commit per message is
common. The newest commit of each (namespace, group, shard) waits here and is sent with all others.

What may be lost, and is then read again by the consumers:

  * this process is killed: nothing. The local rows are in the page cache, and the next start sends
    them again (compensation). Until then, and if the node never comes back, other nodes see the
    offsets as last saved
  * the machine loses power, or the disk: commits that were not saved, which is the last
    `flush_interval_ms` and the duration of one save, or everything since saves began to fail
  * never: an offset that was saved, a reset, a removal. An entry is stored only if its pair (epoch,
    sequence) is greater, so what is sent late or twice undoes nothing newer

Bounds: at most `pending_max` offsets wait. At the limit, commits of offsets that already wait go
on, since they replace; commits of others wait for room, so that a slow meta service slows consumers
down and never grows this process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.errors import BadRequestError, BusyError, RequestError, StoreError
from penstock.meta import INT_MAX, CommittedOffset, GroupOffsets, OffsetClient, OffsetEntry
from penstock.meta.storage import (
    OFFSET_ROW,
    OFFSETS_TABLE,
    ROOM_CHECKED_EVERY,
    Batch,
    Database,
    after_prefix,
    decode_texts,
    encode_key,
    offset_key,
    unpack_offset,
    unpack_pair,
)
from penstock.offsets.config import CACHE_FAMILY, OffsetConfig
from penstock.offsets.groups import GroupTable, LocalGroup, Pending
from penstock.offsets.strategy import (
    NO_LEADER_EPOCH,
    OffsetCommit,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_shard,
    not_an_offset,
)
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Offset, ShardId

_log: Final = get_logger(__name__)

_SAVE_ENTRIES_MAX: Final = 2_000
_SETTLE_ROWS_MAX: Final = 500
"""Rows that are removed under one hold of the lock: commits wait for about half a millisecond."""

_pack: Final = OFFSET_ROW.pack

Waiting = tuple[LocalGroup, ShardId, Pending]


class OffsetCacheManager:
    """Commits cached locally until the meta service has them.

    `step` saves what waits; `start` does it in a thread of its own, every `flush_interval_ms`.
    """

    def __init__(
        self,
        meta: OffsetClient,
        database: Database,
        table: GroupTable,
        clock: Clock,
        config: OffsetConfig,
    ) -> None:
        """Load the unsaved commits of an earlier process; the first flush sends them again."""
        self._meta = meta
        self._database = database
        self._put = database.putter(CACHE_FAMILY)
        self._table = table
        self._groups = table.groups
        self._lock = table.lock
        self._clock = clock
        self._now_ms = clock.now_ms
        self._config = config
        self._count = 0
        self._has_room = False
        self._saving = threading.Lock()
        self._room = threading.Event()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._load()

    # -- commits ----------------------------------------------------------------------------------

    def commit_one(
        self,
        namespace: str,
        group: str,
        shard: ShardId,
        offset: int,
        metadata: str = "",
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> None:
        """Commit one offset: the fast path of `commit`."""
        table = self._table
        while True:
            with self._lock:
                local = self._groups.get((namespace, group))
                if local is not None and local.epoch and not local.is_held:
                    waiting = local.pending.get(shard)
                    if waiting is not None:
                        # The one path that many commits take every second: no call can be spared.
                        table.sequence += 1
                        if metadata or leader_epoch != NO_LEADER_EPOCH:
                            value = _value(
                                local.epoch,
                                table.sequence,
                                OffsetCommit(Offset(offset), metadata, leader_epoch),
                                self._now_ms(),
                            )
                        elif offset.__class__ is int and 0 <= offset <= INT_MAX:
                            value = _pack(
                                local.epoch, table.sequence, offset, NO_LEADER_EPOCH, self._now_ms()
                            )
                        else:
                            raise not_an_offset(offset)
                        key = waiting[0]
                        self._put(key, value)
                        local.pending[shard] = (key, value)
                        return
                    if self._count < self._config.pending_max:
                        commit = OffsetCommit(Offset(offset), metadata, leader_epoch)
                        self._begin_waiting(local, {shard: commit})
                        return
            self._make_ready(namespace, group, 1)

    def commit(self, namespace: str, group: str, offsets: Mapping[ShardId, OffsetCommit]) -> None:
        """Commit offsets of a group, all or none. They survive the end of this process when this
        returns; the module's docstring lists what may be lost."""
        if len(offsets) > self._config.pending_max:
            raise BadRequestError(
                f"{len(offsets)} offsets in one commit; at most {self._config.pending_max}"
            )
        while offsets:
            with self._lock:
                local = self._groups.get((namespace, group))
                if local is not None and local.epoch and not local.is_held:
                    new = sum(shard not in local.pending for shard in offsets)
                    if self._count + new <= self._config.pending_max:
                        self._begin_waiting(local, offsets)
                        return
            self._make_ready(namespace, group, len(offsets))

    def _begin_waiting(self, local: LocalGroup, offsets: Mapping[ShardId, OffsetCommit]) -> None:
        """Write the commits to the cache; the lock is held, and there is room."""
        now_ms = self._now_ms()
        sequence = self._table.sequence
        rows: list[tuple[ShardId, Pending]] = []
        batch = Batch()
        for shard, commit in offsets.items():
            sequence += 1
            waiting = local.pending.get(shard)
            if waiting is None:
                key = offset_key(local.prefix, check_shard(shard).name)
            else:
                key = waiting[0]
            value = _value(local.epoch, sequence, commit, now_ms)
            rows.append((shard, (key, value)))
            batch.put(CACHE_FAMILY, key, value)
        # Commits that replace one another do not ask for room: once after each save is enough.
        self._database.check_room(batch.size + (0 if self._has_room else ROOM_CHECKED_EVERY))
        self._has_room = True
        self._database.write(batch)
        self._table.sequence = sequence
        self._count += sum(shard not in local.pending for shard, _ in rows)
        local.pending.update(rows)

    def _make_ready(self, namespace: str, group: str, room: int) -> None:
        """Wait until a commit is possible: for an epoch, a held group, or room."""
        local = self._table.join(namespace, group)
        self._table.wait_while_held(local)
        deadline = self._clock.monotonic() + self._config.commit_timeout_ms / 1000
        while True:
            with self._lock:
                if self._count + room <= self._config.pending_max:
                    return
                self._room.clear()
            self._wake.set()
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise BusyError(
                    f"the offset cache is full: {self._count} offsets are not saved (limit "
                    f"{self._config.pending_max}), and the meta service accepts none; try again"
                )
            self._clock.wait(self._room, left)

    # -- reads ------------------------------------------------------------------------------------

    def find(self, namespace: str, group: str, shard: ShardId) -> CommittedOffset | None:
        """Return the cached commit, or None."""
        return self.find_all(namespace, group, shard).get(shard)

    def find_all(
        self, namespace: str, group: str, shard: ShardId | None = None
    ) -> dict[ShardId, CommittedOffset]:
        """Return the cached commits of a group, or that of one shard.

        What an earlier process left is sent first: only the meta service knows whether the group
        was removed or reset since.
        """
        local = self._table.find(namespace, group)
        if local is None:
            return {}
        if local.is_recovered:
            self.flush_group(local)
        with self._lock:
            if shard is None:
                waiting = dict(local.pending)
            else:
                waiting = {shard: local.pending[shard]} if shard in local.pending else {}
        return {name: unpack_offset(value) for name, (_, value) in waiting.items()}

    @property
    def pending_count(self) -> int:
        """The number of offsets that are not saved."""
        return self._count

    # -- saving -----------------------------------------------------------------------------------

    def step(self) -> int:
        """Save the cached commits now; return their number. On failure all stay cached."""
        return self._save(self._table.with_pending())

    def flush_group(self, local: LocalGroup) -> None:
        """Save the cached commits of one group."""
        self._save([local])

    def drop(self, local: LocalGroup, shards: Iterable[ShardId], below: tuple[int, int]) -> None:
        """Drop the cached commits of `shards` with a pair lower than `below`: a commit that the
        meta service has overtook them."""
        with self._lock:
            overtaken = [
                (local, shard, local.pending[shard])
                for shard in shards
                if shard in local.pending and unpack_pair(local.pending[shard][1]) < below
            ]
            self._remove_saved(overtaken)

    def _save(self, groups: Iterable[LocalGroup]) -> int:
        with self._saving:
            waiting: list[Waiting] = []
            groups = list(groups)
            for local in groups:
                with self._lock:
                    waiting += [(local, shard, row) for shard, row in local.pending.items()]
            for start in range(0, len(waiting), _SAVE_ENTRIES_MAX):
                self._save_part(waiting[start : start + _SAVE_ENTRIES_MAX])
            for local in groups:
                local.is_recovered = False
            self._has_room = False
            return len(waiting)

    def _save_part(self, waiting: list[Waiting]) -> None:
        try:
            stale = self._meta.save_offsets(_as_groups(waiting))
        except RequestError as error:
            # One entry that can never be stored must not keep all others from it.
            if len(waiting) > 1:
                middle = len(waiting) // 2
                self._save_part(waiting[:middle])
                self._save_part(waiting[middle:])
                return
            local, shard, _ = waiting[0]
            _log.error("offset_refused", cause=error, group=local.name.group, shard=shard.name)
        else:
            for entry in stale:
                lost = self._table.find(entry.namespace, entry.group)
                if lost is not None:
                    self._table.lost_to(lost, entry.epoch)
        for start in range(0, len(waiting), _SETTLE_ROWS_MAX):
            with self._lock:
                self._remove_saved(waiting[start : start + _SETTLE_ROWS_MAX])
        self._room.set()

    def _remove_saved(self, waiting: list[Waiting]) -> None:
        """Remove rows that the meta service has, unless a later commit replaced them. The local
        rows are removed under the lock, too: else the row of a concurrent commit could go."""
        batch = Batch()
        done = [entry for entry in waiting if entry[0].pending.get(entry[1]) is entry[2]]
        for _, _, (key, _) in done:
            batch.delete(CACHE_FAMILY, key)
        if done:
            self._database.write(batch)
        for local, shard, _ in done:
            del local.pending[shard]
        self._count -= len(done)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        assert self._thread is None, "a cache is started once"
        self._thread = threading.Thread(target=self._run, name="penstock-offsets", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and save the cached commits. If that fails, the local rows are synced, and
        the next start sends them again."""
        self._is_stopping = True
        self._table.close()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._try_step()
        self._database.sync()
        if self._count:
            _log.warning("offsets_kept_for_the_next_start", offsets=self._count)

    def _run(self) -> None:
        while not self._is_stopping:
            doubled = self._config.flush_interval_ms * 2 ** min(self._failures, 16)
            longest = max(self._config.flush_interval_ms, self._config.retry_interval_max_ms)
            self._clock.wait(self._wake, min(doubled, longest) / 1000)
            self._wake.clear()
            if not self._is_stopping:
                self._try_step()

    def _try_step(self) -> None:
        try:
            self.step()
        except StoreError as error:
            if self._failures == 0:
                _log.warning("offsets_not_saved", offsets=self._count, reason=str(error))
            self._failures += 1
        else:
            if self._failures:
                _log.info("offsets_saved_again", failures=self._failures)
            self._failures = 0

    def _load(self) -> None:
        prefix = encode_key(OFFSETS_TABLE)
        for key, value in self._database.scan(CACHE_FAMILY, prefix, after_prefix(prefix)):
            namespace, group, shard = decode_texts(key)
            local = self._table.add(namespace, group)
            local.pending[ShardId.parse(shard)] = (key, value)
            local.is_recovered = True
            self._count += 1
        if self._count:
            _log.info("offsets_found_unsaved", offsets=self._count)


def _value(epoch: int, sequence: int, commit: OffsetCommit, now_ms: int) -> bytes:
    """Return the row of a commit, checked."""
    offset = check_offset(commit.offset)
    leader_epoch = check_leader_epoch(commit.leader_epoch)
    metadata = check_metadata(commit.metadata)
    return _pack(epoch, sequence, offset, leader_epoch, now_ms) + metadata.encode()


def _as_groups(waiting: list[Waiting]) -> list[GroupOffsets]:
    """Return the entries by group, in the form of the meta service."""
    groups: list[GroupOffsets] = []
    entries: list[OffsetEntry] = []
    for number, (local, shard, (_, value)) in enumerate(waiting, start=1):
        committed = unpack_offset(value)
        entries.append(
            OffsetEntry(
                shard=shard.name,
                offset=committed.offset,
                epoch=committed.epoch,
                sequence=committed.sequence,
                commit_timestamp_ms=committed.commit_timestamp_ms,
                leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
            )
        )
        if number == len(waiting) or waiting[number][0] is not local:
            name = local.name
            groups.append(GroupOffsets(name.namespace, name.group, tuple(entries)))
            entries = []
    return groups
