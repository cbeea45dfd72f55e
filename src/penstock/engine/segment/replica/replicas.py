"""The replicated shards of a segment store: their logs, and the commands on shards led here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.codec.deleted_ranges import DeletedRanges
from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.control.control_records import control_shard
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.replica.replica_log import (
    CompanionLog,
    ReplicaParts,
    SegmentReplicaLog,
)
from penstock.errors import DeadlineError, NotLeaderError
from penstock.platform.clock import Clock
from penstock.record import ShardId

COMMAND_DEADLINE_S: Final = 30.0
"""How long a command waits for the replicas in sync."""

FLOOR_WAIT_S: Final = 2.0
"""How long maintenance waits for a shard to begin later: other shards wait, too."""

_OFFSET_MAX: Final = (1 << 63) - 1

Logs = tuple[SegmentReplicaLog, CompanionLog]


class ShardReplicas:
    def __init__(self, parts: ReplicaParts, clock: Clock) -> None:
        self._parts: Final = parts
        self._clock: Final = clock
        self._table: Final = parts.store.table
        self._opening: Final = threading.Lock()
        self._logs: Final[dict[ShardId, tuple[ShardLog, Logs]]] = {}
        self._single: Final[set[ShardId]] = set()
        """Shards of which the metadata said that this is the only copy: what such a shard holds is
        committed, when it gets others."""
        self._deleting: Final[dict[ShardId, list[DeletedRanges]]] = {}
        """Offsets whose deletion waits for other replicas, by call."""
        self._floors: Final[dict[ShardId, tuple[int, int]]] = {}
        """The floor that was asked for last of a shard, and in which term as leader."""
        self.on_command: Callable[[ShardId], None] = _ignore
        """Called when a command was written to the companion of a shard: its end has moved."""
        for log in self._table:
            if log.state.is_replicated and not log.state.dropped:
                self._fold_rest(log)

    def _fold_rest(self, log: ShardLog) -> None:
        """Do what commands say that were committed, but not done when the store was saved."""
        if control.is_control(log.shard):
            return
        companion = self._table.find(control_shard(log.shard))
        if companion is not None and companion.state.is_replicated:
            self.logs(log.shard)[1].fold()

    def logs(self, shard: ShardId) -> Logs:
        """Return the logs of a shard, which is replicated from now on."""
        log = self._table.get(shard)
        known = self._logs.get(shard)
        if known is not None and known[0] is log and log.state.is_replicated:
            return known[1]
        with self._opening:
            known = self._logs.get(shard)
            if known is not None and known[0] is log and log.state.is_replicated:
                return known[1]
            companion = self._parts.commands.companion(log)
            if not (log.state.is_replicated and companion.state.is_replicated):
                self._begin(log, companion)
            logs = (
                SegmentReplicaLog(log, self._parts),
                CompanionLog(companion, log, self._parts),
            )
            self._logs[shard] = (log, logs)
            return logs

    def _begin(self, log: ShardLog, companion: ShardLog) -> None:
        """Let a shard be replicated. What it holds is committed: it had one copy. But a shard with
        records of a leader's epoch was replicated before its state was lost: of what it holds
        nothing is known to be committed."""
        with log.log.lock:
            for part in (log, companion):
                is_known = part.state.newest_epoch == 0 or log.shard in self._single
                part.become_replicated(part.commit if is_known else part.earliest)
        self._parts.commands.keep(log, log.state.config)
        for part in (log, companion):
            self._parts.store.checkpointer.touch(part)

    def close_to_clients(self, shard: ShardId) -> bool:
        """Take no records of clients for a shard whose replication is about to end; return False
        for one that is not replicated."""
        log = self._table.get(shard)
        self._single.add(shard)
        if not log.state.is_replicated:
            return False
        for part in self.logs(shard):
            # Not the companion's own method: those who wait for its commands wait on.
            SegmentReplicaLog.follow(part)
        return True

    def end(self, shard: ShardId) -> None:
        """Keep a shard as one with a single copy, after `close_to_clients` and a sync: all that it
        holds is committed, and all commands of its companion act."""
        log = self._table.get(shard)
        records, companion = self.logs(shard)
        companion.set_commit(companion.end)
        records.set_commit(records.end)
        # A replay of the log takes these commands for ones that were not committed.
        self._parts.checkpoint()
        both = (log, self._parts.commands.companion(log))
        with self._opening, log.log.lock:
            for part in both:
                part.end_replication()
            self._logs.pop(shard, None)
        self._parts.commands.keep(log, log.state.config, has_ended=True)
        for part in both:
            self._parts.store.checkpointer.touch(part)

    def remove(self, shard: ShardId) -> None:
        """The shard was deleted."""
        self._logs.pop(shard, None)
        self._single.discard(shard)
        self._deleting.pop(shard, None)
        self._floors.pop(shard, None)

    # Commands

    def delete_offsets(self, log: ShardLog, offsets: Iterable[int]) -> int:
        """Delete committed records; return how many of them there were that no other call has
        deleted, or is about to."""
        _, companion = self.logs(log.shard)
        with log.deleting:
            end = log.commit
            live = log.state.not_deleted(sorted(n for n in set(offsets) if 0 <= n < end))
            under_way = self._deleting.setdefault(log.shard, [])
            fresh = [n for n in live if not any(n in ranges for ranges in under_way)]
            commands = control.delete_offsets(fresh)
            mine = DeletedRanges.from_list(
                (start, stop) for command in commands for start, stop in command.ranges
            )
            under_way.append(mine)
        try:
            term = companion.terms
            # Others' commands come before this end, too: they are to be done when this returns.
            target = self._submit(log, commands) if commands else companion.end
            if live:
                self._wait(log, companion, target, term)
        finally:
            with log.deleting:
                under_way.remove(mine)
        return len(fresh)

    def delete_before(self, log: ShardLog, offset: int) -> None:
        """Let a shard begin at `offset`, and wait until it does."""
        self._run(log, control.DeleteBefore(offset=offset))

    def seal(self, log: ShardLog) -> None:
        self._run(log, control.Seal())

    def ask_floor(self, log: ShardLog, offset: int) -> None:
        """Let a shard begin at `offset` when the replicas in sync know that; do not wait."""
        _, companion = self.logs(log.shard)
        asked = (offset, companion.terms)
        if self._floors.get(log.shard) != asked:
            self._submit(log, [control.DeleteBefore(offset=offset)])
            self._floors[log.shard] = asked

    def wait_for_floor(self, shard: ShardId) -> None:
        """Wait for the floor that was asked for last, for a moment: it moves later if the replicas
        in sync are slow."""
        log = self._table.get(shard)
        asked = self._floors.get(shard)
        if asked is None or not log.state.is_replicated:
            return
        _, companion = self.logs(shard)
        give_up = self._clock.monotonic() + FLOOR_WAIT_S
        with companion.folded:
            while log.state.floor_offset < asked[0] and companion.terms == asked[1]:
                left = give_up - self._clock.monotonic()
                if left <= 0 or not companion.folded.wait(left):
                    return

    def _run(self, log: ShardLog, command: control.Command) -> None:
        _, companion = self.logs(log.shard)
        term = companion.terms
        self._wait(log, companion, self._submit(log, [command]), term)

    def _submit(self, log: ShardLog, commands: Sequence[control.Command]) -> int:
        end = self._parts.commands.submit(log, lambda _: commands)
        assert end is not None, "there is at least one command"
        self.on_command(log.shard)
        return end

    def restate(self, log: ShardLog) -> None:
        """Write what the commands of a shard have done so far as new commands, if it is led here:
        older ones are not needed any more when these are committed. A new replica gets those that
        the log of its leader still has."""
        if log.is_following:
            return

        def commands(first: int) -> list[control.Command]:
            state = log.state
            if state.control_offset < first:
                return []  # of these, it is not known yet whether they act: the next time
            floor = control.DeleteBefore(offset=state.floor_offset, restates_from=first)
            deleted = control.delete_ranges(state.deleted_between(0, _OFFSET_MAX))
            return [*deleted, *([control.Seal()] if state.sealed else []), floor]

        try:
            if self._parts.commands.submit(log, commands) is not None:
                self.on_command(log.shard)
        except NotLeaderError:
            return

    def _wait(self, log: ShardLog, companion: CompanionLog, end: int, term: int) -> None:
        """Return when the commands before `end` are done."""
        give_up = self._clock.monotonic() + COMMAND_DEADLINE_S
        is_late = False
        with companion.folded:
            while log.state.control_offset < end:
                left = give_up - self._clock.monotonic()
                if companion.terms != term or left <= 0 or is_late:
                    has_lead = companion.terms == term
                    why = f"waited {COMMAND_DEADLINE_S:g} s" if has_lead else "no longer leads it"
                    raise DeadlineError(
                        f"a command on shard {log.shard.name!r} is not known to be committed: "
                        f"this node {why}; the outcome is unknown, read before you repeat it"
                    )
                # A test's clock may stand still.
                is_late = not companion.folded.wait(left)


def _ignore(_: ShardId) -> None:
    pass
