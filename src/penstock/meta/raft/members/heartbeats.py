"""Heartbeats of the nodes, and the lease that they carry.

Each node sends a heartbeat to the leader of the group `metadata` every `BEAT_MS`; one without Raft,
which does not know the leader, to all members of the groups. The leader answers after a majority
has confirmed, since the heartbeat came, that it leads. They are not logged. An answer grants the
lease of `penstock.meta.client_api.broker_lease`.

    member   every 250 ms: Beat ──▶  leader   note it; confirm the lead with a majority
    member   lease, from the moment at which it sent ◀── BeatAnswer

A voter also reports when it was last in contact with a leader of an earlier term. From the reports
of a majority a new leader knows when the last lease of the leaders before it can have begun.

The thread that sends does nothing else: a slow disk or a busy event loop does not keep it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final, Protocol

from penstock.meta.client_api.broker_lease import BEAT_MS, BrokerLease
from penstock.meta.raft.network.frames import Beat, BeatAnswer
from penstock.platform.clock import Clock


class BeatingNode(Protocol):
    """The node, as its heartbeats use it. Any thread may call."""

    @property
    def broker_epoch(self) -> int | None: ...

    def beat_targets(self) -> Collection[int]:
        """Return the nodes of which one leads the metadata, as far as this node knows, and which
        run a release that knows heartbeats. Only the leader answers."""
        ...

    def leader_contact(self) -> tuple[int, int]:
        """Return the term of the metadata here, and for how many milliseconds at least this node
        was in contact with no leader of an earlier term; (0, 0) without a vote."""
        ...

    def epoch_of(self, node_id: int) -> int | None:
        """Return the broker epoch of a node that is registered and not fenced."""
        ...

    def confirm_lead(self, done: Callable[[bool], None]) -> None:
        """Call `done` with whether a majority has confirmed, after this call, that this node leads
        the metadata. Another thread may call it."""
        ...

    def send_beat(self, to: int, frame: Beat | BeatAnswer) -> None: ...

    def register_again(self) -> None: ...


class Heartbeats:
    """`start`, `receive`; `close` at the end."""

    def __init__(
        self, node_id: int, node: BeatingNode, lease: BrokerLease, *, clock: Clock
    ) -> None:
        self._node_id: Final = node_id
        self._node: Final = node
        self._lease: Final = lease
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._heard: dict[int, float] = {}
        """When the last heartbeat of each node came, on the monotonic clock."""
        self._contacts: dict[int, tuple[int, float]] = {}
        """For each node: the term of its last report, and a moment after which it was in contact
        with no leader of an earlier term."""
        self._unacknowledged: dict[int, float] = {}
        """For each node without Raft: when the first answer was sent of those that it has not had
        as far as it has said."""
        self._answered: tuple[int, float] = (0, 0.0)
        """The broker epoch of this node, and when it got the last answer under it; at first, when
        it began to send."""
        self._fencing: dict[int, int] = {}
        """Nodes that this one has decided to fence, with their broker epochs: they get no lease
        any more, whatever becomes of the decision."""
        self._waiting: list[tuple[int, Beat]] = []
        """Heartbeats that came since the last confirmation began."""
        self._is_confirming = False
        self._closing: Final = threading.Event()
        self._wake: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-meta-beat", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat_now(self) -> None:
        """Send a heartbeat before the next one is due."""
        self._wake.set()

    # The member

    def _run(self) -> None:
        while not self._closing.is_set():
            self._beat()
            self._clock.wait(self._wake, BEAT_MS / 1_000)
            self._wake.clear()

    def _beat(self) -> None:
        epoch = self._node.broker_epoch
        if epoch is None:
            return
        for target in self._node.beat_targets():
            term, quiet_ms = self._node.leader_contact()
            beat = Beat(
                epoch, self._lease.sent_at(), term, quiet_ms, 0 if term else self._unanswered(epoch)
            )
            if target == self._node_id:
                self.receive(self._node_id, beat)
            else:
                self._node.send_beat(target, beat)

    def _unanswered(self, epoch: int) -> int:
        now = self._clock.monotonic()
        with self._lock:
            if self._answered[0] != epoch:
                self._answered = epoch, now
            return max(1, round((now - self._answered[1]) * 1_000))

    def receive(self, sender: int, frame: Beat | BeatAnswer) -> None:
        """Take what another member sent, on the network's thread."""
        if isinstance(frame, BeatAnswer):
            self._receive_answer(frame)
            return
        with self._lock:
            self._heard[sender] = now = self._clock.monotonic()
            answered = now - frame.unanswered_ms / 1_000
            if not frame.unanswered_ms or answered > self._unacknowledged.get(sender, now):
                self._unacknowledged.pop(sender, None)
            if frame.term:
                # The way here took its time, too: the contact was earlier than this.
                moment = now - frame.quiet_ms / 1_000
                term, before = self._contacts.get(sender, (0, moment))
                is_closer = term == frame.term and before < moment
                self._contacts[sender] = (frame.term, before if is_closer else moment)
            self._waiting.append((sender, frame))
            must_confirm = not self._is_confirming
            self._is_confirming = True
        if must_confirm:
            self._confirm()

    def _receive_answer(self, answer: BeatAnswer) -> None:
        if answer.broker_epoch != self._node.broker_epoch:
            return  # of a registration before
        if answer.is_granted:
            with self._lock:
                self._answered = answer.broker_epoch, self._clock.monotonic()
            self._lease.grant(answer.sent_at)
        else:
            self._node.register_again()

    # The leader

    def _confirm(self) -> None:
        with self._lock:
            beats, self._waiting = self._waiting, []
        self._node.confirm_lead(lambda leads: self._confirmed(beats, leads=leads))

    def _confirmed(self, beats: list[tuple[int, Beat]], *, leads: bool) -> None:
        if leads:
            for sender, beat in beats:
                self._answer(sender, beat)
        with self._lock:
            self._is_confirming = bool(self._waiting)
            if not self._is_confirming:
                return
        self._confirm()

    def _answer(self, sender: int, beat: Beat) -> None:
        with self._lock:
            is_granted = (
                beat.broker_epoch == self._node.epoch_of(sender)
                and self._fencing.get(sender) != beat.broker_epoch
            )
            if is_granted and beat.unanswered_ms:
                self._unacknowledged.setdefault(sender, self._clock.monotonic())
            elif not is_granted:
                self._unacknowledged.pop(sender, None)
        answer = BeatAnswer(beat.broker_epoch, beat.sent_at, is_granted=is_granted)
        if sender == self._node_id:
            self._receive_answer(answer)
        else:
            self._node.send_beat(sender, answer)

    # The controller

    def begin_leading(self, *, is_new_term: bool) -> None:
        """Count every node as heard of now: another leader may have granted leases just before.
        What was decided in a term before is in effect, or void, before this one confirms any."""
        with self._lock:
            self._heard.clear()
            self._unacknowledged.clear()
            if is_new_term:
                self._fencing.clear()

    def silent_s(self, node_id: int, since: float) -> float:
        """Return for how long a node was silent, at most since the moment `since`."""
        with self._lock:
            heard = max(since, self._heard.get(node_id, since))
        return self._clock.monotonic() - heard

    def unreached_s(self, node_id: int) -> float:
        """Return for how long a node that is heard of has had none of the answers sent to it."""
        with self._lock:
            now = self._clock.monotonic()
            return now - self._unacknowledged.get(node_id, now)

    def last_grant(self, term: int, voters: Collection[int]) -> float | None:
        """Return a moment after which no leader of a term before this one has confirmed its lead,
        and so no heartbeat was sent that it granted a lease for. None: that is not known, as long
        as fewer than a majority of the voters have reported in this term."""
        with self._lock:
            contacts = sorted(
                moment
                for voter, (reported, moment) in self._contacts.items()
                if voter in voters and reported == term
            )
        majority = len(voters) // 2 + 1
        return contacts[majority - 1] if len(contacts) >= majority else None

    def refuse_leases(self, node_id: int, broker_epoch: int) -> None:
        """Grant a node no lease any more under this broker epoch: it is being fenced."""
        with self._lock:
            self._fencing[node_id] = broker_epoch

    def is_refused(self, node_id: int, broker_epoch: int) -> bool:
        with self._lock:
            return self._fencing.get(node_id) == broker_epoch
