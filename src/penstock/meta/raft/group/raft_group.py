"""One member of one group: the Raft core, its log in RocksDB, its state machine.

A turn has two halves, driven by `MultiRaft` for all groups together:

    collect   ready() of the core: rows into the turn's batch; a leader's messages leave immediately
    finish    after the sync: advance(), the other messages, then apply and answer

Invariants:

  * what a message promises (a vote, an entry) is on the device before the message leaves; a
    leader's entries may travel meanwhile, for only its own share of the majority waits
  * rows that entries changed, the applied index and a changed configuration are one batch, which
    may be written later: until then the log has them
  * entries are dropped only up to the applied index that a sync has covered
  * a generation of the state is switched by one synced batch, which also replaces the log
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar
from zlib import crc32

from msgspec import Struct

from penstock._native import RaftCore
from penstock.errors import StoreError
from penstock.meta.raft.group.entry_log import EntryLog
from penstock.meta.raft.group.leader_contact import LeaderContact
from penstock.meta.raft.group.load import (
    CoreConfiguration,
    Loaded,
    RaftTiming,
    configuration_for_core,
    configuration_of_core,
    load_group,
    timeout_now,
)
from penstock.meta.raft.group.pending_requests import Proposal, Proposals, ReadDone, Reads
from penstock.meta.raft.group.snapshots import (
    CHUNK_SIZE,
    SnapshotReceiving,
    SnapshotSendings,
    delete_generations,
    pinned_state,
)
from penstock.meta.raft.group.status import Hearing, RaftStatus
from penstock.meta.raft.network.frames import Frame, RaftMessage, SnapshotAnswer, SnapshotChunk
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import (
    UNWRITTEN_ENTRIES_MAX,
    UNWRITTEN_SIZE_MAX,
    GroupName,
    LogLimits,
    Machine,
    decode_requests,
)
from penstock.meta.storage.unflushed_rows import UnflushedRows
from penstock.platform.log import get_logger

_logger: Final = get_logger(__name__)

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
Send = Callable[[int, Frame], None]

_VOTE_KINDS: Final = frozenset({5, 17})
_SNAPSHOT_KIND: Final = 7
_HEARTBEAT_KIND: Final = 8
_MESSAGE_SIZE_MAX: Final = 256 << 10
_UNCOMMITTED_SIZE_MAX: Final = 16 << 20
_PROPOSED_SIZE_MAX: Final = 256 << 10
"""Bytes of proposals that a turn takes from one group."""

_UNWRITTEN_TICKS_MAX: Final = 20
"""So long at most what is applied stays unwritten."""

_SUCCESSION_TICKS: Final = 4
"""Between two voters that campaign in place of a leader that is gone."""

_PATIENCE: Final = 4
"""A leader lets its log grow to so many times its limits while a member that lives lags."""

Committed = tuple[int, int, int, bytes, bytes]


class GroupOptions(Struct, frozen=True):
    node_id: int
    wire_number: int
    """How nodes call the group; its number in the rows is its family's own."""
    seed: int
    timing: RaftTiming
    limits: LogLimits
    chunk_size: int = CHUNK_SIZE


class RaftGroup(Generic[RequestT, AnswerT]):
    """Use `MultiRaft.add_group`. All methods belong to the one thread that drives it."""

    _succession: tuple[int, int] | None = None
    """A leader that is gone, and after how many ticks this node campaigns."""
    seen_leader = 0
    """Who led at the last tick; 0: no node. For other threads."""

    def __init__(
        self,
        database: Database,
        name: GroupName,
        machine: Machine[RequestT, AnswerT],
        options: GroupOptions,
        *,
        on_applied: Callable[[AnswerT], None] | None = None,
        on_reset: Callable[[], None] | None = None,
    ) -> None:
        self.name: Final = name
        self._node_id = options.node_id
        self._wire = options.wire_number
        self._database = database
        self._machine = machine
        self._limits = options.limits
        self._on_applied = on_applied
        self._on_reset = on_reset
        self._chunk_size = options.chunk_size
        loaded = load_group(database, name)
        timing, seed = options.timing, options.seed
        self._core = _build_core(loaded, options)
        self._configuration = loaded.configuration
        self._log = EntryLog(database, name, loaded.cut[0], loaded.rows)
        self._applied, self._applied_term = loaded.applied
        self._applied_durable = 0
        self._commit = loaded.hard_state[2]
        self._vote = loaded.hard_state[:2]
        """Term and vote, as they are written."""
        self._generation = loaded.generation
        self._written = self._applied
        self._unwritten_ticks = 0
        self._unwritten_max = max(1, min(UNWRITTEN_ENTRIES_MAX, options.limits.entries_max // 4))
        self.reader: Final = UnflushedRows(
            database, name.state_family, name.number, loaded.generation
        )
        origin = (seed & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")
        deadline = timing.deadline_ticks
        self._proposals: Proposals[RequestT, AnswerT]
        self._proposals = Proposals(origin, deadline_ticks=deadline, group=name.name)
        self._reads = Reads(origin, deadline_ticks=deadline, group=name.name)
        # Two runs of a node must not number their snapshots alike.
        self._sendings = SnapshotSendings(
            self._wire, crc32(origin) << 16, self._core.report_snapshot
        )
        self._receiving = SnapshotReceiving(database, name, loaded.generation)
        self._late_messages: list[tuple[int, int, bytes]] = []
        self._committed: list[Committed] = []
        self._is_ready = self._has_more = False
        self.knows_leader = False
        """As of the last tick. Who hears nothing for an election timeout knows none any more."""
        self._truncation = 0
        """Up to where the log is to be truncated, or 0."""
        self._reset_from: int | None = None
        self._hearing = Hearing(timing.election_ticks)
        self.contact: Final = LeaderContact(self._core.term())

    # -- input ----------------------------------------------------------------------------------

    def tick(self, send: Send) -> None:
        self._hearing.tick()
        self.contact.tick()
        self._core.tick()
        self._succeed(1)
        self._observe()
        self.seen_leader = self._core.leader()
        self.knows_leader = self.seen_leader != 0
        self._proposals.tick(self._leadership(), is_leader=self._core.is_leader())
        self._reads.tick(self._core.read_index)
        self._receiving.tick()
        if self._written < self._applied:
            self._unwritten_ticks += 1
            if self._unwritten_ticks >= _UNWRITTEN_TICKS_MAX:
                self._write_state(Batch())
        for to, chunk in self._sendings.tick():
            send(to, chunk)

    def step(self, sender: int, frame: Frame, send: Send) -> None:
        """Take what another member sent."""
        self._hearing.record(sender)
        match frame:
            case RaftMessage():
                self._step_message(frame.message)
                self._observe()
                if self._core.leader() == sender:
                    self.contact.record()
            case SnapshotChunk():
                send(sender, self._receiving.receive(sender, frame, self._core.step))
            case SnapshotAnswer():
                chunk = self._sendings.answer(sender, frame)
                if chunk is not None:
                    send(sender, chunk)

    def propose(self, proposal: Proposal[RequestT, AnswerT]) -> None:
        self._proposals.add(proposal)

    def read(self, done: ReadDone) -> None:
        """Call `done` when a read here sees everything that was acknowledged before this call."""
        self._reads.add(done)

    def transfer(self, to: int) -> None:
        self._core.transfer(to)

    def succeed_leader(self, leader: int) -> None:
        """Campaign soon if `leader` still leads: its process has ended. The voters begin one after
        the other, for two that begin together may share the votes."""
        voters = [node for node in self._configuration.voters if node != leader]
        if self._core.leader() == leader != self._node_id and self._node_id in voters:
            if self._succession is None:
                self._succession = (leader, _SUCCESSION_TICKS * voters.index(self._node_id))
            self._succeed(0)
            self._observe()

    def _succeed(self, ticks: int) -> None:
        if self._succession is None:
            return
        leader, left = self._succession
        if self._core.leader() != leader:
            self._succession = None
        elif left <= 0:
            # As if the leader had asked for it: the others vote although they heard of it recently.
            self._succession = None
            self._core.step(timeout_now(self._node_id, leader, self._core.term()))
        else:
            self._succession = (leader, left - ticks)

    def truncate_log(self) -> None:
        """Drop all entries that are applied, once their effect is on the device."""
        self._truncation = self._applied

    def campaign(self) -> None:
        self._core.campaign()
        self._observe()

    def _observe(self) -> None:
        self.contact.observe(self._core.term(), leads=self._core.is_leader())

    def report_unreachable(self, node: int) -> None:
        self._core.report_unreachable(node)

    def refuse(self, error: StoreError) -> None:
        self._proposals.refuse(error)
        self._reads.refuse(error)

    def _step_message(self, message: bytes) -> None:
        if not self._configuration.voters:
            # A member without state must not vote, and a heartbeat with a commit index is meant
            # for the previous node of this id.
            kind, _, _, _, commit = RaftCore.peek(message)
            if kind in _VOTE_KINDS or (kind == _HEARTBEAT_KIND and commit > 0):
                return
        self._core.step(message)

    # -- a turn ---------------------------------------------------------------------------------

    def collect(self, batch: Batch, send: Send) -> bool:
        """Put what must be written into `batch`; return whether it must be synced."""
        self._has_more = self._proposals.send(
            self._leadership(), _PROPOSED_SIZE_MAX, self._hand_over
        )
        self._reads.ask(self._core.read_index)
        must_sync_state = self._prepare_truncation()
        self._drop_old_entries(batch)
        self._is_ready = self._core.has_ready()
        if not self._is_ready:
            return must_sync_state
        hard_state, must_sync, rows, restored, messages, late, committed, reads = self._core.ready()
        self._send(messages, send)
        self._late_messages, self._committed = late, committed
        for index, context in reads:
            self._reads.confirm(context, index)
        if restored is not None:
            self._restore(batch, *restored)
        self._log.write(batch, rows)
        if hard_state is not None:
            self._commit = max(self._commit, hard_state[2])
            # How far others have come is learned again at a start; it goes along with what must be
            # written in any case.
            if rows or restored is not None or hard_state[:2] != self._vote:
                self._vote = hard_state[:2]
                self._put_hard_state(batch, hard_state)
        return must_sync or must_sync_state

    def finish(self, send: Send, *, is_synced: bool) -> None:
        """The batch is written, and on the device if `collect` asked for that."""
        if is_synced:
            self._applied_durable = self._written
        self.contact.publish()
        if self._is_ready:
            is_restored = self._reset_from is not None
            if is_restored:
                self._finish_restore()
            messages, more = self._core.advance()
            if is_restored:
                self._core.applied_to(self._applied, self._applied_term)
            self._send(self._late_messages, send)
            self._send(messages, send)
            self._apply([*self._committed, *more])
            self._late_messages, self._committed = [], []
        received = self._receiving.received
        if received is not None and received.is_complete:
            self._receiving.drop()  # the core had no use for it: it knows more already
        self._reads.release(self._applied)

    @property
    def has_work(self) -> bool:
        return self._has_more or self._truncation > 0 or self._core.has_ready()

    def _hand_over(self, proposal: Proposal[RequestT, AnswerT]) -> bool:
        if proposal.changes:
            if self._log.truncated == 0:
                return False  # see `load`: members join only after the log was truncated
            return self._core.propose_conf_change(proposal.context, proposal.changes)
        return self._core.propose(proposal.context, proposal.data)

    def _leadership(self) -> tuple[int, int]:
        return self._core.term(), self._core.leader()

    def _send(self, messages: list[tuple[int, int, bytes]], send: Send) -> None:
        for to, kind, message in messages:
            if kind == _SNAPSHOT_KIND:
                self._send_snapshot(to, message, send)
            else:
                send(to, RaftMessage(self._wire, message))

    def _send_snapshot(self, to: int, message: bytes, send: Send) -> None:
        if self._written < self._applied:
            self._write_state(Batch())
        row, rows = pinned_state(self._database, self.name, self._generation)
        index, term, _ = fmt.APPLIED.unpack(row)
        assert index == self._applied, "the state moves only in a turn"
        members = configuration_for_core(self._configuration)
        message = self._core.retarget_snapshot(message, index, term, members)
        _logger.info("snapshot_sent", group=self.name.name, to=to, index=index)
        send(to, self._sendings.begin(to, message, rows, self._chunk_size))

    # -- the log --------------------------------------------------------------------------------

    def _put_hard_state(self, batch: Batch, hard_state: tuple[int, int, int]) -> None:
        row = fmt.HARD_STATE.pack(*hard_state)
        batch.put(self.name.log_family, fmt.hard_state_key(self.name.number), row)

    def _prepare_truncation(self) -> bool:
        """Return whether a requested truncation waits for the state to be on the device."""
        if self._log.truncated == 0 and self._applied > 0 and self._truncation == 0:
            self._truncation = 1  # see `load`
        if self._truncation <= self._applied_durable:
            return False
        if self._written < self._truncation:
            self._write_state(Batch())
        return True

    def _drop_old_entries(self, batch: Batch) -> None:
        until = min(self._truncation_target(), self._applied_durable)
        if self._truncation <= self._applied_durable:
            self._truncation = 0
        if until <= self._log.truncated:
            return
        self._log.truncate(batch, until)
        self._core.cut(until)

    def _truncation_target(self) -> int:
        """Return up to where the log should be truncated."""
        limits = self._limits
        if 0 < self._truncation <= self._applied_durable:
            return self._truncation
        until = 0
        if self._log.size > limits.size_max:
            until = max(until, self._log.index_leaving(limits.size_max // 2))
        if len(self._log) > limits.entries_max:
            until = max(until, self._log.last - limits.entries_kept)
        is_patient = (
            self._log.size <= _PATIENCE * limits.size_max
            and len(self._log) <= _PATIENCE * limits.entries_max
        )
        if until > self._log.truncated and is_patient and self._core.is_leader():
            # Keep the entries that slow followers lack: they then need no snapshot.
            until = min(
                [until, *[follower[1] for follower in self._core.progress() if follower[4]]]
            )
        return until

    # -- the state ------------------------------------------------------------------------------

    def _restore(
        self, batch: Batch, index: int, term: int, configuration: CoreConfiguration
    ) -> None:
        """Switch to the received state, and to a log that starts after it."""
        family, group = self.name.log_family, self.name.number
        self._reset_from = self._generation
        self._generation = self._receiving.adopt()
        self._configuration = configuration_of_core(configuration)
        self._log.reset(batch, index, term)
        encoded = fmt.encode_configuration(self._configuration)
        batch.put(family, fmt.configuration_key(group), encoded)
        applied = fmt.APPLIED.pack(index, term, self._generation)
        batch.put(self.name.state_family, fmt.applied_key(group), applied)
        self._applied, self._applied_term = index, term
        self._written = index
        self._commit = max(self._commit, index)
        _logger.info("snapshot_installed", group=self.name.name, index=index)

    def _finish_restore(self) -> None:
        assert self._reset_from is not None, "called after a restore only"
        self._applied_durable = self._applied
        self.reader.switch(self._generation)
        delete_generations(self._database, self.name, self._reset_from, self._reset_from + 1)
        self._reset_from = None
        if self._on_reset is not None:
            self._on_reset()

    def _apply(self, entries: list[Committed]) -> None:
        """Apply committed entries, in steps of a bounded size, then answer who waits here."""
        overlay = self.reader.working.overlay()
        answers: list[tuple[bytes, list[AnswerT]]] = []
        for number, (index, term, kind, context, data) in enumerate(entries, start=1):
            assert index == self._applied + 1, "entries are applied in order, each once"
            if kind != fmt.ENTRY_NORMAL:
                self.reader.publish(overlay.changes, overlay.size)
                overlay = self.reader.working.overlay()
                self._applied, self._applied_term = index, term
                self._change_members(kind, data)
                self._proposals.finish_change(context)
            elif data:
                requests = self._proposals.requests(context) or decode_requests(
                    self._machine, data, self._database, self.name, index
                )
                apply = self._machine.apply
                answers.append((context, [apply(overlay, request) for request in requests]))
            self._applied, self._applied_term = index, term
            if overlay.size >= UNWRITTEN_SIZE_MAX or number == len(entries):
                self.reader.publish(overlay.changes, overlay.size)
                self._write_some()
                self._report(answers)
                overlay, answers = self.reader.working.overlay(), []
        if entries:
            self._core.applied_to(self._applied, self._applied_term)

    def _change_members(self, kind: int, data: bytes) -> None:
        members = self._core.apply_conf_change(kind, data)
        self._configuration = configuration_of_core(members)
        key = fmt.configuration_key(self.name.number)
        batch = Batch()
        batch.put(self.name.log_family, key, fmt.encode_configuration(self._configuration))
        self._write_state(batch)

    def _write_some(self) -> None:
        """Write what has gathered, if it is much: a start applies again what is not written."""
        if (
            self.reader.is_large(UNWRITTEN_SIZE_MAX)
            or self._applied - self._written >= self._unwritten_max
        ):
            self._write_state(Batch())

    def _write_state(self, batch: Batch) -> None:
        self.reader.fill(batch)
        row = fmt.APPLIED.pack(self._applied, self._applied_term, self._generation)
        batch.put(self.name.state_family, fmt.applied_key(self.name.number), row)
        self._database.write(batch)
        self.reader.written()
        self._written = self._applied
        self._unwritten_ticks = 0

    def _report(self, answers: list[tuple[bytes, list[AnswerT]]]) -> None:
        for context, outcomes in answers:
            if self._on_applied is not None:
                for answer in outcomes:
                    self._on_applied(answer)
            self._proposals.answer(context, outcomes)

    # -- for others -----------------------------------------------------------------------------

    @property
    def configuration(self) -> fmt.Configuration:
        return self._configuration

    @property
    def is_alone(self) -> bool:
        """Whether no other node votes."""
        now = self._configuration
        return now.voters == (self._node_id,) and not now.voters_outgoing

    @property
    def applied(self) -> int:
        return self._applied

    @property
    def is_leader(self) -> bool:
        return self._core.is_leader()

    @property
    def leader(self) -> int:
        return self._core.leader()

    @property
    def term(self) -> int:
        return self._core.term()

    @property
    def status(self) -> RaftStatus:
        role, term, _, leader, commit, _, first, last = self._core.status()
        return RaftStatus(
            name=self.name.name,
            role=role,
            term=term,
            leader=leader,
            commit=commit,
            applied=self._applied,
            first=first,
            last=last,
            configuration=self._configuration,
            progress=tuple(
                (node, matched, following, state, is_active or self._has_heard(node))
                for node, matched, following, state, is_active in self._core.progress()
            ),
        )

    def _has_heard(self, node: int) -> bool:
        return node == self._node_id or self._hearing.is_recent(node)


def _build_core(loaded: Loaded, options: GroupOptions) -> RaftCore:
    return RaftCore(
        options.node_id,
        configuration=configuration_for_core(loaded.configuration),
        hard_state=loaded.hard_state,
        cut=loaded.cut,
        rows=loaded.rows,
        applied=loaded.applied[0],
        applied_term=loaded.applied[1],
        election_ticks=options.timing.election_ticks,
        heartbeat_ticks=options.timing.heartbeat_ticks,
        message_size_max=_MESSAGE_SIZE_MAX,
        uncommitted_size_max=_UNCOMMITTED_SIZE_MAX,
        seed=options.seed,
    )
