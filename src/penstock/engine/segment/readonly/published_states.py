"""The shards' states as a reader in another process takes them.

    penstock/shards/    as of the newest checkpoint, durable
    penstock/live/      refreshed twice a second while a writer runs

Either may be the newer one: a checkpoint can come between two refreshes, and a writer that was
killed leaves both. So the newest state is chosen shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.state_files import StateFiles, bucket_of
from penstock.engine.segment.recovery.checkpoint import read_durable
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk
from penstock.record import ShardId

_REASON: Final = "these states cannot be read; opening the store for writing builds them anew"


class KnownStates(NamedTuple):
    """The newest state of every shard, and the files of states that cannot be believed."""

    states: dict[ShardId, ShardState]
    damaged: dict[int, str]
    """Bucket to path: shards of such a bucket may be missing from `states`."""

    def check(self, shard: ShardId | None = None) -> None:
        """Raise when it cannot be said whether `shard` (or: which shard) exists."""
        if shard is None:
            paths = list(self.damaged.values())
        else:
            paths = [path for bucket, path in self.damaged.items() if bucket == bucket_of(shard)]
        if paths:
            raise CorruptionError(paths[0], position=0, reason=_REASON)


def has_states(disk: Disk, paths: StorePaths) -> bool:
    """Say whether Penstock has written to this store; otherwise it is RocketMQ's own."""
    if disk.exists(paths.derived) or disk.list(paths.shards) or disk.list(paths.live):
        return True
    # A new store in its first half second: it has published nothing yet.
    return disk.exists(paths.abort) and read_durable(disk, paths.durable)[0] > 0


class StateCopies(NamedTuple):
    """Everything that was read, before it is known where the log begins."""

    saved: dict[ShardId, ShardState]
    live: dict[ShardId, ShardState]
    broken: list[str]

    def newest(self, log_start: int) -> KnownStates:
        """Choose the newest state of every shard."""
        states = dict(self.saved)
        for shard, state in self.live.items():
            known = states.get(shard)
            if known is None or _age(state, log_start) >= _age(known, log_start):
                states[shard] = state
        refreshed = {bucket_of(shard) for shard in self.live}
        broken = {int(path.rpartition("/")[2]): path for path in self.broken}
        damaged = {bucket: path for bucket, path in broken.items() if bucket not in refreshed}
        return KnownStates(states, damaged)


def read_states(disk: Disk, paths: StorePaths, expected: Iterable[int]) -> StateCopies:
    """Read all there is. `expected` are the files that the checkpoint names."""
    saved, broken = StateFiles(disk, paths.shards, paths.copies).load_all(expected=expected)
    live, _ = StateFiles(disk, paths.live).load_all(published=True)
    return StateCopies(saved, live, broken)


def _age(state: ShardState, log_start: int) -> tuple[int, ...]:
    """Return what only ever grows while a shard lives. A truncation, or a deletion, takes offsets
    back, but adds a position; one below the start of the log is forgotten some day."""
    cut = max((position for position, _ in state.truncations), default=0)
    return (
        cut if cut > log_start else 0,
        state.folded_until,
        not state.dropped,
        state.control_offset,
        state.latest_offset,
        state.floor_offset,
        state.commit_offset,
    )
