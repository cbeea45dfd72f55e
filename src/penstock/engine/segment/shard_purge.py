"""Forgets deleted shards for good, once the log holds nothing that speaks of them.

The state of a deleted shard says that its records in the log are dead: without it, a replay would
bring them back. When the last file of the log is gone in which the shard was named, nothing can,
and its state goes, too; else a store in which topics come and go would grow for ever.

Its directories go first, on the device: a file that came back after a power cut would be taken for
one of a later shard of that name.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.segment.opening import StoreParts
from penstock.engine.segment.shard_directories import remove_directories
from penstock.engine.segment.shard_log import ShardLog
from penstock.log import get_logger

_log: Final = get_logger(__name__)


def purge_shards(parts: StoreParts) -> int:
    """Forget the deleted shards of which the log holds nothing; return how many that were."""
    with parts.checkpointer.pause:
        start = parts.log.files.start
        gone = [log for log in parts.table if log.state.is_gone(start)]
        if not gone:
            return 0
        for log in gone:
            with log.lock:
                log.units.remove_all()
                log.times.note_removed()
        remove_directories(parts.disk, parts.paths, [(log.shard, log.kind) for log in gone])
        return sum(_forget(parts, log) for log in gone)


def _forget(parts: StoreParts, log: ShardLog) -> bool:
    with parts.log.lock:
        if not log.state.dropped:
            return False  # created again meanwhile
        parts.checkpointer.note_gone(log.shard)
        parts.table.remove(log)
    _log.debug("shard_forgotten", shard=log.shard.name)
    return True
