"""`MetaClient` over gRPC, for nodes and tools outside of the groups.

It calls one node after the other until one answers. A command keeps its request id in retries, so
that it is applied once.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import grpc
from msgspec.msgpack import Decoder

from penstock.errors import (
    DeadlineError,
    StoreError,
)
from penstock.meta import events
from penstock.meta.client import StartProof
from penstock.meta.client_api.local_reads import STALENESS_MS
from penstock.meta.client_api.log_client import ClusterClient
from penstock.meta.controller.decisions import (
    Load,
    load_of,
    load_of_placements,
    place_shards,
    racks_of,
    short_of_room,
    storage_nodes,
)
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.raft.members.bootstrap import group_names
from penstock.meta.rejections import encode_checked
from penstock.meta.remote.connection import MetaConnection, serialize
from penstock.meta.remote.groups import RemoteGroup, RemoteRows
from penstock.meta.service import SERVICE, MetaService
from penstock.meta.standalone.log import METADATA
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import OFFLINE, STOPPING
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.replication import all_hand_over
from penstock.meta.state.metadata.rows import NODES, SHARDS
from penstock.meta.state.offsets import commands as offset_cmd
from penstock.meta.storage.groups import GroupLog
from penstock.meta.watch import Update, Watch, Watchers
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger

DEADLINE_S: Final = 30.0
_PAUSE_S: Final = 0.1
_PLACES_KNOWN_S: Final = 1.0
"""How long the list of nodes and their shard counts are cached."""
HEARTBEAT_SECONDS: Final = 0.5
CHECK_BEATS: Final = 10
"""Heartbeats between two checks of this node's stored registration."""
_SILENT_STREAM_S: Final = 15.0
"""A watch without a reply for this time is cancelled: without changes there is one in five."""
_UNREACHABLE_S: Final = 10.0
"""Time without an answer after which the metadata service counts as unreachable."""

_log: Final = get_logger(__name__)

_events_decoder: Final = Decoder(tuple[events.Event, ...])


class _Stream:
    """The call that delivers a watch, and when it did so last."""

    def __init__(self, address: str, cancel: Callable[[], object]) -> None:
        self.address: Final = address
        self.cancel: Final = cancel
        self.replied_at: float | None = None


class RemoteMetaClient(ClusterClient):
    """`MetaClient` of a node that keeps no groups itself. `close` when done."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        node_id: int,
        deadline_s: float = DEADLINE_S,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        store_id: str = "",
        proof: StartProof | None = None,
        rack: str = "",
    ) -> None:
        """`store_id` says which records this node has; empty: it keeps none. `proof` says whether
        its logs have what they had at its last end, `rack` where it is."""
        clock = clock if clock is not None else SystemClock()
        self.connection: Final = MetaConnection(addresses, deadline_s=deadline_s, clock=clock)
        status = self.connection.call(
            "ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply
        )
        names = group_names(status.offset_groups)
        self._last_beat = clock.monotonic()
        self._placing = threading.Lock()
        self._place_until = 0.0
        self._places: set[int] = set()
        self._racks: dict[int, str] = {}
        self._copying: set[int] = set()
        """Those of the places that can have one of several replicas."""
        self._load = Load()
        self._closing = threading.Event()
        # Its own connection: a call that waits for a node that hangs must not hold up the beats.
        self._heart = MetaConnection(addresses, deadline_s=HEARTBEAT_SECONDS, clock=clock)
        self._beating_group = RemoteGroup(self._heart, METADATA, 0, Decoder(cmd.Applied).decode)
        self._wake = threading.Event()
        self._is_leaving = False
        self._beat_count = 0
        self._streams: dict[Watch, _Stream] = {}
        self._beating = threading.Thread(target=self._beat, name="penstock-meta-beat", daemon=True)
        super().__init__(
            RemoteGroup(self.connection, names[0], 0, Decoder(cmd.Applied).decode),
            [
                RemoteGroup(self.connection, name, number, Decoder(offset_cmd.OffsetApplied).decode)
                for number, name in enumerate(names[1:], start=1)
            ],
            Watchers(),
            node_id=node_id,
            cluster_id=status.cluster_id,
            clock=clock,
            entropy=entropy,
            store_id=store_id,
        )
        self._set_rack(rack)
        self._proof = proof if proof is not None else StartProof()

    def watch(self, after: int, callback: Callable[[Update], None]) -> Watch:
        """As `MetadataClient.watch`, on a thread of its own; after a lost connection it continues
        from the last revision."""
        watch = Watch(callback, after)
        begun = threading.Event()
        threading.Thread(
            target=self._follow, args=(watch, begun), name="penstock-meta-watch", daemon=True
        ).start()
        if not begun.wait(DEADLINE_S):
            watch.close()
            raise DeadlineError("the meta service sends no changes")
        return watch

    def start_heartbeats(self) -> None:
        """Register this node, and say that it lives until `close`: the controller gives the shards
        of a node that is silent to others."""
        self._register()
        self._last_beat = self._clock.monotonic()
        self._beating.start()

    def leader_problem(self) -> str:
        """Return why no change of the metadata can be decided at the moment; empty: it can."""
        seconds = self._clock.monotonic() - self._last_beat
        if not self._beating.is_alive() or seconds < _UNREACHABLE_S:
            return ""
        return f"the metadata service has not taken a heartbeat for {seconds:.0f} s"

    def leads_metadata(self) -> bool:
        """A node without groups leads none."""
        return False

    def service(self) -> MetaService:
        """Return the gRPC service over this client: calls are passed on."""
        groups: list[GroupLog[object]] = [self._group, *self._offset_groups]
        reads = [RemoteRows(self.connection, number) for number in range(len(groups))]
        return MetaService(self, groups, reads)

    @property
    def failure(self) -> StoreError | None:
        """A node without groups has none that could fail."""
        return None

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._heart.close()
        if self._beating.is_alive():
            self._beating.join()
        self.connection.close()

    def _place(
        self, partitions: Iterable[int], replication: int, topic_id: str = ""
    ) -> tuple[cmd.Placement, ...]:
        own = load_of(self.list_shards(topic_id)) if topic_id else None
        with self._placing:
            now = self._clock.monotonic()
            if now >= self._place_until:
                rows = RemoteRows(self.connection, 0, STALENESS_MS)
                nodes = list(NODES.scan(rows))
                self._places = storage_nodes(nodes, self._node_id)
                self._racks = racks_of(nodes)
                self._copying = storage_nodes(nodes, self._node_id, 2)
                # A single candidate needs no comparison.
                load = load_of(SHARDS.scan(rows)) if len(self._places) > 1 else Load()
                self._load = Load(load.replicas, load.leaders, short_of_room(nodes))
                self._place_until = now + _PLACES_KNOWN_S
            places = self._copying if replication > 1 else self._places
            placed = place_shards(partitions, replication, places, self._load, own, self._racks)
            own = load_of_placements(placed)
            self._load = Load(
                Counter(self._load.replicas) + Counter(own.replicas),
                Counter(self._load.leaders) + Counter(own.leaders),
                self._load.short,
            )
            return placed

    def can_announce_stop(self) -> bool:
        return all_hand_over(self._reader)

    def announce_stop(self) -> frozenset[str]:
        """See `RaftMetaClient.announce_stop`."""
        self._is_leaving = True
        self.set_node_status(self._node_id, STOPPING, epoch=self._broker_epoch)
        return frozenset(
            shard.name for shard in self.list_shards() if shard.leader == self._node_id
        )

    def give_up_groups(self, _seconds: float) -> list[str]:
        """A node without groups leads none."""
        return []

    def leave(self) -> None:
        """Say that this node stops; see `RaftMetaClient.leave`."""
        self._is_leaving = True
        self._closing.set()
        self._wake.set()
        self.set_node_status(self._node_id, OFFLINE)

    def announce(self, protocol: str, address: str) -> None:
        """Tell all nodes where this one serves the clients of a protocol."""
        self._listeners[protocol] = address
        self._is_registered = False
        self._register()

    def _beat(self) -> None:
        while not self._closing.is_set():
            self._clock.wait(self._wake, HEARTBEAT_SECONDS)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self._maintain()
            except StoreError as error:
                # No majority, or no way to it: the next beat tries again.
                _log.debug("heartbeat_failed", reason=str(error))

    def _maintain(self) -> None:
        """Send a heartbeat; register again when the metadata do not know this node as it is."""
        sent_at = self._lease.sent_at()
        is_known = self._send_logged_beat()
        self._last_beat = self._clock.monotonic()
        if is_known:
            self._lease.grant(sent_at)
        is_known = is_known and self._is_registered
        self._beat_count += 1
        if is_known and self._beat_count % CHECK_BEATS == 0:
            is_known = self._is_known_as_it_is()
        if not is_known and not self._is_leaving:
            self._register()

    def _send_logged_beat(self) -> bool:
        """Send a heartbeat through the log; return whether the metadata know this run."""
        beat = cmd.Heartbeat(self._node_id, self._nonce)
        # Without an id: a beat may count twice, and needs no place among the answers.
        answer = self._beating_group.propose(
            encode_checked(cmd.Request(self._clock.now_ms(), beat))
        )
        return not isinstance(answer, Rejected)

    def _is_known_as_it_is(self) -> bool:
        """Check the stored registration: one that timed out may arrive after a newer one."""
        mine = NODES.get(RemoteRows(self._heart, 0, STALENESS_MS), self._node_id)
        return mine is not None and mine.listeners == self._listeners

    def _follow(self, watch: Watch, begun: threading.Event) -> None:
        is_first = True
        while not self._is_over(watch):
            address = self.connection.address
            try:
                call = self.connection.channel(address).unary_stream(
                    f"/{SERVICE}/Watch",
                    request_serializer=serialize,
                    response_deserializer=pb.WatchReply.FromString,
                )
                replies = call(pb.WatchRequest(after=watch.revision))
                stream = self._streams[watch] = _Stream(address, replies.cancel)
                for reply in replies:
                    if self._is_over(watch):
                        return
                    stream.replied_at = self._clock.monotonic()
                    if reply.revision or reply.is_reset or reply.events:
                        self._deliver(watch, reply, is_first=is_first)
                        is_first = False
                    if reply.is_level:
                        begun.set()  # not before: who watches takes what it has seen for all
            except (grpc.RpcError, StoreError, ValueError):
                # Gone, or closed meanwhile: the next try goes on where this one ended, elsewhere.
                self.connection.rotate_from(address)
                threading.Event().wait(_PAUSE_S)

            finally:
                self._streams.pop(watch, None)

    def _end_streams_of(self, addresses: Collection[str | None]) -> None:
        """Have the watches that some nodes serve go on at others: these nodes are gone, and a
        connection to a stopped process does not end. So do those that are silent for too long."""
        now = self._clock.monotonic()
        for stream in list(self._streams.values()):
            if stream.replied_at is None:
                stream.replied_at = now
            if stream.address in addresses or now - stream.replied_at > _SILENT_STREAM_S:
                stream.cancel()
        if self.connection.address in addresses:
            self.connection.rotate_from(self.connection.address)

    def _is_over(self, watch: Watch) -> bool:
        return watch.is_closed or self.connection.is_closed

    def _deliver(self, watch: Watch, reply: pb.WatchReply, *, is_first: bool) -> None:
        events = _events_decoder.decode(reply.events)
        if is_first:
            watch.revision = min(watch.revision, reply.revision - 1)
        watch.deliver(Update(reply.revision, events, is_reset=reply.is_reset))
