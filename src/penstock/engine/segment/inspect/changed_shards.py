"""Which shards a writer cut or deleted while they were looked at: findings about them say nothing.

A writer publishes what it does a moment later than it does it, so what a check took for damage may
be the files of a shard that was deleted and created again. Two things tell:

  * the published state: a cut, and most deletions, add a position to it
  * the log, which has the line of a deletion or a cut before the files of the shard change

What was damaged before stays damaged, and stays found, in any shard that lives on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.codec.codes import REPLAY_LEAP, REPLAY_TRUNCATE_BATCH_QUEUE
from penstock.codec.format import CONTROL_SUFFIX, Damage, RawRecord
from penstock.codec.select import core
from penstock.engine.segment.control.control_records import control_shard
from penstock.engine.segment.control.shard_catalog import (
    CATALOG,
    DropEntry,
    RestartEntry,
    TruncateEntry,
    decode_entry,
)
from penstock.engine.segment.paths import StorePaths, sums_root
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.errors import RequestError
from penstock.record import QueueKind, ShardId

_HOST: Final = bytes(8)
_RECORD_SIZE_MAX: Final = 1 << 31


def changed_shards(before: Snapshot, after: Snapshot) -> set[ShardId]:
    """Return the shards that `before` shows otherwise than they were at some time up to `after`."""
    if before.known is None or after.known is None:
        return set()
    old, new = before.known.states, after.known.states
    changed = {
        shard
        for shard in old.keys() | new.keys()
        if shard not in old or shard not in new or _was_truncated(old[shard], new[shard])
    }
    for shard, position in _changes(after, _known_until(before)):
        state = old.get(shard)
        if state is None or position >= state.folded_until:
            changed.add(shard)
    return changed


def _was_truncated(old: ShardState, new: ShardState) -> bool:
    # Fewer truncations are nothing new: the log begins after them.
    return old.dropped != new.dropped or not set(new.truncations) <= set(old.truncations)


def _known_until(snapshot: Snapshot) -> int:
    """Return the position below which the states know of every change: that of the journal."""
    assert snapshot.known is not None
    journal = snapshot.known.states.get(CATALOG)
    return 0 if journal is None else journal.folded_until


def _changes(snapshot: Snapshot, start: int) -> Iterator[tuple[ShardId, int]]:
    """Yield which shards were deleted or cut after a position of the log, and where it says so."""
    files = snapshot.files
    appender = core.Appender(_HOST, _HOST, _RECORD_SIZE_MAX)
    position = max(start, files.start)
    while position < files.stop:
        base = files.base_of(position)
        buffer = files.buffer(base)
        after, _, status, _, specials = appender.replay(
            buffer, base, position, base + len(buffer), False, CONTROL_SUFFIX, False, files.strict
        )
        names = {handle: ShardId(topic, n) for handle, topic, n, _, _, _ in appender.queues()}
        for handle in appender.dirty_queues():
            appender.drop_units(handle, appender.next_unit(handle))
        cut = specials.pop() if status == REPLAY_TRUNCATE_BATCH_QUEUE else None
        leap = specials.pop() if status == REPLAY_LEAP else None
        for record_position, handle in specials:
            if names[handle] == CATALOG:
                yield from _change(
                    core.decode_raw(buffer, base, record_position, True), record_position
                )
        if cut is not None:
            raw = core.decode_raw(buffer, base, cut[0], True)
            if isinstance(raw, Damage):
                return
            appender.truncate_queue(cut[1], raw.queue_offset, appender.next_unit(cut[1]))
        elif leap is not None:
            appender.remove_queue(leap[1])  # it begins anew
        elif after < base + len(buffer):
            return  # the end, or damage, after which nothing is known
        position = after


def _change(raw: RawRecord | Damage, position: int) -> Iterator[tuple[ShardId, int]]:
    if isinstance(raw, Damage):
        return
    try:
        line = decode_entry(raw.body)
    except RequestError:
        return
    if isinstance(line, DropEntry):
        yield line.shard, position
        yield control_shard(line.shard), position
    elif isinstance(line, TruncateEntry | RestartEntry):
        yield line.shard, position


def shard_of(paths: StorePaths, path: str) -> ShardId | None:
    """Return the shard that a derived file belongs to, and None for files of all shards."""
    roots = [paths.times]
    for kind in QueueKind:
        roots += [paths.queue_root(kind), f"{paths.sums}/{sums_root(kind)}"]
    for root in roots:
        topic, _, rest = path.removeprefix(f"{root}/").partition("/")
        partition = rest.partition("/")[0]
        if path.startswith(f"{root}/") and partition.isascii() and partition.isdigit():
            return ShardId(topic, int(partition))
    return None
