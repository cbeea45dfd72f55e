"""Creation and deletion of shards; each is a control record of the log."""

from __future__ import annotations

from typing import Final

from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.control.shard_commands import ShardCommands
from penstock.engine.segment.control.shard_gc import ShardGarbageCollector
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.errors import AlreadyExistsError, NotSupportedError
from penstock.record import Flush, QueueKind, ShardId


class ShardLifecycle:
    """Creates and deletes shards."""

    def __init__(
        self, parts: StoreParts, commands: ShardCommands, garbage: ShardGarbageCollector
    ) -> None:
        self._log: Final = parts.log
        self._table: Final = parts.table
        self._checkpointer: Final = parts.checkpointer
        self._commands: Final = commands
        self._garbage: Final = garbage

    def create(
        self, shard: ShardId, kind: QueueKind, flush: Flush, config: bytes, start_offset: int = 0
    ) -> bool:
        """Create a shard whose first record gets `start_offset`; return False when it exists."""
        with self._log.lock:
            shard_log = self._table.find(shard)
            if shard_log is None:
                unit = start_offset if kind is QueueKind.SIMPLE else 0
                state = ShardState(kind, start_offset)
                shard_log = self._table.add(shard, state, start_offset, unit)
            elif shard_log.state.dropped:
                if start_offset:
                    raise NotSupportedError(
                        f"shard {shard.name!r} was deleted from this store; it can begin again at "
                        f"offset 0 only, not at {start_offset}: use another data directory"
                    )
                _revive(shard_log, kind)
            elif shard_log.kind is not kind:
                raise AlreadyExistsError(
                    f"shard {shard.name!r} exists with {shard_log.kind.value} queues"
                )
            else:
                return False
            shard_log.set_flush(flush)
            shard_log.state.born_at = self._log.end + 1
        try:
            self._commands.keep(shard_log, config)
        except BaseException:
            shard_log.state.drop(self._log.end)
            shard_log.update_admission()
            raise
        return True

    def delete(self, shard: ShardId) -> bool | None:
        """Delete a shard; return whether the journal says so (see `ShardCommands.drop`), or None
        when another caller was faster."""
        with self._checkpointer.pause:
            if not self._table.has_user_shard(shard):
                return None
            log = self._table.get(shard)
            written = self._commands.drop(log)
        self._garbage.mark_deleted(log)
        companion = self._table.find(control.control_shard(shard))
        if companion is not None:
            self._garbage.mark_deleted(companion)
        return written


def _revive(log: ShardLog, kind: QueueKind) -> None:
    if log.kind is not kind:
        raise NotSupportedError(
            f"shard {log.shard.name!r} had {log.kind.value} queues before it was deleted; "
            "give the new one another name"
        )
    log.revive()
