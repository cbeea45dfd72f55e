"""What is done to shards beyond appending, as records of the log: commands and catalog lines.

A command is appended to the companion queue of its shard and applied under one hold of the log's
lock: at any position of the log, the states are what a replay up to there would make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET

from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.control.shard_catalog import (
    CATALOG,
    CreateEntry,
    DropEntry,
    RestartEntry,
    TruncateEntry,
    encode_entry,
)
from penstock.engine.segment.log.write_manager import check_led, check_not_sealed
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.recovery.recovery import fold_appended
from penstock.errors import DiskFullError, UnknownShardError
from penstock.record import Offset, QueueKind


class ShardCommands:
    def __init__(self, parts: StoreParts) -> None:
        self._log: Final = parts.log
        self._table: Final = parts.table
        self._writer: Final = parts.writer
        self._checkpointer: Final = parts.checkpointer

    def set_config(self, log: ShardLog, config: bytes) -> None:
        if log.state.config != config:
            self.keep(log, config)
        else:
            log.state.config = config  # the same object for all shards that are kept alike

    def keep(self, log: ShardLog, config: bytes, *, has_ended: bool = False) -> None:
        """Write into the journal that the shard exists, and with `has_ended` that it was replicated
        and is not any more."""
        shard, start = log.shard, int(log.state.floor_offset)
        line = CreateEntry(
            topic=shard.topic,
            partition=shard.partition,
            kind=log.kind,
            config=config,
            born_at=log.state.born_at,
            start_offset=start if start and start == log.next_offset else UNSET,
            replicated=log.state.is_replicated or (False if has_ended else UNSET),
        )
        journal, record = self._journal(), encode_entry(line)
        appender = self._log.appender

        def append() -> int:
            offset = appender.append(journal.handle, record, self._writer.now(), journal.epoch)
            if offset >= 0:
                log.state.config = config
                self._checkpointer.touch(log)
            return offset

        self._writer.run(journal, append)

    def run(self, log: ShardLog, command: control.Command) -> None:
        """Write a control record to the companion queue, then do what it says."""
        companion = self.companion(log)
        record = control.encode(command)
        appender = self._log.appender

        def append() -> int:
            offset = appender.append(companion.handle, record, self._writer.now(), companion.epoch)
            if offset >= 0:
                companion.begin_epoch(offset)
                self._apply(log, command, offset)
                self._checkpointer.touch(log)
            return offset

        self._writer.run(companion, append)

    def copy(self, log: ShardLog, data: bytes | memoryview) -> int:
        """Append records as another log holds them, with the epochs of their own leaders; return
        the first offset."""

        def append() -> int:
            check_not_sealed(log)
            start = self._log.end
            offset = self._log.appender.append_encoded(log.handle, data, self._log.files.strict)
            if offset >= 0:
                self._fold(log, start)
            return offset

        return self._writer.run(log, append)

    def submit(
        self, log: ShardLog, commands: Callable[[int], Sequence[control.Command]]
    ) -> int | None:
        """Write control records to the companion queue of a replicated shard that is led here, all
        or none; return the offset after them, or None where there is nothing to write. `commands`
        returns them, given the offset of the first. They act when they are committed (`apply`)."""
        companion = self.companion(log)
        appender = self._log.appender
        count = 0

        def append() -> int:
            nonlocal count
            check_led(companion)
            records = [control.encode(command) for command in commands(companion.next_offset)]
            count = len(records)
            if not records:
                return 0
            offset = appender.append_many(
                companion.handle, records, self._writer.now(), companion.epoch, None
            )
            if offset >= 0:
                companion.begin_epoch(offset)
            return offset

        first = self._writer.run(companion, append)
        return first + count if count else None

    def apply(self, log: ShardLog, command: control.Command, offset: int) -> None:
        """Do what a committed command of the companion queue says."""
        self._apply(log, command, offset)
        self._checkpointer.touch(log)

    def copy_replica(self, log: ShardLog, data: bytes) -> None:
        """Append records of the shard's leader, as `copy` does; but a sealed shard takes them, no
        command is done, and the caller waits for the device if it must."""

        def append() -> int:
            if log.state.dropped:
                raise UnknownShardError(log.shard.name)
            start = self._log.end
            offset = self._log.appender.append_encoded(log.handle, data, self._log.files.strict)
            if offset >= 0:
                self._fold(log, start)
            return offset

        self._writer.run_unsynced(append)

    def restart(self, log: ShardLog, offset: int) -> None:
        """Drop all records of a shard, which goes on at `offset`; the journal says so before the
        next record. The caller holds the checkpointer's `pause`."""
        journal = self._journal()
        topic, partition = log.shard
        line = encode_entry(RestartEntry(topic=topic, partition=partition, offset=offset))
        appender = self._log.appender

        def append() -> int:
            written = appender.append(journal.handle, line, self._writer.now(), journal.epoch)
            if written >= 0:
                self._checkpointer.touch(log)
                log.restart_at(offset)
            return written

        self._writer.run(journal, append)

    def _fold(self, log: ShardLog, start: int) -> None:
        """Learn what records say that were copied from another node's log: producers, epochs,
        commands. They lie from `start` on; the caller holds the log's lock."""
        for command, offset in fold_appended(self._log, log, start):
            data = self._table.find(control.data_shard(log.shard))
            if data is not None:
                self._apply(data, command, offset)
                self._checkpointer.touch(data)

    def cut(self, log: ShardLog, offset: int) -> tuple[int, bool]:
        """Cut the tail of a shard; return where it ends now, and whether the journal says so: on a
        full disk only the state does. The caller holds the checkpointer's `pause`, makes a
        checkpoint before the next record unless the journal says so, then trims the files."""
        journal = self._journal()
        appender = self._log.appender
        end = 0

        def append() -> int:
            nonlocal end
            end = log.end_if_truncated(offset)
            if end >= log.next_offset:
                return 0
            topic, partition = log.shard
            line = encode_entry(TruncateEntry(topic=topic, partition=partition, offset=end))
            written = appender.append(journal.handle, line, self._writer.now(), journal.epoch)
            if written >= 0:
                self._truncate(log, end)
            return written

        try:
            self._writer.run(journal, append)
        except DiskFullError:
            with self._log.lock:
                end = log.end_if_truncated(offset)
                self._truncate(log, end)
            return end, False
        return end, True

    def _truncate(self, log: ShardLog, offset: int) -> None:
        self._checkpointer.touch(log)
        if offset < log.next_offset:
            log.cut(offset, with_files=False)
            log.state.add_truncation(self._log.end, offset)

    def drop(self, log: ShardLog) -> bool:
        """Delete a shard and its companion; return whether the journal says so. On a full disk,
        which this may help to free, only the states do: the caller must save them.

        The caller holds the checkpointer's `pause`, as for `cut`.
        """
        journal = self._journal()
        record = encode_entry(DropEntry(topic=log.shard.topic, partition=log.shard.partition))
        appender = self._log.appender

        def append() -> int:
            offset = appender.append(journal.handle, record, self._writer.now(), journal.epoch)
            if offset >= 0:
                self._mark_dropped(log)
            return offset

        try:
            self._writer.run(journal, append)
        except DiskFullError:
            with self._log.lock:
                self._mark_dropped(log)
            return False
        return True

    def delete_before(self, log: ShardLog, offset: int) -> bool:
        """Let a shard begin at `offset`; return whether the log says so. On a full disk, which
        this may help to free, only the state does: the caller must save it."""
        try:
            self.run(log, control.DeleteBefore(offset=Offset(offset)))
        except DiskFullError:
            with log.lock:
                log.state.drop_before(offset)
                log.update_admission()
            self._checkpointer.touch(log)
            return False
        return True

    def _mark_dropped(self, log: ShardLog) -> None:
        for shard_log in (log, self._table.find(control.control_shard(log.shard))):
            if shard_log is not None and not shard_log.state.dropped:
                self._checkpointer.touch(shard_log)
                shard_log.drop(self._log.end)

    @staticmethod
    def _apply(log: ShardLog, command: control.Command, offset: int) -> None:
        with log.lock:
            log.state.apply(command, offset)
            log.update_admission()

    def companion(self, log: ShardLog) -> ShardLog:
        """Return the companion queue of a shard; make it if there is none."""
        name = control.control_shard(log.shard)
        with self._log.lock:
            companion = self._table.find(name)
            if companion is None:
                companion = self._table.add(name, ShardState(QueueKind.SIMPLE), 0, 0)
            elif companion.state.dropped:
                companion.revive()
                log.state.control_offset = Offset(0)
        companion.set_flush(log.flush)
        return companion

    def _journal(self) -> ShardLog:
        catalog = self._table.find(CATALOG)
        if catalog is None:
            with self._log.lock:
                catalog = self._table.find(CATALOG)
                if catalog is None:
                    catalog = self._table.add(CATALOG, ShardState(QueueKind.SIMPLE), 0, 0)
        return catalog
