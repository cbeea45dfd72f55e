"""The meta service of a cluster: `MetaClient` over the Raft groups of this node.

    place = Place(node_id=1, peers=("1@a:9093", "2@b:9093", "3@c:9093"))
    client = RaftMetaClient.open("data/meta", place)

Any node accepts any request; see `pending_requests` for how it is answered. Reads are linearizable,
unless `local_reads` was chosen: those see what this node has applied, and contain everything that
was acknowledged longer ago than `staleness_s`. A node that cannot prove this asks the leader, and
waits for one, as for any other read; see `penstock.meta.client_api.local_reads`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from penstock.errors import (
    BadRequestError,
    RequestError,
    RetryableError,
    SettingsError,
    StoreError,
)
from penstock.meta.client_api.local_reads import STALENESS_MS
from penstock.meta.client_api.log_client import ClusterClient
from penstock.meta.controller.controller_loop import ControllerLoop
from penstock.meta.controller.decisions import (
    load_of,
    place_shards,
    racks_of,
    short_of_room,
    storage_nodes,
)
from penstock.meta.controller.decommission import last_replica_shards, listed
from penstock.meta.controller.shard_counts import ShardCounts
from penstock.meta.events import NodePut
from penstock.meta.raft.group.group_handle import GroupHandle
from penstock.meta.raft.group.load import require_core
from penstock.meta.raft.group.raft_group import RaftGroup
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.members.admission import Admission
from penstock.meta.raft.members.bootstrap import (
    Bootstrap,
    Peer,
    Place,
    WaitingHost,
    group_names,
    load_identity,
    parse_peers,
    request_peer_status,
)
from penstock.meta.raft.members.group_handover import give_up_groups
from penstock.meta.raft.members.leader_wait import StartWait, await_leaders, await_votes
from penstock.meta.raft.members.liveness import Liveness
from penstock.meta.raft.members.membership import (
    MemberGroup,
    Membership,
    maintain_membership,
)
from penstock.meta.raft.network.credentials import Credentials, check_secrets, draw_incarnation
from penstock.meta.raft.network.data_network import DataChannel
from penstock.meta.raft.network.messages import (
    DataChannelName,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
)
from penstock.meta.raft.network.traffic import ChannelTraffic
from penstock.meta.raft.network.transport import Probe, Transport, unreached
from penstock.meta.raft.node import NodeTiming, RaftNode
from penstock.meta.rejections import encode_checked
from penstock.meta.service import MetaService
from penstock.meta.standalone.client import MetadataMachine, OffsetMachine
from penstock.meta.state.constants import OFFLINE, STOPPING
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.replication import all_hand_over
from penstock.meta.state.metadata.rows import MEMBERS, NODES, SHARDS
from penstock.meta.state.model import Member
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Database, RocksDatabase
from penstock.meta.storage.groups import GroupLog, LogLimits
from penstock.meta.watch import Watchers
from penstock.platform.clock import Clock, SystemClock

_DECISIONS_AT_ONCE: Final = 256
_REGISTER_SECONDS: Final = 0.2


def _draw(clock: Clock, entropy: Callable[[int], bytes]) -> tuple[str, bytes]:
    return draw_incarnation(clock.now_ms(), entropy)


class RaftMetaClient(ClusterClient):
    """Use `open`; `close` when done. Safe to use from many threads."""

    _roles = ("meta", *ClusterClient._roles)

    def __init__(
        self,
        database: Database,
        credentials: Credentials,
        transport: Transport,
        place: Place,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        timing: NodeTiming,
        limits: LogLimits | None = None,
    ) -> None:
        self._database = database
        self._credentials = credentials
        identity = credentials.identity
        self._peers = parse_peers(place.peers)
        self._transport = transport
        self._watchers_thread_wake = threading.Event()
        self._on_lost: Final[list[Callable[[int], None]]] = []
        self._is_closing = False
        watchers: Final = Watchers()
        self.node: Final = RaftNode(
            database,
            credentials,
            seed=int.from_bytes(entropy(8), "big"),
            clock=clock,
            timing=timing,
            limits=limits,
        )
        names = group_names(identity.offset_groups)
        self._counts: Final = ShardCounts()
        self._metadata: Final[GroupHandle[cmd.Request, cmd.Answer]] = self.node.add_group(
            names[0],
            0,
            MetadataMachine(),
            on_applied=self._on_applied,
            on_reset=self._on_state_replaced,
        )
        self._counts.reset(self._metadata.local)
        self._offset_handles: Final = [
            self.node.add_group(name, number, OffsetMachine())
            for number, name in enumerate(names[1:], start=1)
        ]
        super().__init__(
            self._metadata,
            self._offset_handles,
            watchers,
            node_id=identity.node_id,
            cluster_id=identity.cluster_id,
            clock=clock,
            entropy=entropy,
            store_id=place.store_id,
        )
        self._set_rack(place.rack)
        self._proof = place.proof
        self._all_groups: Final[list[MemberGroup]] = [self._metadata, *self._offset_handles]
        self.membership: Final = self._build_membership()
        self.node.on_tick = lambda ticks: maintain_membership(
            identity.node_id, self._all_groups, ticks
        )
        self.node.on_join = self._join
        self.node.broker_epoch = self.broker_epoch_of
        self._deliverer = threading.Thread(
            target=self._deliver, name="penstock-meta-watch", daemon=True
        )
        self._liveness: Final = self._build_liveness()
        self._controller: Final = self._build_controller()
        self._controller.watched = self._liveness.watched
        self._admission: Final = self._build_admission()
        self._start(self._peers)

    def _build_membership(self) -> Membership:
        return Membership(
            self.node.identity,
            self._all_groups,
            find=lambda node: MEMBERS.get(self._metadata.reader, node),
            record=self._record_member,
            remove_rows=self._remove_member_rows,
        )

    def _build_admission(self) -> Admission:
        return Admission(
            self._credentials,
            self._peers,
            find=lambda node: MEMBERS.get(self._metadata.reader, node),
            leader=lambda: self.node.status[0].leader,
            node_id=self._node_id,
            is_alive=self._is_alive,
            ask=lambda peer: request_peer_status(peer, self._node_id, self._credentials, []),
        )

    def _join(self, join: JoinRequest) -> HandshakeAccepted | HandshakeRejected:
        reason = self._admission.refusal(join)
        return self.membership.join(join) if reason is None else HandshakeRejected(reason)

    def await_leaders(self, stopping: threading.Event | None) -> None:
        """Return when all groups have leaders: their members may start much later than this node;
        and when this node votes. `stopping` ends the wait, with a `DeadlineError`."""
        stopping = stopping if stopping is not None else threading.Event()
        await_leaders(
            lambda: self.node.status,
            lambda: self._transport.absent(self.node.members),
            clock=self._clock,
            stopping=stopping,
        )
        await_votes(self._node_id, lambda: self.node.status, clock=self._clock, stopping=stopping)

    def make_join_token(self, node_id: int, address: str) -> tuple[str, str]:
        """Return a token with which a node may join, empty when the cluster has a secret instead,
        and why its address is not reached from here, empty when it is."""
        (peer,) = parse_peers([f"{node_id}@{address}"])
        known = MEMBERS.get(self._metadata.reader, node_id)
        replaced = "" if known is None else known.incarnation
        token = ""
        if not self._credentials.has_secret:
            token = self._credentials.make_token(node_id, address, replaced)
        return token, unreached(peer.address)

    def _build_liveness(self) -> Liveness:
        liveness = Liveness(
            self.node,
            self._metadata,
            self._lease,
            broker_epoch=lambda: self._broker_epoch,
            register_again=lambda: self._controller.register_again(),  # noqa: PLW0108 - built later
            probe=self._transport.probe,
            fence=self._fence,
            report=self._transport.problems.record,
        )
        self.node.on_connection_lost = self._on_connection_lost
        self.on_registered(lambda _epoch: liveness.beats.beat_now())
        return liveness

    def _fence(self, commands: Sequence[cmd.SetNodeStatus]) -> None:
        self._decide(commands)
        self._controller.wake()

    def _is_alive(self, node_id: int) -> bool:
        watched = self._liveness.watched()
        detector = self._liveness.detector
        return (detector if node_id in watched else self._controller).is_alive(node_id)

    def _on_connection_lost(self, node_id: int) -> None:
        self._liveness.detector.report_lost_connection(node_id)
        for on_lost in self._on_lost:
            on_lost(node_id)

    def _build_controller(self) -> ControllerLoop:
        return ControllerLoop(
            self._node_id,
            clock=self._clock,
            rows=self._metadata.local,
            counts=self._counts,
            status=lambda: self.node.status[0],
            decide=self._decide,
            register=self._register,
            listeners=self._listeners,
        )

    def _start(self, peers: Sequence[Peer]) -> None:
        self.node.first_members = [
            Member(node_id=peer.node_id, address=peer.address, incarnation="") for peer in peers
        ]
        self._transport.host = self.node
        self.node.start(self._transport)
        self._deliverer.start()
        self._controller.start()
        self._liveness.start()

    @classmethod
    def open(
        cls,
        path: str,
        place: Place,
        *,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        timing: NodeTiming | None = None,
        limits: LogLimits | None = None,
        stopping: threading.Event | None = None,
    ) -> RaftMetaClient:
        """Open the directory and enter the cluster: found it, join it, or come back to it.

        Blocks until the cluster is entered; `stopping` ends the wait.
        """
        require_core()
        clock = clock if clock is not None else SystemClock()
        timing = timing if timing is not None else NodeTiming()
        stopping = stopping if stopping is not None else threading.Event()
        peers = parse_peers(place.peers)
        node_id = place.node_id
        mine = next((peer.address for peer in peers if peer.node_id == node_id), "")
        if not mine:
            raise SettingsError(f"node.peers does not list node {node_id} itself")
        host, _, port = (place.listen or mine).rpartition(":")
        check_secrets(place.secrets)
        database = RocksDatabase.open(path, fmt.FAMILIES, clock=clock)
        transport: Transport | None = None
        try:
            draw = partial(_draw, clock, entropy)
            identity, stored = load_identity(
                database, node_id=node_id, draw=draw, offset_groups=place.offset_groups
            )
            credentials = Credentials(
                identity,
                place.secrets,
                token=place.join_token,
                stored=stored,
                now_s=lambda: clock.now_ms() // 1_000,
                entropy=entropy,
            )
            transport = Transport(WaitingHost(credentials, peers), (host, int(port)))
            transport.start()
            if not identity.cluster_id:
                start_wait = StartWait(clock, stopping)
                bootstrap = Bootstrap(
                    database, credentials, peers, draw=draw, report=start_wait.report
                )
                identity, stored = bootstrap.run(
                    partial(clock.wait, stopping, timing.pause_seconds)
                )
            client = cls(
                database,
                credentials.entered(identity, stored),
                transport,
                place,
                clock=clock,
                entropy=entropy,
                timing=timing,
                limits=limits,
            )
        except BaseException:
            if transport is not None:
                transport.close()
            database.close()
            raise
        client.record_member(mine)
        return client

    @property
    def failure(self) -> StoreError | None:
        """Why the node has stopped for good, or None."""
        return self.node.failure

    @property
    def raft_status(self) -> list[RaftStatus]:
        return self.node.status

    @property
    def members(self) -> list[Member]:
        return self.node.members

    @property
    def port(self) -> int:
        return self._transport.port

    # -- the internal port ------------------------------------------------------------------------

    def channel(self, name: DataChannelName) -> DataChannel:
        """Return a data channel to the other members; connections are accepted once its
        `on_receive` is set."""
        return self._transport.data.channel(name)

    def channel_traffic(self) -> dict[str, ChannelTraffic]:
        """Return what each channel in use has carried."""
        return self._transport.channel_traffic()

    def problems(self) -> list[str]:
        """Return what went wrong lately between this node and others, as sentences."""
        return self._transport.problems.current()

    def report_problem(self, kind: str, node_id: int, text: str) -> None:
        """Show a problem with a node in the status of the cluster for a while."""
        self._transport.problems.record(kind, node_id, text)

    def probe(self, node_id: int) -> Probe:
        """Return whether the internal port of a member can be reached; blocks for 0.3 s at most."""
        return self._transport.probe(node_id)

    def watch_connections(self, on_lost: Callable[[int], None]) -> None:
        """Have `on_lost` called with a node's id when a connection from or to it has ended: a hint
        that it may be gone. A network thread calls; it must not be blocked."""
        self._on_lost.append(on_lost)

    def broker_epoch_of(self, node_id: int) -> int:
        """Return the epoch of a node's registration as this node knows it, 0: none; for this node
        itself, 0 until it has registered since its start."""
        node = NODES.get(self._metadata.local, node_id)
        if node is None or (node_id == self._node_id and node.boot_id != self._nonce):
            return 0
        return node.epoch

    def leader_problem(self) -> str:
        """Return why no change of the metadata can be decided at the moment; empty: it can."""
        without = [group.name for group in self.node.status if not group.leader]
        if not without:
            return ""
        shown = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
        return f"{len(without)} Raft groups have no leader that this node knows: {shown}"

    def leads_metadata(self) -> bool:
        """Return whether this node does what only one node of a cluster must do."""
        return self.node.status[0].role == "leader"

    def local_reads(self, *, are_local: bool, staleness_s: float = STALENESS_MS / 1_000) -> None:
        """Choose how reads are answered from now on; see the head of this module."""
        self.node.staleness_s = staleness_s if are_local else None

    @property
    def metadata_group(self) -> RaftGroup[cmd.Request, cmd.Answer]:
        """The group `metadata`, for those who look at it closely."""
        return self._metadata.group

    @property
    def staleness_s(self) -> float:
        """Maximum staleness of reads, in seconds; 0: they are linearizable."""
        return self.node.staleness_s or 0.0

    def remove_member(self, node_id: int, *, is_forced: bool = False) -> list[str]:
        """Remove a node from all groups and from the metadata. Return the shards whose last replica
        it has: they have no leader until it joins again with its records. Rejected while there are
        such shards, unless `is_forced`."""
        rows = self._metadata.reader
        node = NODES.get(rows, node_id)
        if MEMBERS.get(rows, node_id) is None:
            if node is None:
                raise BadRequestError(f"there is no node {node_id}")
            if node.status != OFFLINE:
                raise RequestError(f"node {node_id} runs and would register again; stop it first")
        lost = last_replica_shards(rows, node_id)
        if lost and not is_forced:
            raise RequestError(
                f"only node {node_id} has the records of {len(lost)} shards: {listed(lost)}. "
                f"Move them (`penstock cluster reassign --remove {node_id} --yes`) or delete the "
                "topics first, or force it"
            )
        self.membership.remove(node_id)
        # It may have been given some meanwhile.
        return last_replica_shards(self._metadata.reader, node_id)

    def service(self) -> MetaService:
        """Return the gRPC service over this node."""
        groups: list[GroupLog[object]] = [self._metadata, *self._offset_handles]
        return MetaService(self, groups, [self._metadata, *self._offset_handles], self)

    def transfer(self, group: str, to: int) -> None:
        """Ask the leader of `group`, if it is this node, to let `to` lead."""
        for handle in self._all_groups:
            if handle.name.name == group:
                handle.transfer(to)

    def cut_logs(self) -> None:
        """Drop the log entries of all groups here: who lacks them gets the state instead."""
        for handle in self._all_groups:
            handle.truncate_log()

    def record_member(self, address: str) -> None:
        """Record this node as a member if it is not: a single node became a cluster's first."""
        if set(self._metadata.configuration.voters) != {self._node_id}:
            return
        incarnation = self.node.identity.incarnation
        member = Member(node_id=self._node_id, address=address, incarnation=incarnation)
        if MEMBERS.get(self._metadata.reader, self._node_id) != member:
            self._record_member(member)

    def close(self) -> None:
        """Leave; what was acknowledged is on the devices of a majority. Twice does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self.node.close()
        self._liveness.close()
        self._controller.close()
        self._transport.close()
        self._watchers_thread_wake.set()
        self._deliverer.join()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- differences to a single node -------------------------------------------------------------

    def _place(
        self, partitions: Iterable[int], replication: int, topic_id: str = ""
    ) -> tuple[cmd.Placement, ...]:
        known = list(NODES.scan(self._metadata.local))
        nodes = storage_nodes(known, self._node_id, replication)
        own = load_of(SHARDS.scan(self._metadata.local, topic_id)) if topic_id else None
        load = replace(self._counts.load(), short=short_of_room(known))
        return place_shards(partitions, replication, nodes, load, own, racks_of(known))

    def _decide(self, commands: Sequence[cmd.Command]) -> None:
        for start in range(0, len(commands), _DECISIONS_AT_ONCE):
            requests = [
                cmd.Request(self._clock.now_ms(), command, self._request_id())
                for command in commands[start : start + _DECISIONS_AT_ONCE]
            ]
            self._metadata.propose_many([encode_checked(command) for command in requests])

    @property
    def _address(self) -> str:
        members = {member.node_id: member.address for member in self.node.members}
        return members.get(self._node_id, "")

    def register_store(self, stopping: threading.Event) -> None:
        """Register; returns when it is known which records this node has. `stopping` ends the
        wait for a majority, with a `RetryableError`."""
        while True:
            try:
                self._register()
            except RetryableError:
                if self._clock.wait(stopping, _REGISTER_SECONDS):
                    raise
            else:
                return

    def announce(self, protocol: str, address: str) -> None:
        """Tell all nodes where this one serves the clients of a protocol."""
        self._listeners[protocol] = address
        try:
            self._register()
        except RetryableError:
            self._controller.register_again()
            raise

    def can_announce_stop(self) -> bool:
        return all_hand_over(self._metadata.local)

    def announce_stop(self) -> frozenset[str]:
        """Let other nodes lead what they can before this one stops, and coordinate the groups;
        return the replicated shards that no other node can lead. Raises `RetryableError` without a
        majority."""
        self._controller.leave()
        self.set_node_status(self._node_id, STOPPING, epoch=self._broker_epoch)
        return frozenset(
            shard.name
            for shard in SHARDS.scan(self._metadata.local)
            if shard.leader == self._node_id
        )

    def give_up_groups(self, seconds: float) -> list[str]:
        """Let other voters lead the Raft groups that this node leads; return the groups for which
        none did within `seconds`."""
        return give_up_groups(
            self._node_id, self._all_groups, lambda: self.node.status, self._clock, seconds
        )

    def leave(self) -> None:
        """Announce that this node stops, so that the others need not wait for its timeout. Raises
        `DeadlineError` when no majority accepts it."""
        self._controller.leave()
        self.set_node_status(self._node_id, OFFLINE)

    def _record_member(self, member: Member) -> None:
        command = cmd.PutMember(member.node_id, member.address, member.incarnation)
        self._done(command, cmd.Done)

    def _remove_member_rows(self, node: int) -> None:
        if MEMBERS.get(self._metadata.reader, node) is not None:
            self._done(cmd.RemoveMember(node), cmd.Done)
        if NODES.get(self._metadata.reader, node) is not None:
            self.remove_node(node)

    def _on_applied(self, answer: cmd.Answer) -> None:
        self._watchers.enqueue(answer)
        if isinstance(answer, cmd.Applied) and not answer.repeated:
            self._counts.apply(answer.events)
            for event in answer.events:
                if isinstance(event, NodePut):
                    self.node.refresh_members()
                if isinstance(event, NodePut) and event.node.status == OFFLINE:
                    # Groups that it led, other than this one, would wait for their timeouts; and
                    # who leads its shards now asks them for transactions.
                    self.node.succeed_leader(event.node.node_id)
        self._watchers_thread_wake.set()

    def _on_state_replaced(self) -> None:
        self._counts.reset(self._metadata.local)
        self._watchers.enqueue_reset(self._metadata.local)
        self._watchers_thread_wake.set()

    def _deliver(self) -> None:
        while not self._is_closing:
            self._watchers_thread_wake.wait()
            self._watchers_thread_wake.clear()
            self._watchers.deliver()
