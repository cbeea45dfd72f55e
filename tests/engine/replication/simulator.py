"""A deterministic simulation of replication: the real core and the real rules of the metadata.

One seed decides the whole run: delays, losses, repeats and order of messages, one-way cuts, pauses,
kills, power cuts, flipped bits, clock rates, moves of the leader. After every step the invariants
are checked; `Violation` names the one that does not hold.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Final

from tests.engine.replication.simulated_log import Entry
from tests.engine.replication.simulated_metadata import SimulatedMetadata
from tests.engine.replication.simulated_node import (
    SHARD,
    STREAMS,
    MakeLogs,
    SimulatedNode,
    Violation,
    Waiter,
    make_simulated_logs,
)

from penstock.engine.replication import (
    LeaveInSync,
    ProposeInSync,
)
from penstock.engine.replication.messages import Message

TICK_S: Final = 0.1
BEAT_S: Final = 0.25
LEASE_S: Final = 2.0
SESSION_S: Final = 2.5
CHAOS_S: Final = 12.0
CALM_S: Final = 10.0


class World:
    def __init__(
        self, seed: int, *, nodes: int = 3, make_logs: MakeLogs = make_simulated_logs
    ) -> None:
        self.make_logs = make_logs
        self.random = random.Random(seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        chance = self.random
        self.metadata = SimulatedMetadata(
            nodes, min_insync=nodes // 2 + 1, is_sync=chance.random() < 0.5
        )
        self.nodes = {number: SimulatedNode(self, number) for number in range(1, nodes + 1)}
        self.cuts: set[tuple[int, int]] = set()
        """Directions in which nothing arrives; node 0 is the metadata group."""
        self.loss = chance.choice((0.0, 0.0, 0.02, 0.1))
        self._has_bad_disks = chance.random() < 0.25
        self.reader = random.Random(f"{seed} readers")
        """The clients that read, and the clocks that jump, have numbers of their own: with a new
        kind of them, the rest of a seed stays as it was."""
        self._has_bad_clocks = self.reader.random() < 0.25
        self.devices = random.Random(f"{seed} devices")
        """Devices that fail have numbers of their own, too."""
        self._has_failing_devices = self.devices.random() < 0.25
        self.is_calm = False
        self._arrivals: dict[tuple[int, int], float] = {}
        self.committed: list[list[Entry]] = [[] for _ in range(STREAMS)]
        self.acknowledged = 0
        self._values = 0
        self._beats: dict[int, float] = dict.fromkeys(self.nodes, 0.0)
        self._leaders: dict[int, int] = {}
        """The nodes that led, by leader epoch."""
        self._metadata_version = -1
        self._acknowledged_before = 0

    # Events

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, action))

    def run(self) -> None:
        chance = self.random
        for node in self.nodes.values():
            self._tick(node)
            self._beat(node)
        self._watch()
        self._client()
        self._read()
        if self._has_bad_clocks:
            self._jump()
        if self.reader.random() < 0.3:
            self._trim()
        if self._has_failing_devices:
            self.after(self.devices.uniform(0.5, 6.0), self._fail_device)
        self.after(chance.uniform(0.1, 1.0), self._fault)
        self._run_until(CHAOS_S)
        self._calm_down()
        self._run_until(CHAOS_S + CALM_S)
        self._check_converged()

    def _run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action = heapq.heappop(heap)
            action()
            self._check_sets()

    def _tick(self, node: SimulatedNode) -> None:
        node.call(lambda: node.core.tick(node.now))
        self.after(TICK_S, lambda: self._tick(node))

    # Network

    def _delay(self) -> float:
        chance = self.random
        slow = 0.0 if self.is_calm or chance.random() > 0.05 else chance.uniform(0.0, 0.7)
        return chance.uniform(0.0005, 0.005) + slow

    def _turn(self, source: int, target: int) -> float:
        """Return the delay of a message. In calm times it arrives after those before it, as on a
        connection; otherwise messages overtake each other, as on several ones."""
        delay = self._delay()
        if not self.is_calm:
            return delay
        arrival = max(self.now + delay, self._arrivals.get((source, target), 0.0))
        self._arrivals[source, target] = arrival
        return arrival - self.now

    def _deliver(self, source: int, target: int, action: Callable[[], None]) -> None:
        def arrive() -> None:
            if (source, target) not in self.cuts:
                action()

        if (source, target) in self.cuts or self.random.random() < self.loss:
            return
        self.after(self._turn(source, target), arrive)
        if not self.is_calm and self.random.random() < 0.02:
            self.after(self._delay(), arrive)  # repeated

    def send(self, source: int, target: int, message: Message) -> None:
        node = self.nodes[target]
        self._deliver(
            source,
            target,
            lambda: node.call(lambda: node.core.receive(node.now, source, message)),
        )
        if self.metadata.is_sync:
            self.nodes[source].sync_later()

    # Metadata

    def _beat(self, node: SimulatedNode) -> None:
        def beat() -> None:
            sent_at, run = node.now, node.run
            if not node.is_registered:
                self._register(node)
                return
            epoch = node.broker_epoch

            def granted() -> None:
                if node.run == run:
                    node.lease_until = max(node.lease_until, sent_at + LEASE_S)

            def arrive() -> None:
                if self.metadata.brokers.get(node.id) == epoch:
                    self._beats[node.id] = self.now
                    self._deliver(0, node.id, lambda: node.call(granted))
                    self._push(node)
                elif node.run == run:
                    self._deliver(0, node.id, lambda: node.call(lambda: self._fenced(node, run)))

            self._deliver(node.id, 0, arrive)

        node.call(beat)
        self.after(BEAT_S, lambda: self._beat(node))

    def _fenced(self, node: SimulatedNode, run: int) -> None:
        """A fenced node registers again: it has lost nothing."""
        if node.run == run:
            node.is_registered = False

    def _register(self, node: SimulatedNode) -> None:
        run = node.run

        def registered(epoch: int) -> None:
            if node.run == run and not node.is_registered:
                node.broker_epoch, node.is_registered = epoch, True
                node.core.registered(epoch)
                node.version = -1  # what it ignored before counts now

        def arrive() -> None:
            if node.run != run:
                return
            epoch = self.metadata.register(node.id, is_proven=not node.is_unproven)
            node.is_unproven = False
            self._beats[node.id] = self.now
            self._deliver(0, node.id, lambda: node.call(lambda: registered(epoch)))
            self._push_all()

        self._deliver(node.id, 0, arrive)

    def _watch(self) -> None:
        """What the controller does: fence the nodes that it does not hear of."""
        for node, heard_at in self._beats.items():
            if node in self.metadata.brokers and self.now - heard_at > SESSION_S:
                self.metadata.fence(node)
                self._push_all()
        self.after(TICK_S, self._watch)

    def _push_all(self) -> None:
        for node in self.nodes.values():
            self._push(node)

    def _push(self, node: SimulatedNode) -> None:
        snapshot, run = self.metadata.snapshot(), node.run

        def apply() -> None:
            if node.run == run:
                node.apply(snapshot)

        self._deliver(0, node.id, lambda: node.call(apply))

    def propose(self, node: SimulatedNode, proposal: ProposeInSync) -> None:
        run = node.run

        def refused(partition_epoch: int) -> None:
            if node.run == run:
                node.core.refused(proposal, partition_epoch)

        def arrive() -> None:
            if self.metadata.change(node.id, proposal):
                self._push_all()
                return
            epoch = self.metadata.shard.partition_epoch
            self._deliver(0, node.id, lambda: node.call(lambda: refused(epoch)))

        self._deliver(node.id, 0, arrive)

    def leave(self, node: SimulatedNode, leaving: LeaveInSync) -> None:
        epoch, run = node.broker_epoch, node.run

        def is_last() -> None:
            if node.run == run:
                node.core.is_last(node.now, SHARD)

        def arrive() -> None:
            known = self.metadata.brokers.get(node.id)
            if known != epoch or self.metadata.shard.partition_epoch != leaving.partition_epoch:
                return
            if self.metadata.leave(node.id):
                self._push_all()
            else:
                self._deliver(0, node.id, lambda: node.call(is_last))

        self._deliver(node.id, 0, arrive)

    # Clients

    def _client(self) -> None:
        chance = self.random
        leader = self.metadata.shard.leader
        if leader is None or chance.random() < 0.1:
            leader = chance.choice(list(self.nodes))
        node = self.nodes[leader]
        self._values += 1
        value, stream = self._values, int(chance.random() < 0.2)
        acks_all = chance.random() < 0.8
        node.call(lambda: node.write(stream, value, acks_all=acks_all))
        busy = 0.3 if self.is_calm else 0.06
        self.after(chance.expovariate(1 / busy), self._client)

    def _read(self) -> None:
        chance = self.reader
        node = self.nodes[chance.choice(list(self.nodes))]
        node.call(lambda: node.read(chance))
        self.after(chance.expovariate(1 / 0.1), self._read)

    # Faults

    def _jump(self) -> None:
        """Let the clocks of a node jump: that of its leases ahead, as after a sleep of the machine,
        and that of its records anywhere."""
        if self.is_calm:
            return
        chance = self.reader
        node = self.nodes[chance.choice(list(self.nodes))]
        node.ahead += chance.uniform(0.0, 3.0)
        node.logs[0].jump_clock(chance.randint(-3_600_000, 3_600_000))
        self.after(chance.expovariate(1 / 1.5), self._jump)

    def _fail_device(self) -> None:
        """Let the device of one node fail, until an operator starts the node on another one."""
        if self.is_calm or any(node.has_failed for node in self.nodes.values()):
            return
        chance = self.devices
        node = self.nodes[chance.choice(list(self.nodes))]
        if node.is_up:
            for log in node.logs:
                log.fail_device()
        self.after(chance.uniform(1.0, 5.0), lambda: self._replace_device(node))

    def _replace_device(self, node: SimulatedNode) -> None:
        if node.has_failed and node.is_up:
            node.stop(with_power=True)
            node.start()
        if not self.is_calm:
            self.after(self.devices.expovariate(1 / 2.0), self._fail_device)

    def _trim(self) -> None:
        """Let a node drop committed records: it has them in a tier, or its leader deleted them."""
        chance = self.reader
        node = self.nodes[chance.choice(list(self.nodes))]
        for log in node.logs:
            log.trim(chance)
        self.after(chance.expovariate(1 / 0.7), self._trim)

    def _fault(self) -> None:
        if self.is_calm:
            return
        chance = self.random
        node = chance.choice(list(self.nodes.values()))
        faults = (
            self._kill, self._kill, self._pause, self._cut, self._cut, self._power,
            self._flip, self._move, self._hint,
        )  # fmt: skip
        is_flip = self._has_bad_disks and chance.random() < 0.7
        fault = self._flip if is_flip else chance.choice(faults)
        fault(node)
        self.after(chance.expovariate(1 / (0.2 if is_flip else 0.7)), self._fault)

    def _kill(self, node: SimulatedNode) -> None:
        self._stop(node, with_power=True)

    def _power(self, node: SimulatedNode) -> None:
        self._stop(node, with_power=False)

    def _stop(self, node: SimulatedNode, *, with_power: bool) -> None:
        if not node.is_up:
            return
        node.stop(with_power=with_power)
        for other in self.nodes.values():
            if other is not node and self.random.random() < 0.7:
                self._reset(other, node.id)
        run = node.run
        self.after(self.random.uniform(0.05, 4.0), lambda: self._start(node, run))

    def _reset(self, node: SimulatedNode, peer: int) -> None:
        node.call(lambda: node.core.disconnected(node.now, peer))

    def _start(self, node: SimulatedNode, run: int) -> None:
        if not node.is_up and node.run == run:
            node.start()

    def _hint(self, node: SimulatedNode) -> None:
        """A connection was lost, and the probe found no process."""
        if not node.is_up:
            self.metadata.fence(node.id)
            self._push_all()

    def _pause(self, node: SimulatedNode) -> None:
        if not node.is_up or node.is_paused:
            return
        node.is_paused = True
        run = node.run

        def resume() -> None:
            if node.run == run and node.is_paused:
                node.is_paused = False
                held, node.held = node.held, []
                for action in held:
                    node.call(action)

        self.after(self.random.uniform(0.1, 4.0), resume)

    def _cut(self, node: SimulatedNode) -> None:
        chance = self.random
        others = [0, *(number for number in self.nodes if number != node.id)]
        peers = chance.sample(others, chance.randint(1, len(others)))
        directions = chance.choice(((0,), (1,), (0, 1)))
        cut = {(node.id, p) for p in peers if 0 in directions}
        cut |= {(p, node.id) for p in peers if 1 in directions}
        self.cuts |= cut

        def heal() -> None:
            self.cuts -= cut

        self.after(chance.uniform(0.1, 4.0), heal)

    def _flip(self, node: SimulatedNode) -> None:
        """Damage a record of one replica, while all others are whole."""
        if any(log.is_flipped for other in self.nodes.values() for log in other.logs):
            return
        log = node.logs[0]
        if log.records:
            offset = self.random.randrange(log.start, log.end)
            log.flip(offset)
            if self.random.random() < 0.6:
                log.find_damage(offset)  # a scrub, or a reader

    def _move(self, node: SimulatedNode) -> None:
        self.metadata.move_leader(node.id)
        self._push_all()

    def _calm_down(self) -> None:
        """End all faults; replicas must become equal, and writes succeed."""
        self.is_calm = True
        self.loss = 0.0
        self.cuts.clear()
        for node in self.nodes.values():
            if node.is_paused:
                node.is_paused = False
                held, node.held = node.held, []
                for action in held:
                    node.call(action)
            self._replace_device(node)
            if not node.is_up:
                node.start()
            for log in node.logs:
                for number, (_, value) in enumerate(log.records, log.start):
                    if value < 0:
                        log.find_damage(number)
                        break
        self._acknowledged_before = self.acknowledged

    # Invariants

    def note_commit(self, node: SimulatedNode, stream: int, commit: int) -> None:
        """A node may show the records before `commit` from now on."""
        log, known = node.logs[stream], self.committed[stream]
        if commit > log.end:
            raise Violation(f"node {node.id} committed {commit}, but its log ends at {log.end}")
        while len(known) < commit:
            known.append(log.records[len(known) - log.start])
        first = min(node.seen[stream], commit)
        self._compare(node, stream, first, commit)
        node.seen[stream] = commit
        self._check_sets(always=True)

    def _compare(self, node: SimulatedNode, stream: int, first: int, end: int) -> None:
        log = node.logs[stream]
        first = max(first, log.start)
        end = max(first, end)
        held = log.records[first - log.start : end - log.start]
        for number, (mine, theirs) in enumerate(
            zip(held, self.committed[stream][first:end], strict=True), first
        ):
            if mine[1] == 0 or theirs[1] == 0:
                continue  # lost on every replica
            if (mine[0], abs(mine[1])) != (theirs[0], abs(theirs[1])):
                raise Violation(
                    f"offset {number} of log {stream} is {mine} on node {node.id}, but {theirs} "
                    f"was committed"
                )

    def acknowledge(self, waiter: Waiter) -> None:
        self.acknowledged += 1
        _, value = self.committed[waiter.stream][waiter.end - 1]
        if value != 0 and abs(value) != waiter.value:
            raise Violation(
                f"value {waiter.value} was acknowledged at {waiter.end - 1}, where {value} is"
            )

    def check_read(self, node: SimulatedNode, offset: int, entry: Entry) -> None:
        known = self.committed[0]
        if offset >= len(known):
            raise Violation(f"node {node.id} shows {offset}; {len(known)} records are committed")
        if entry[1] != 0 and known[offset][1] != 0 and abs(known[offset][1]) != entry[1]:
            raise Violation(f"node {node.id} shows {entry} at {offset}, not {known[offset]}")

    def check_leader(self, node: SimulatedNode, epoch: int) -> None:
        leader = self._leaders.setdefault(epoch, node.id)
        if leader != node.id:
            raise Violation(f"nodes {leader} and {node.id} lead under epoch {epoch}")

    def check_given_up(self, node_id: int, stream: int, offset: int, lost: Entry) -> None:
        """A damaged record is given up only when no other replica has it."""
        for other in self.nodes.values():
            log = other.logs[stream]
            is_there = other.id != node_id and log.start <= offset < log.end
            if is_there and log.records[offset - log.start] == lost:
                raise Violation(
                    f"node {node_id} gave up {lost} at {offset}, which node {other.id} has"
                )

    def check_lease(self, node: SimulatedNode) -> None:
        """A leader that answers by its lease is not fenced."""
        if (node.id, node.broker_epoch) in self.metadata.fenced:
            raise Violation(f"node {node.id} acknowledged by its lease after it was fenced")

    def _check_sets(self, *, always: bool = False) -> None:
        """Every replica that may lead without an operator has all committed records."""
        if not always and self.metadata.version == self._metadata_version:
            return
        self._metadata_version = self.metadata.version
        shard = self.metadata.shard
        for number in (*shard.in_sync, *shard.eligible):
            node = self.nodes[number]
            if node.is_unproven and not self.metadata.is_sync:
                continue
            for stream, log in enumerate(node.logs):
                if log.is_flipped or log.damaged_at is not None:
                    continue
                count = len(self.committed[stream])
                if log.end < count:
                    raise Violation(
                        f"node {number} may lead, but its log {stream} ends at {log.end}, and "
                        f"{count} records are committed (set {shard.in_sync}, {shard.eligible})"
                    )
                self._compare(node, stream, max(0, count - 3), count)

    def _check_converged(self) -> None:
        shard = self.metadata.shard
        if shard.leader is None:
            if self._may_be_offline():
                return
            raise Violation(f"no leader after the faults: {shard}")
        ends = {n.id: [(log.end, log.commit) for log in n.logs] for n in self.nodes.values()}
        if set(shard.in_sync) != set(self.nodes):
            raise Violation(f"not all replicas are in sync after the faults: {shard} {ends}")
        if any(log.is_flipped for node in self.nodes.values() for log in node.logs):
            raise Violation("a damaged record was not repaired after the faults")
        self._check_indexes()
        for stream in range(STREAMS):
            count = len(self.committed[stream])
            for node in self.nodes.values():
                self._compare(node, stream, 0, count)
                log = node.logs[stream]
                if log.start + len(log.records) < count:
                    raise Violation(f"node {node.id} lacks committed records: {ends}")
        if self.acknowledged == self._acknowledged_before:
            raise Violation("no write was acknowledged after the faults")

    def _check_indexes(self) -> None:
        until = min(node.logs[0].commit for node in self.nodes.values())
        first, *others = (
            [entry for entry in node.logs[0].found_by_key() if entry[0] < until]
            for node in self.nodes.values()
        )
        for found in others:
            if found and first and found != first:
                raise Violation(f"indexes differ: {set(first) ^ set(found)}")

    def _may_be_offline(self) -> bool:
        """All replicas lost power at some time: an operator has to choose."""
        shard = self.metadata.shard
        return not shard.in_sync and not shard.eligible


def simulate(seed: int, make_logs: MakeLogs = make_simulated_logs) -> World:
    nodes = 5 if seed % 5 == 0 else 3
    world = World(seed, nodes=nodes, make_logs=make_logs)
    world.run()
    return world
