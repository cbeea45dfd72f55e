"""Many nodes with several groups each, in one process, on a network, disks and a clock of our own.

All that happens follows from one seed. Every step checks what Raft promises: one leader a term, the
same state on whoever has applied the same index, nothing acknowledged lost, reads that see all that
was acknowledged before them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from zlib import crc32

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder
from tests.meta.simulated_database import SimulatedDatabase

from penstock.errors import StoreError
from penstock.meta.raft.group.load import RaftTiming, initial_rows
from penstock.meta.raft.group.pending_requests import Proposal
from penstock.meta.raft.group.raft_group import RaftGroup
from penstock.meta.raft.multi_raft import MultiRaft
from penstock.meta.raft.network.frames import Frame, decode_incoming, encode_frame
from penstock.meta.standalone.log import METADATA, offset_group_name
from penstock.meta.state.view import View
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.groups import GroupName, LogLimits

GROUPS: tuple[GroupName, ...] = (METADATA, offset_group_name(0), offset_group_name(1))
TIMING = RaftTiming(election_ticks=6, heartbeat_ticks=2, deadline_ticks=60)
LIMITS = LogLimits(entries_max=12, entries_kept=4, size_max=4_096)
_VALUES = b"values"
_CHAIN = b"chain"


class Append(Struct, frozen=True, array_like=True):
    value: int


class Appended(Struct, frozen=True):
    value: int
    is_new: bool


class Appends:
    """A list that remembers its order, and a checksum of everything ever applied."""

    _encoder = Encoder()
    _values = Decoder(list[int])

    def decode(self, data: bytes) -> Append:
        return Decoder(Append).decode(data)

    def apply(self, view: View, request: Append) -> Appended:
        values = self.read(view.get(_VALUES))
        chain = int.from_bytes(view.get(_CHAIN) or b"\0", "big")
        chain = crc32(self._encoder.encode(request), chain)
        view.put(_CHAIN, chain.to_bytes(4, "big"))
        if request.value in values:
            return Appended(request.value, is_new=False)
        view.put(_VALUES, self._encoder.encode([*values, request.value]))
        view.put(b"row-%08d" % request.value, bytes(60))
        return Appended(request.value, is_new=True)

    def read(self, row: bytes | None) -> list[int]:
        return [] if row is None else self._values.decode(row)


Group = RaftGroup[Append, Appended]


class SimulatedNode:
    def __init__(self, cluster: SimulatedCluster, node_id: int, voters: tuple[int, ...]) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.database = SimulatedDatabase()
        for name in GROUPS[: cluster.group_count]:
            self.database.write(initial_rows(name, voters))
        self.database.sync()
        self.starts = 0
        self.multi: MultiRaft | None = None
        self.groups: list[Group] = []
        self.down_until = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        seed = self.cluster.seed * 1_000_003 + self.node_id * 1_009 + self.starts
        self.multi = MultiRaft(
            self.database,
            node_id=self.node_id,
            seed=seed,
            send=lambda to, frame: self.cluster.send(self.node_id, to, frame),
            timing=TIMING,
            limits=LIMITS,
            chunk_size=256,
        )
        self.groups = [
            self.multi.add_group(name, number, Appends())
            for number, name in enumerate(GROUPS[: self.cluster.group_count])
        ]

    def crash(self, random: Random, down_ticks: int) -> None:
        """The power goes: of what was not synced, any part may be there later."""
        unsynced = len(self.database.batches) - self.database.synced
        self.database = self.database.after_power_cut(random.randint(0, unsynced))
        self._stop(down_ticks)

    def kill(self, down_ticks: int) -> None:
        self.database = self.database.after_kill()
        self._stop(down_ticks)

    def wipe(self) -> None:
        """The disk is replaced: the node begins without a state, as one that joins."""
        self.database = SimulatedDatabase()
        for name in GROUPS[: self.cluster.group_count]:
            self.database.write(initial_rows(name, ()))
        self.database.sync()
        self._stop(1)

    def _stop(self, down_ticks: int) -> None:
        if self.multi is not None:
            self.multi.stop()
        self.multi, self.groups = None, []
        self.down_until = self.cluster.now + down_ticks

    def values(self, group: int) -> list[int]:
        return Appends().read(self.groups[group].reader.get(_VALUES))


class SimulatedCluster:
    def __init__(self, seed: int, nodes: int = 3, groups: int = 2) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.group_count = groups
        self.now = 0
        self._in_flight: list[tuple[int, int, int, int, bytes]] = []
        self._sent = 0
        self.drop_rate = self.repeat_rate = 0.0
        self.delay_max = 1
        self.cut_links: set[tuple[int, int]] = set()
        self.leaders: dict[tuple[int, int], int] = {}
        self.states: dict[tuple[int, int], int] = {}
        self.acknowledged: list[dict[int, None]] = [{} for _ in range(groups)]
        self._attempted = 0
        self._seen: dict[tuple[int, int], int] = {}
        voters = tuple(range(1, nodes + 1))
        self.nodes = {node: SimulatedNode(self, node, voters) for node in voters}

    # -- the world --------------------------------------------------------------------------------

    def send(self, sender: int, to: int, frame: Frame) -> None:
        if (sender, to) in self.cut_links or self.random.random() < self.drop_rate:
            return
        copies = 2 if self.random.random() < self.repeat_rate else 1
        for _ in range(copies):
            self._sent += 1
            due = self.now * 4 + self.random.randint(1, self.delay_max)
            heappush(self._in_flight, (due, self._sent, sender, to, encode_frame(frame)))

    def tick(self) -> None:
        self.now += 1
        for node in self.nodes.values():
            if node.multi is None and self.now >= node.down_until:
                node.start()
            if node.multi is not None:
                node.multi.tick()
        for part in range(4):
            self._deliver(self.now * 4 + part)
            for node in self.nodes.values():
                self._turn(node)

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def run_until(self, condition: Callable[[], bool], ticks: int = 400) -> None:
        for _ in range(ticks):
            if condition():
                return
            self.tick()
        raise AssertionError(f"seed {self.seed}: nothing came of it in {ticks} ticks")

    def heal(self) -> None:
        self.drop_rate = self.repeat_rate = 0.0
        self.delay_max = 1
        self.cut_links.clear()
        for node in self.nodes.values():
            node.down_until = 0
            node.database.stop_at = None

    def _deliver(self, moment: int) -> None:
        due: list[tuple[int, int, int, int, bytes]] = []
        while self._in_flight and self._in_flight[0][0] <= moment:
            due.append(heappop(self._in_flight))
        for _, _, sender, to, data in due:
            node = self.nodes.get(to)
            if node is not None and node.multi is not None:
                frame = decode_incoming(data)
                assert isinstance(frame, Frame)
                node.multi.receive(sender, frame)

    def _turn(self, node: SimulatedNode) -> None:
        turns = 0
        while node.multi is not None:
            node.multi.turn()
            turns += 1
            if node.multi.failure is not None:
                node.database.stop_at = None
                node.crash(self.random, self.random.randint(1, 30))
                return
            self._check(node)
            assert turns < 50, "a node never comes to rest"
            if not node.multi.has_work:
                return

    # -- what must hold ---------------------------------------------------------------------------

    def _check(self, node: SimulatedNode) -> None:
        for number, group in enumerate(node.groups):
            if group.is_leader:
                term = group.status.term
                leader = self.leaders.setdefault((number, term), node.node_id)
                assert leader == node.node_id, (
                    f"seed {self.seed}: {leader} and {node.node_id} lead {number} in term {term}"
                )
            if self._seen.get((node.node_id, number)) == group.applied:
                continue
            self._seen[node.node_id, number] = group.applied
            state = hash(tuple(group.reader.scan(b"", b"\xff")))
            known = self.states.setdefault((number, group.applied), state)
            assert known == state, (
                f"seed {self.seed}: states differ at {group.applied} of group {number}"
            )

    # -- clients ----------------------------------------------------------------------------------

    def append(
        self,
        node_id: int,
        group: int,
        heard: Callable[[Appended | StoreError], None] = lambda _: None,
    ) -> int:
        """Begin an append at a node; it is noted when it is acknowledged."""
        self._attempted += 1
        value = self._attempted
        acknowledged = self.acknowledged[group]

        def done(answer: Appended | StoreError) -> None:
            if isinstance(answer, Appended):
                assert answer.value == value
                acknowledged[value] = None
            heard(answer)

        data = Encoder().encode(Append(value))
        self.nodes[node_id].groups[group].propose(Proposal(data, None, done))
        return value

    def read(self, node_id: int, group: int) -> None:
        """Begin a linearizable read; it must see what was acknowledged before now."""
        before = set(self.acknowledged[group])
        node = self.nodes[node_id]

        def done(error: StoreError | None) -> None:
            if error is None and node.groups:
                missing = before - set(node.values(group))
                assert not missing, f"seed {self.seed}: a read at {node_id} missed {missing}"

        node.groups[group].read(done)

    def change(self, node_id: int, group: int, *changes: tuple[int, int]) -> list[object]:
        """Propose changes of the members at a node; the list gets the outcome, None when they are
        made."""
        outcome: list[object] = []
        proposal: Proposal[Append, Appended] = Proposal(
            b"", None, outcome.append, changes=changes, changed=lambda: outcome.append(None)
        )
        self.nodes[node_id].groups[group].propose(proposal)
        return outcome

    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.multi is not None]

    def leader(self, group: int) -> SimulatedNode | None:
        """Return the leader of the newest term, if it runs."""
        leaders = [node for node in self.running() if node.groups[group].is_leader]
        return max(leaders, key=lambda node: node.groups[group].status.term, default=None)

    def check_settled(self, members: tuple[int, ...]) -> None:
        """Heal everything; then all members agree, and nothing acknowledged is missing."""
        self.heal()
        self.run_until(lambda: len(self.running()) == len(self.nodes))
        for group in range(self.group_count):
            self._append_surely(members[0], group)
        self.run_until(lambda: self._is_level(members))
        for group in range(self.group_count):
            for node in members:
                values = self.nodes[node].values(group)
                assert len(values) == len(set(values)), f"seed {self.seed}: applied twice"
                missing = set(self.acknowledged[group]) - set(values)
                assert not missing, f"seed {self.seed}: node {node} lost {sorted(missing)}"

    def _append_surely(self, node_id: int, group: int) -> None:
        """Append as a client does that was told that the outcome is unknown: again, at most
        twice. A node that is being sent the whole state may get an entry in it, with nobody left
        to answer for it."""
        outcomes: list[Appended | StoreError] = []
        for _ in range(3):
            outcomes.clear()
            value = self.append(node_id, group, outcomes.append)
            self.run_until(lambda: bool(outcomes))
            if value in self.acknowledged[group]:
                return
        raise AssertionError(f"seed {self.seed}: no append of a healed cluster: {outcomes}")

    def _is_level(self, members: tuple[int, ...]) -> bool:
        if any(self.nodes[node].multi is None for node in members):
            return False
        return all(
            len({self.nodes[node].groups[group].applied for node in members}) == 1
            for group in range(self.group_count)
        )


def configuration_of(node: SimulatedNode, group: int) -> fmt.Configuration:
    return node.groups[group].configuration
