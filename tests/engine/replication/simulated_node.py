"""A node of the simulation: the real core, a process that may stop, and its disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from tests.engine.replication.simulated_log import Entry, OnGivenUp, SimulatedLog

from penstock.engine.replication import (
    Assigned,
    Committed,
    CoreOptions,
    LeaveInSync,
    ProposeInSync,
    Removed,
    ReplicaCore,
    Send,
    SyncLog,
)
from penstock.engine.replication.effects import Failed
from penstock.engine.replication.log import ReplicaLog

if TYPE_CHECKING:
    import random

    from tests.engine.replication.simulated_metadata import Snapshot
    from tests.engine.replication.simulator import World

STREAMS: Final = 2
OPTIONS: Final = CoreOptions(
    lag_s=1.0,
    wait_s=0.3,
    reply_s=0.8,
    retry_s=0.4,
    give_up_s=1_000.0,
    reply_size=400,
    shard_size=120,
)
SHARD: Final = "t_0"


class Violation(AssertionError):  # noqa: N818 - what it is
    pass


class Waiter(Struct):
    stream: int
    end: int
    value: int


class Log(ReplicaLog, Protocol):
    """A log, and what the simulation does to it and sees of it; see `SimulatedLog`."""

    on_given_up: OnGivenUp

    @property
    def is_sync(self) -> bool: ...
    @property
    def records(self) -> list[Entry]: ...
    @property
    def is_flipped(self) -> bool: ...
    @property
    def is_tail_cut(self) -> bool:
        """Whether the last start has found that the end of the log was damaged: the node cannot
        prove that it has what it had."""
        ...

    def append(self, value: int) -> int: ...
    def sync(self) -> None: ...
    def restart(self) -> None: ...
    def lose_power(self, chance: random.Random) -> None: ...
    def flip(self, offset: int) -> None: ...
    def trim(self, chance: random.Random) -> None:
        """Drop some of the oldest committed records."""
        ...

    def fail_device(self) -> None:
        """Write nothing more until the next start."""
        ...

    def jump_clock(self, milliseconds: int) -> None:
        """Let the clock that stamps records go back or forth."""
        ...

    def found_by_key(self) -> list[tuple[int, Entry]]:
        """Return the committed records that an index finds, with their offsets."""
        ...


class MakeLogs(Protocol):
    def __call__(self, node_id: int, *, is_sync: bool) -> Sequence[Log]: ...


def make_simulated_logs(node_id: int, *, is_sync: bool) -> Sequence[Log]:
    return [SimulatedLog(is_sync=is_sync) for _ in range(STREAMS)]


class SimulatedNode:
    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.logs: Sequence[Log] = world.make_logs(node_id, is_sync=world.metadata.is_sync)
        for stream, log in enumerate(self.logs):
            log.on_given_up = partial(world.check_given_up, node_id, stream)
        self.rate = world.random.uniform(0.99, 1.01)
        self.ahead = 0.0
        """How far the clock of this node has jumped."""
        self.is_up = True
        self.is_paused = False
        self.held: list[Callable[[], None]] = []
        """What happens when a paused process goes on."""
        self.run = 0
        self.broker_epoch = 0
        self.is_registered = True
        self.is_unproven = False
        """It lost power, and the metadata do not know yet."""
        self.version = -1
        self.lease_until = 0.0
        self.waiters: list[Waiter] = []
        self.seen = [0] * STREAMS
        self.core = ReplicaCore(node_id, lambda _: self.logs, OPTIONS)
        self.core.registered(0)

    @property
    def now(self) -> float:
        return self.world.now * self.rate + self.ahead

    def call(self, action: Callable[[], None]) -> None:
        """Do something in this process: now, or when it goes on."""
        if not self.is_up:
            return
        if self.is_paused:
            self.held.append(action)
            return
        action()
        self._carry_out()

    def _carry_out(self) -> None:
        for effect in self.core.drain_effects():
            match effect:
                case Send(to, message):
                    self.world.send(self.id, to, message)
                case ProposeInSync():
                    self.world.propose(self, effect)
                case LeaveInSync():
                    self.world.leave(self, effect)
                case Committed(_, commits, is_leader):
                    self._committed(commits, is_leader=is_leader)
                case Assigned(assignment):
                    if assignment.leader == self.id:
                        self.world.check_leader(self, assignment.leader_epoch)
                case SyncLog() | Removed():
                    pass  # disks sync when the simulation says so
                case Failed() if self.has_failed:
                    pass
                case _:
                    raise Violation(f"node {self.id}: {effect}")

    def _committed(self, commits: tuple[int, ...], *, is_leader: bool) -> None:
        for stream, commit in enumerate(commits):
            self.world.note_commit(self, stream, commit)
        if is_leader:
            done = [w for w in self.waiters if commits[w.stream] >= w.end]
            for waiter in done:
                self.waiters.remove(waiter)
                self.world.acknowledge(waiter)

    def apply(self, snapshot: Snapshot) -> None:
        if snapshot.version <= self.version:
            return
        self.version = snapshot.version
        led = set(self.core.leaders)
        self.core.apply(self.now, [snapshot.assignment], snapshot.brokers)
        if led and not self.core.leaders:
            self.waiters.clear()

    @property
    def has_failed(self) -> bool:
        return any(log.has_failed for log in self.logs)

    def write(self, stream: int, value: int, *, acks_all: bool) -> None:
        leader = self.core.leaders.get(SHARD)
        if leader is None or self.has_failed:
            return
        if acks_all and len(leader.set.confirmed) < leader.set.min_insync:
            return
        log = self.logs[stream]
        end = log.append(value)
        if acks_all:
            self.waiters.append(Waiter(stream, end, value))
        if log.is_sync:
            self.sync_later()
        self.core.appended(self.now, SHARD)
        if not acks_all and self.holds_lease():
            self.world.check_lease(self)

    def read(self, chance: random.Random) -> None:
        """Read a record for a client."""
        log = self.logs[0]
        if self.core.leaders.get(SHARD) is None or log.commit <= log.start:
            return
        offset = chance.randrange(log.start, log.commit)
        entry = log.records[offset - log.start]
        if entry[1] < 0:
            log.find_damage(offset)
            self.core.appended(self.now, SHARD)
            return
        self.world.check_read(self, offset, entry)

    def holds_lease(self) -> bool:
        return self.now < self.lease_until

    def sync_later(self) -> None:
        run = self.run

        def sync() -> None:
            if self.run == run:
                self.call(self._sync)

        self.world.after(self.world.random.uniform(0.001, 0.05), sync)

    def _sync(self) -> None:
        if self.has_failed:
            return
        for log in self.logs:
            log.sync()
        self.core.appended(self.now, SHARD)

    def stop(self, *, with_power: bool) -> None:
        self.is_up = False
        self.is_paused = False
        self.held.clear()
        self.waiters.clear()
        self.run += 1
        for log in self.logs:
            if with_power:
                log.restart()
            else:
                log.lose_power(self.world.random)
        if not with_power or any(log.is_tail_cut for log in self.logs):
            self.is_unproven = True

    def start(self) -> None:
        self.is_up = True
        self.version = -1
        self.lease_until = 0.0
        self.is_registered = False
        self.core = ReplicaCore(self.id, lambda _: self.logs, OPTIONS)
        for log in self.logs:
            for number, (_, value) in enumerate(log.records, log.start):
                if value < 0:  # a start checks what it reads
                    log.find_damage(number)
                    break
