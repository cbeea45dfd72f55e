"""A node of the cluster: the thread that drives its Raft groups, with its inputs and outputs.

    clients' threads ──▶ inputs ──▶ the driver's thread: tick, receive, turn ──▶ transport
                                        │ sync without the GIL

The driver's thread waits for its disk and for nothing else; clients wait for their own answers. A
failed disk stops the node: it leaves its groups, and the other nodes continue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct

from penstock.errors import ClosedError, StoreError
from penstock.meta.raft.group.group_handle import GroupHandle
from penstock.meta.raft.group.load import RaftTiming
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.members.bootstrap import read_members
from penstock.meta.raft.multi_raft import MultiRaft
from penstock.meta.raft.network.credentials import Credentials
from penstock.meta.raft.network.data_network import DataChannel
from penstock.meta.raft.network.frames import (
    Beat,
    BeatAnswer,
    Frame,
    decode_incoming,
    encode_frame,
)
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    HEARTBEAT,
    RAFT,
    ChannelName,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    Opening,
    PeerStatus,
)
from penstock.meta.raft.network.peer_checks import (
    check_addressee,
    check_data_channel,
    data_nodes,
    network_members,
    open_connection,
)
from penstock.meta.raft.network.transport import Transport
from penstock.meta.state.metadata.rows import NODES
from penstock.meta.state.model import Member
from penstock.meta.state.view import Reader
from penstock.meta.storage.database import Database
from penstock.meta.storage.groups import GroupName, LogLimits, Machine
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

_INPUTS_A_TURN: Final = 256
_INPUT_SIZE_A_TURN: Final = 512 << 10
_MEMBERS_TICKS: Final = 10


class NodeTiming(Struct, frozen=True):
    tick_seconds: float = 0.05
    pause_seconds: float = 0.2
    """Between two attempts of a fresh node to join or bootstrap a cluster."""
    raft: RaftTiming = RaftTiming()


class RaftNode:
    """`add_group` for each, `start`; `close` at the end. The database belongs to the caller."""

    def __init__(
        self,
        database: Database,
        credentials: Credentials,
        *,
        seed: int,
        clock: Clock,
        timing: NodeTiming,
        limits: LogLimits | None = None,
    ) -> None:
        identity = credentials.identity
        self.identity: Final = identity
        self._credentials = credentials
        self.staleness_s: float | None = None
        """What local reads may lack; None: reads are linearizable."""
        self.clock: Final = clock
        self._timing = timing
        self._multi = MultiRaft(
            database,
            node_id=identity.node_id,
            seed=seed,
            send=self._send,
            timing=timing.raft,
            limits=limits,
        )
        self._inputs: deque[tuple[_Guarded, int]] = deque()
        self._wake = threading.Event()
        self._transport: Transport | None = None
        self._is_closing = False
        self._members: list[Member] = []
        self._data_nodes: dict[int, Member] = {}
        """Nodes without Raft that have an internal port."""
        self._are_members_stale = False
        self._heartbeats: DataChannel | None = None
        self.first_members: list[Member] = []
        """Whom to talk to while no state has come that says so; their lives are not known."""
        self._members_reader: Reader | None = None
        self._ticks = 0
        self.on_tick: Callable[[int], None] = lambda _ticks: None
        self.on_join: Callable[[JoinRequest], HandshakeAccepted | HandshakeRejected] = (
            lambda _join: HandshakeRejected("not ready yet")
        )
        self.broker_epoch: Callable[[int], int] = lambda _node: 0
        """Returns the epoch of a node's registration; of this node only the one since its start."""
        self.on_connection_lost: Callable[[int], None] = lambda _node: None
        """Called on a network thread when a connection from or to a node has ended."""
        self.on_beat: Callable[[int, Beat | BeatAnswer], None] = lambda _sender, _frame: None
        """Takes heartbeats, on a network thread."""
        self._thread = threading.Thread(target=self._run, name="penstock-meta-raft", daemon=True)

    def add_group(
        self,
        name: GroupName,
        number: int,
        machine: Machine[RequestT, AnswerT],
        *,
        on_applied: Callable[[AnswerT], None] | None = None,
        on_reset: Callable[[], None] | None = None,
    ) -> GroupHandle[RequestT, AnswerT]:
        group = self._multi.add_group(
            name, number, machine, on_applied=on_applied, on_reset=on_reset
        )
        if number == 0:
            self._members_reader = group.reader
        return GroupHandle(self, group, machine)

    def start(self, transport: Transport) -> None:
        self._transport = transport
        self._heartbeats = transport.data.channel(HEARTBEAT)
        self._heartbeats.on_receive = self._receive_beat
        self._refresh_members()
        self._multi.lead_alone()
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._multi.stop()
        self._refuse_inputs()

    @property
    def failure(self) -> StoreError | None:
        return None if self._is_closing else self._multi.failure

    @property
    def status(self) -> list[RaftStatus]:
        """Where the groups stand, asked of the driver's thread."""
        statuses: list[list[RaftStatus]] = []
        woken = threading.Event()

        def look() -> None:
            statuses.append(self._multi.status)
            woken.set()

        self.post(look, lambda _error: woken.set())
        woken.wait()
        if not statuses:
            raise self._multi.failure or ClosedError("the meta service is closed")
        return statuses[0]

    @property
    def members(self) -> list[Member]:
        return list(self._members)

    def post(
        self,
        work: Callable[[], None],
        refused: Callable[[StoreError], None] | None = None,
        size: int = 0,
    ) -> None:
        """Have the driver's thread run `work`; if it never will, call `refused` with the reason."""
        failure = self._multi.failure
        if failure is not None or self._is_closing:
            if refused is not None:
                refused(failure or ClosedError("the meta service is closed"))
            return
        self._inputs.append((_Guarded(work, refused), size))
        self._wake.set()
        if self._multi.failure is not None or self._is_closing:
            self._refuse_inputs()  # the driver may have looked for the last time before

    # -- what the transport asks ------------------------------------------------------------------

    def keys_for(self, opening: Opening) -> tuple[bytes, ...]:
        return self._credentials.keys_for(opening)

    def draw_nonce(self) -> bytes:
        return self._credentials.draw_nonce()

    def check_hello(self, hello: ConnectRequest) -> str | None:
        mine = self.identity
        reason = check_addressee(mine, hello)
        if reason is not None:
            return reason
        if hello.to_incarnation not in {"", mine.incarnation}:
            return f"an earlier life of node {mine.node_id} is meant; its disk was replaced"
        known = next((member for member in self._members if member.node_id == hello.node_id), None)
        if hello.channel != RAFT and hello.node_id in self._data_nodes:
            known = self._data_nodes[hello.node_id]
        # A newer one joined while this node was away: it will hear of it, perhaps from that one.
        elif known is not None and hello.incarnation < known.incarnation:
            return (
                f"another data directory of node {hello.node_id} has taken its place in the "
                "cluster: stop this node, or delete its DATA/meta and let it join again"
            )
        if hello.channel == RAFT:
            return None  # Raft tells by itself which messages count
        return check_data_channel(mine, hello, known, self.broker_epoch(hello.node_id))

    def open_to(self, member: Member, channel: ChannelName = RAFT) -> Opener:
        epoch = self.broker_epoch(self.identity.node_id)
        return open_connection(self._credentials, member, channel, epoch)

    def lost_connection(self, node: int) -> None:
        self.on_connection_lost(node)

    def peer_status(self) -> PeerStatus:
        mine = self.identity
        members = tuple(f"{member.node_id}@{member.address}" for member in self._members)
        return PeerStatus(mine.node_id, mine.incarnation, is_bootstrapped=True, members=members)

    def join(self, join: JoinRequest) -> tuple[HandshakeAccepted | HandshakeRejected, bytes]:
        return self.on_join(join), self._credentials.stored.key

    def receive(self, sender: int, data: bytes) -> None:
        frame = decode_incoming(data)
        if isinstance(frame, Beat | BeatAnswer):
            self.on_beat(sender, frame)
            return
        self.post(partial(self._multi.receive, sender, frame), size=len(data))

    def unreachable(self, node: int) -> None:
        self.post(partial(self._multi.report_unreachable, node))

    def _receive_beat(self, sender: int, data: bytes) -> None:
        """Take the heartbeat of a node without Raft."""
        frame = decode_incoming(data)
        if isinstance(frame, Beat):
            self.on_beat(sender, frame)

    @property
    def tick_seconds(self) -> float:
        return self._timing.tick_seconds

    def send_beat(self, to: int, frame: Beat | BeatAnswer) -> None:
        """Send a heartbeat, or its answer; any thread may call."""
        if to in self._data_nodes and self._heartbeats is not None:
            self._heartbeats.send(to, encode_frame(frame))
        elif self._transport is not None:
            self._transport.send(to, encode_frame(frame))

    def succeed_leader(self, leader: int) -> None:
        """Campaign in all groups that a node leads which is gone; any thread may call."""
        self.post(partial(self._multi.succeed_leader, leader))

    # -- the driver's thread ----------------------------------------------------------------------

    def _send(self, to: int, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.send(to, encode_frame(frame))

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException as error:
            # A fault of this program: callers must not wait for a thread that has ended.
            self._multi.stop(ClosedError(f"the meta service has stopped: {error!r}"))
            raise
        finally:
            if self._multi.failure is not None:
                self._multi.stop()  # rejects the inputs after the failure, too
            self._refuse_inputs()

    def _drive(self) -> None:
        clock, tick = self.clock, self._timing.tick_seconds
        next_tick = clock.monotonic() + tick
        while not self._is_closing and self._multi.failure is None:
            wait = next_tick - clock.monotonic()
            if wait > 0 and not self._inputs and not self._multi.has_work:
                self._wake.wait(wait)
            self._wake.clear()
            self._run_inputs()
            now = clock.monotonic()
            if now >= next_tick:
                # A process that was suspended has received no message meanwhile: the missed time
                # counts as one tick, not as a thousand.
                next_tick = max(next_tick + tick, now)
                self._tick()
            self._multi.turn()

    def _run_inputs(self) -> None:
        size = count = 0
        while self._inputs and count < _INPUTS_A_TURN and size < _INPUT_SIZE_A_TURN:
            work, work_size = self._inputs.popleft()
            work()
            count += 1
            size += work_size

    def _tick(self) -> None:
        self._ticks += 1
        self._multi.tick()
        if self._are_members_stale or self._ticks % _MEMBERS_TICKS == 0:
            self._refresh_members()
        self.on_tick(self._ticks)

    def _refresh_members(self) -> None:
        if self._members_reader is None or self._transport is None:
            return
        self._are_members_stale = False
        members = read_members(self._members_reader) or self.first_members
        others = data_nodes(NODES.scan(self._members_reader))
        if members != self._members or others != self._data_nodes:
            self._members, self._data_nodes = members, others
            mine = self.identity.node_id
            self._transport.set_members(
                [member for member in members if member.node_id != mine],
                network_members(members, others, mine),
            )

    def refresh_members(self) -> None:
        """Read the members again with the next tick; called on the driver's thread."""
        self._are_members_stale = True

    def _refuse_inputs(self) -> None:
        error = self._multi.failure or ClosedError("the meta service is closed")
        with suppress(IndexError):  # several threads may do this
            while True:
                work, _ = self._inputs.popleft()
                if work.refused is not None:
                    work.refused(error)


class _Guarded:
    """Work for the driver, and whom to tell when it will not be done."""

    __slots__ = ("refused", "work")

    def __init__(
        self, work: Callable[[], None], refused: Callable[[StoreError], None] | None
    ) -> None:
        self.work = work
        self.refused = refused

    def __call__(self) -> None:
        self.work()
