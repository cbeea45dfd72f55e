"""The two logs of a `Replica`, as replication uses them (`ReplicaLog`)."""

from __future__ import annotations

from typing import Final

from penstock.engine.epoch_table import EpochTable
from penstock.engine.row_replica.logged_write import decode_writes, encode_write
from penstock.engine.row_replica.operations import (
    Snapshot,
    decode_operations,
    encode_operation,
)
from penstock.engine.row_replica.replica import Replica
from penstock.engine.row_replica.store import Histories, Saved, Update
from penstock.errors import CorruptionError

_READ_SIZE: Final = 1 << 20
_SEARCH_SIZE: Final = 64 << 20
"""Bytes after the start of a client's read among which a damaged record is looked for."""


class RecordsLog:
    """The records. Followers get whole writes; deleted records are holes in them."""

    def __init__(self, replica: Replica) -> None:
        self._replica: Final = replica
        self._store: Final = replica.store

    @property
    def start(self) -> int:
        return self._store.log_start

    @property
    def end(self) -> int:
        return self._store.log_end

    @property
    def safe(self) -> int:
        replica = self._replica
        return min(replica.synced, self.end) if self._store.waits_for_device else self.end

    @property
    def commit(self) -> int:
        return self._replica.saved.commit

    @property
    def last_epoch(self) -> int:
        return self._replica.histories.records.latest

    @property
    def damaged_at(self) -> int | None:
        return self._replica.damaged_at

    @property
    def has_failed(self) -> bool:
        return self._store.has_failed

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return _epoch_end(self._replica.histories.records, epoch, self.end)

    def begin_epoch(self, epoch: int) -> None:
        self._replica.begin_epoch(epoch)

    def follow(self) -> None:
        self._replica.follow()

    def read_range(self, offset: int, max_size: int) -> tuple[bytes, int]:
        frames: list[bytes] = []
        size, end = 0, self.end
        while offset < end:
            try:
                copied = self._store.read_write(offset, max_size - size)
            except CorruptionError:
                if frames:
                    break  # the next call says so
                known = self._replica.damaged_at
                self._replica.damaged_at = offset if known is None else min(known, offset)
                raise
            frame = encode_write(copied)
            size += len(frame)
            if frames and size > max_size:
                break
            frames.append(frame)
            offset = copied.write.end
        return b"".join(frames), offset

    def append_range(self, data: bytes) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            is_empty = self.start == self.end
            writes = decode_writes(data, store.shard.name, self.end, is_empty=is_empty)
            known = replica.histories.records
            epochs = EpochTable.from_list(known.to_list())
            for write, _ in writes:
                if write.epoch < epochs.latest:
                    raise CorruptionError(
                        store.shard.name,
                        position=write.first,
                        reason=f"a write of epoch {write.epoch} after one of {epochs.latest}",
                    )
                epochs.add(write.epoch, max(write.first, self.end))
            is_new = len(epochs) != len(known)
            histories = replica.histories._replace(records=epochs) if is_new else None
            if writes:
                store.append_writes(writes, Update(replica.saved, histories=histories))
            replica.histories = histories or replica.histories
        store.sweep_some()

    def cut(self, offset: int) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            saved = replica.saved
            end = max(store.log_start, min(store.write_border(offset), offset))
            epochs = EpochTable.from_list(replica.histories.records.to_list())
            epochs.truncate_from(end)
            histories = replica.histories._replace(records=epochs)
            if end < saved.commit:
                # What is copied again may lack what operations did: they act again.
                saved = saved._replace(commit=end, acted=saved.operations_start)
            store.cut_records(end, Update(saved, histories=histories))
            replica.saved, replica.histories = saved, histories
            replica.synced = min(replica.synced, end)
            replica.cuts += 1
            if replica.damaged_at is not None and replica.damaged_at >= end:
                replica.damaged_at = None
            replica.wake()

    def find_damage(self, offset: int) -> None:
        size, offset = 0, max(offset, self.start)
        try:
            while offset < self.end and size < _SEARCH_SIZE and self.damaged_at is None:
                data, offset = self.read_range(offset, _READ_SIZE)
                size += len(data)
        except CorruptionError:
            return  # `read_range` has noted it

    def give_up_damaged(self, offset: int) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            damaged_at = replica.damaged_at
            if damaged_at is not None:
                store.drop_damaged(max(damaged_at, offset))
                if damaged_at >= offset:
                    replica.damaged_at = None

    def restart_at(self, offset: int) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            saved = replica.saved._replace(commit=offset, acted=replica.saved.operations_start)
            _restart_records(replica, offset, Update(saved))

    def set_commit(self, offset: int) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            assert replica.saved.commit <= offset <= store.log_end, (
                "a commit offset never goes back"
            )
            replica.saved = replica.saved._replace(commit=offset)
            replica.act()
            store.save(Update(replica.saved))
            replica.wake()


def _epoch_end(epochs: EpochTable, epoch: int, end: int) -> tuple[int, int]:
    """Return where an epoch ends. A log that has no record, since it began or began anew, does not
    know who wrote before: what others have before its end is not in question."""
    return epochs.end_of(epoch, end) if len(epochs) else (epoch, end)


def _restart_records(replica: Replica, offset: int, update: Update) -> None:
    """Drop all records; the lock is held."""
    histories = replica.histories if update.histories is None else update.histories
    histories = histories._replace(records=EpochTable())
    replica.store.restart_records(offset, update._replace(histories=histories))
    replica.saved, replica.histories = update.saved, histories
    replica.synced = offset
    replica.damaged_at = None
    replica.cuts += 1
    replica.wake()


class OperationsLog:
    """The operations; see `penstock.engine.row_replica.operations`."""

    damaged_at: None = None
    has_failed = False
    """The records are on the same device, and say so."""

    def __init__(self, replica: Replica) -> None:
        self._replica: Final = replica
        self._store: Final = replica.store

    @property
    def start(self) -> int:
        return self._replica.saved.operations_start

    @property
    def end(self) -> int:
        return self._replica.saved.operations_end

    @property
    def safe(self) -> int:
        replica = self._replica
        if self._store.waits_for_device:
            return min(replica.operations_synced, self.end)
        return self.end

    @property
    def commit(self) -> int:
        return self._replica.saved.operations_commit

    @property
    def last_epoch(self) -> int:
        return self._replica.histories.operations.latest

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return _epoch_end(self._replica.histories.operations, epoch, self.end)

    def begin_epoch(self, epoch: int) -> None:
        self._replica.begin_epoch(epoch)

    def follow(self) -> None:
        self._replica.follow()

    def read_range(self, offset: int, max_size: int) -> tuple[bytes, int]:
        with self._store.lock:
            first = offset - self._replica.saved.operations_start
            entries = self._replica.operations[first:]
        frames: list[bytes] = []
        size = 0
        for index, entry in enumerate(entries, offset):
            frame = encode_operation(index, entry)
            size += len(frame)
            if frames and size > max_size:
                break
            frames.append(frame)
        return b"".join(frames), offset + len(frames)

    def append_range(self, data: bytes) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            entries = decode_operations(data, store.shard.name, self.end)
            first = entries[0].operation if entries else None
            if (
                isinstance(first, Snapshot)
                and replica.operations
                and first.epoch_before != replica.operations[-1].epoch
            ):
                # This log ends where the leader's begins, and what is in it is not the leader's.
                self._restart(self.end)
            replica.append_operations(entries)

    def cut(self, offset: int) -> None:
        self._replica.cut_operations(offset)

    def find_damage(self, offset: int) -> None:
        """See `give_up_damaged`."""

    def give_up_damaged(self, offset: int) -> None:
        """An operation is never damaged: RocksDB checks its rows when the shard is opened."""

    def restart_at(self, offset: int) -> None:
        with self._store.lock:
            self._store.check_exists()
            self._restart(offset)

    def _restart(self, offset: int) -> None:
        """Begin anew at `offset`. What the operations before did to the records is not known here:
        they are copied again, as the leader has them."""
        replica, store = self._replica, self._store
        old = replica.saved
        saved = Saved(store.log_start, offset, offset, offset, offset, offset)
        histories = Histories(EpochTable(), EpochTable())
        dropped = (old.operations_start, old.operations_end)
        _restart_records(replica, store.log_start, Update(saved, (), dropped, histories))
        replica.truncate_operations(0)
        replica.operations_synced = offset

    def set_commit(self, offset: int) -> None:
        replica, store = self._replica, self._store
        with store.lock:
            store.check_exists()
            assert replica.saved.operations_commit <= offset <= self.end, "it never goes back"
            replica.saved = replica.saved._replace(operations_commit=offset)
            replica.act()
            store.save(Update(replica.saved))
            replica.wake()
        store.sweep_some()
