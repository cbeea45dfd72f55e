"""`FailureDetector`: notices that members are gone, and acts immediately.

Two signs count. A connection that ended is a hint: when the port of the node then refuses another
one, its process has ended, and it is fenced without a wait. Silence for a whole session is the
other: a partition, a stopped process, a machine that is gone.

A node without Raft that is heard of, but whose internal port cannot be reached, gets no lease. It
is fenced, too, after `UNREACHED_SECONDS`: it says in its heartbeats that no answer has come.

Only the node that leads the metadata fences. When the port of a node refuses, all others campaign
in the groups that it led: those with greater numbers wait, each a little longer.

A node that has begun to lead does not know which leases were granted just before. It counts the
session from the last moment at which the leader before it can have granted one, once a majority of
the voters has reported theirs, and until then from its own election; and it gives the others
`GRACE_SECONDS` to turn to it. A node that was itself stopped for a while waits for a whole session
before it takes silence for an end: it may have missed what it should have heard. It waits once, not
again for each check that is late: on a machine with too much to do, all of them may be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol

from penstock.errors import StoreError
from penstock.meta.client_api.broker_lease import SESSION_MS
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.state.constants import OFFLINE
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.model import Node
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

CHECK_SECONDS: Final = 0.1
GAP_SECONDS: Final = 1.0
"""A node whose checks are so far apart was stopped meanwhile."""
SESSION_SECONDS: Final = SESSION_MS / 1_000
UNREACHED_SECONDS: Final = 5.0
"""A node that has had no answer for so long, although it is heard of, cannot be reached."""
GRACE_SECONDS: Final = 0.75
"""For so long a leader watches before it takes silence for an end: three heartbeats."""
_SEEN_A_CHECK_MAX: Final = 2 * CHECK_SECONDS
"""A check that comes late counts as that much of watching: what came meanwhile may wait still."""

Probe = Literal["up", "refused", "silent"]


class Sessions(Protocol):
    """What the leader heard of the members; see `Heartbeats`."""

    def begin_leading(self, *, is_new_term: bool) -> None: ...
    def silent_s(self, node_id: int, since: float) -> float: ...
    def unreached_s(self, node_id: int) -> float: ...
    def last_grant(self, term: int, voters: Collection[int]) -> float | None: ...
    def refuse_leases(self, node_id: int, broker_epoch: int) -> None: ...
    def is_refused(self, node_id: int, broker_epoch: int) -> bool: ...


class FailureDetector:
    """`start`, `report_lost_connection`; `close` at the end. Works on a thread of its own."""

    def __init__(
        self,
        node_id: int,
        *,
        clock: Clock,
        sessions: Sessions,
        status: Callable[[], RaftStatus],
        watched: Callable[[], Mapping[int, Node]],
        probe: Callable[[int], Probe],
        fence: Callable[[Sequence[cmd.SetNodeStatus]], None],
        succeed_leader: Callable[[int], None],
    ) -> None:
        """`watched` returns the nodes that send heartbeats, `succeed_leader` campaigns in the
        groups that a node led which is gone."""
        self._node_id: Final = node_id
        self._clock: Final = clock
        self._sessions: Final = sessions
        self._status: Final = status
        self._watched: Final = watched
        self._probe: Final = probe
        self._fence: Final = fence
        self._succeed_leader: Final = succeed_leader
        self.on_unreached: Callable[[int], None] = lambda _node: None
        """Called with a node that is fenced because it reaches this one, and not the other way
        round."""
        self._registered: dict[int, tuple[int, float]] = {}
        """The broker epoch of each node, and when this node first saw it: a registration is a sign
        of life, and the first heartbeat follows when the node is connected."""
        self._hints: dict[int, float] = {}
        """Nodes to which a connection ended, and when."""
        self._lock: Final = threading.Lock()
        self._leads_since: float | None = None
        self._is_resumed = False
        """Whether `_leads_since` is when this node went on after a stop."""
        self._watched_s = 0.0
        """For how long it has watched since then, as far as that matters."""
        self._term = -1
        """That of the last lead."""
        self._reported_term = -1
        """That of the last leader that was found gone."""
        self._checked_at = clock.monotonic()
        self._is_closing = False
        self._wake: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-detector", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def report_lost_connection(self, node_id: int) -> None:
        """Look at a node as soon as possible: a connection from or to it has ended."""
        with self._lock:
            self._hints[node_id] = self._clock.monotonic()
        self._wake.set()

    def is_alive(self, node_id: int) -> bool:
        """Return whether a node was heard of within a session; True while this node, which leads,
        does not know."""
        since = self._leads_since
        return since is None or self._sessions.silent_s(node_id, since) < SESSION_SECONDS

    def _run(self) -> None:
        while True:
            self._clock.wait(self._wake, CHECK_SECONDS)
            self._wake.clear()
            if self._is_closing:
                return
            try:
                self.check()
            except StoreError as error:
                # Without a majority nothing can be decided; the next check tries again.
                _log.debug("failure_check_failed", reason=str(error))

    def check(self) -> None:
        """Look once, and act."""
        status = self._status()
        self._update_lead(status)
        refusing = self._refusing(status.leader)
        for node_id in refusing:
            self._succeed_leader(node_id)
        nodes = self._watched()
        self._update_registered(nodes)
        if self._leads_since is None:
            if status.leader in refusing and self._reported_term != status.term:
                self._reported_term = status.term
                _log.warning("metadata_leader_gone", node=status.leader)
            return
        since = self._session_start(status, self._leads_since)
        lost = [
            node
            for node in nodes.values()
            if node.node_id != self._node_id and self._is_lost(node, since, refusing)
        ]
        if lost:
            self._fence_all(lost)

    def _update_lead(self, status: RaftStatus) -> None:
        now = self._clock.monotonic()
        passed = now - self._checked_at
        self._checked_at = now
        if status.role != "leader":
            self._leads_since = None
            return
        is_new = self._leads_since is None or status.term != self._term
        is_waiting = self._is_resumed and self._watched_s < GRACE_SECONDS
        was_stopped = passed > GAP_SECONDS and not is_waiting
        if is_new or was_stopped:
            self._leads_since = now
            self._watched_s, self._is_resumed = 0.0, not is_new
            self._sessions.begin_leading(is_new_term=status.term != self._term)
            self._term = status.term
        elif self._watched_s < GRACE_SECONDS:
            self._watched_s += min(passed, _SEEN_A_CHECK_MAX)

    def _session_start(self, status: RaftStatus, leads_since: float) -> float:
        """Return from when on silence counts."""
        if self._is_resumed or status.configuration.voters_outgoing:
            return leads_since
        granted = self._sessions.last_grant(status.term, status.configuration.voters)
        return leads_since if granted is None else min(leads_since, granted)

    def _refusing(self, leader: int) -> set[int]:
        """Return the nodes among the hints whose port refuses connections; `leader` is tried
        first."""
        now = self._clock.monotonic()
        with self._lock:
            self._hints = {
                node: hinted_at
                for node, hinted_at in self._hints.items()
                if now - hinted_at <= SESSION_SECONDS
            }
            asked = sorted(self._hints, key=lambda node: node != leader)
        refusing: set[int] = set()
        for node in asked:
            if self._probe(node) == "refused":
                refusing.add(node)
            else:
                with self._lock:
                    self._hints.pop(node, None)
        return refusing

    def _update_registered(self, nodes: Mapping[int, Node]) -> None:
        known, now = self._registered, self._clock.monotonic()
        self._registered = {
            number: known[number]
            if number in known and known[number][0] == node.epoch
            else (node.epoch, now)
            for number, node in nodes.items()
        }

    def _is_lost(self, node: Node, since: float, refusing: set[int]) -> bool:
        if node.status == OFFLINE:
            return False
        since = max(since, self._registered[node.node_id][1])
        return (
            node.node_id in refusing
            or self._sessions.is_refused(node.node_id, node.epoch)
            or self._is_unreached(node.node_id)
            or (
                self._watched_s >= GRACE_SECONDS
                and self._sessions.silent_s(node.node_id, since) >= SESSION_SECONDS
            )
        )

    def _is_unreached(self, node_id: int) -> bool:
        return self._sessions.unreached_s(node_id) >= UNREACHED_SECONDS

    def _fence_all(self, lost: Sequence[Node]) -> None:
        for node in lost:
            if self._is_unreached(node.node_id):
                self.on_unreached(node.node_id)
            self._sessions.refuse_leases(node.node_id, node.epoch)
        _log.warning("nodes_lost", nodes=", ".join(str(node.node_id) for node in lost))
        self._fence([cmd.SetNodeStatus(node.node_id, OFFLINE, node.epoch) for node in lost])
