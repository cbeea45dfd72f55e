"""One group of a log of one node: its entries, its queue of proposals, its state machine.

Invariants, asserted where they are made:

  * entries are dense: the log holds exactly the indexes (cut, last]
  * cut <= applied on the device <= applied <= last
  * an entry is applied only after a sync has put it on the device, so a power cut never undoes what
    a reader has seen
  * the applied index, the commit index and the rows that entries changed are one batch, which may
    be written later: until then the log has them

A turn has two halves, driven by `StandaloneLog` for all groups: `begin_turn` puts the queued
proposals into a batch; after the sync `finish_turn` applies them and wakes the proposers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from penstock.errors import NotAStoreError, StoreError
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import BATCH_SIZE_MAX, Batch, Database
from penstock.meta.storage.groups import (
    UNWRITTEN_ENTRIES_MAX,
    UNWRITTEN_SIZE_MAX,
    GroupName,
    LogLimits,
    Machine,
    decode_proposal,
    decode_requests,
    log_corruption,
)
from penstock.meta.storage.unflushed_rows import UnflushedRows

_TURN_SIZE_MAX: Final = BATCH_SIZE_MAX + 4_096

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class GroupStatus(Struct, frozen=True):
    """Where a log stands, for people and tests."""

    name: str
    term: int
    cut: int
    last: int
    applied: int


class _PendingProposal(Generic[RequestT, AnswerT]):
    """A proposal and its outcome. A plain lock wakes its one waiter; an event costs ten of them."""

    __slots__ = ("answer", "data", "error", "request", "woken")

    def __init__(self, data: bytes, request: RequestT) -> None:
        self.data: Final = data
        self.request: Final = request
        self.answer: AnswerT | None = None
        self.error: StoreError | None = None
        self.woken: Final = threading.Lock()
        self.woken.acquire()

    def wait(self) -> AnswerT:
        self.woken.acquire()
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "a proposal is answered before it wakes"
        return self.answer


class StandaloneGroup(Generic[RequestT, AnswerT]):
    """Use `StandaloneLog.add_group`."""

    def __init__(
        self,
        database: Database,
        name: GroupName,
        machine: Machine[RequestT, AnswerT],
        *,
        node_id: int,
        limits: LogLimits,
        on_applied: Callable[[AnswerT], None] | None,
    ) -> None:
        self.name: Final = name
        self._database = database
        self._machine = machine
        self._node_id = node_id
        self._limits = limits
        self._on_applied = on_applied
        self._queued: deque[_PendingProposal[RequestT, AnswerT]] = deque()
        self._queue_lock = threading.Lock()
        self._refusal: StoreError | None = None
        self._wake: Callable[[], None] = lambda: None
        self._turn: list[_PendingProposal[RequestT, AnswerT]] = []
        self._turn_cut = 0
        self._sizes: deque[int] = deque()
        self._held_size = 0
        self._term = 1
        self._cut = self._last = self._applied = self._written = self._applied_durable = 0
        self._unwritten_max = max(1, min(UNWRITTEN_ENTRIES_MAX, limits.entries_max // 4))
        self._generation = fmt.FIRST_GENERATION
        self.reader: UnflushedRows
        self._load()

    # -- proposals ------------------------------------------------------------------------------

    def propose(self, data: bytes) -> AnswerT:
        """Log `data`, apply it and return the answer: it is on the device then.

        Raises `BadRequestError`, with nothing logged, when it is not a request of this group.
        """
        proposal = self._pending_proposal(data)
        self._queue([proposal])
        return proposal.wait()

    def _pending_proposal(self, data: bytes) -> _PendingProposal[RequestT, AnswerT]:
        # What is applied here is what a replay would apply: the bytes, not the object.
        return _PendingProposal(data, decode_proposal(self._machine, data))

    def _queue(self, proposals: Sequence[_PendingProposal[RequestT, AnswerT]]) -> None:
        with self._queue_lock:
            if self._refusal is not None:
                raise self._refusal
            self._queued.extend(proposals)
        self._wake()

    def propose_many(self, requests: Sequence[bytes]) -> list[AnswerT | StoreError]:
        """As `propose` of each; queued together, so that few turns take them all."""
        proposals: list[_PendingProposal[RequestT, AnswerT] | StoreError] = []
        for data in requests:
            try:
                proposals.append(self._pending_proposal(data))
            except StoreError as error:
                proposals.append(error)
        try:
            self._queue([item for item in proposals if isinstance(item, _PendingProposal)])
        except StoreError as error:
            return [item if isinstance(item, StoreError) else error for item in proposals]
        outcomes: list[AnswerT | StoreError] = []
        for proposal in proposals:
            try:
                outcomes.append(proposal if isinstance(proposal, StoreError) else proposal.wait())
            except StoreError as error:
                outcomes.append(error)
        return outcomes

    @property
    def has_work(self) -> bool:
        return bool(self._queued)

    def begin_turn(self, batch: Batch, share: int) -> None:
        """Move queued proposals into `batch`, as entries, up to `share` bytes of them. A larger
        one goes alone, in a turn whose batch still has room."""
        assert not self._turn, "a turn is finished before the next one"
        self._drop_old_entries(batch)
        taken = 0
        while self._queued:
            size = len(self._queued[0].data)
            is_alone = taken == 0 and batch.size + size <= _TURN_SIZE_MAX
            if taken + size > share and not is_alone:
                break
            taken += size
            proposal = self._queued.popleft()
            self._turn.append(proposal)
            index = self._last + len(self._turn)
            row = fmt.encode_entry(fmt.Entry(index=index, term=self._term, data=proposal.data))
            batch.put(self.name.log_family, fmt.entry_key(self.name.number, index), row)

    def abandon_turn(self, error: StoreError) -> None:
        """The batch was not written: its proposals fail, the log is as before."""
        self._turn_cut = self._cut
        self._wake_with(error, self._turn)
        self._turn = []

    def finish_turn(self) -> None:
        """The batch is on the device: apply what it holds, then wake the proposers."""
        self._store_truncation()
        # What was written before this sync is on the device now, too.
        self._applied_durable = self._written
        for proposal in self._turn:
            self._count_entry(len(proposal.data))
        # Should this raise, `refuse` wakes those of the turn, for they are still in it.
        answers = self._apply([proposal.request for proposal in self._turn])
        turn, self._turn = self._turn, []
        for proposal, answer in zip(turn, answers, strict=True):
            proposal.answer = answer
            proposal.woken.release()

    def refuse(self, error: StoreError) -> None:
        """Take no more proposals; those that wait fail with `error`."""
        with self._queue_lock:
            self._refusal = error
            waiting, self._queued = self._queued, deque()
        self._wake_with(error, [*self._turn, *waiting])
        self._turn = []

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    @property
    def status(self) -> GroupStatus:
        return GroupStatus(
            name=self.name.name,
            term=self._term,
            cut=self._cut,
            last=self._last,
            applied=self._applied,
        )

    def _wake_with(
        self, error: StoreError, proposals: list[_PendingProposal[RequestT, AnswerT]]
    ) -> None:
        for proposal in proposals:
            proposal.error = error
            proposal.woken.release()

    # -- the log --------------------------------------------------------------------------------

    def _count_entry(self, size: int) -> None:
        self._last += 1
        self._sizes.append(size)
        self._held_size += size

    def _drop_old_entries(self, batch: Batch) -> None:
        limits = self._limits
        self._turn_cut = self._cut
        if len(self._sizes) <= limits.entries_max and self._held_size <= limits.size_max:
            return
        # Never past the synced state: the entries are the only other copy of what it lacks.
        until = min(self._last - limits.entries_kept, self._applied_durable)
        if self._held_size > limits.size_max:
            until = self._applied_durable
        if until <= self._cut:
            return
        group, family = self.name.number, self.name.log_family
        batch.delete_range(
            family, fmt.entry_key(group, self._cut + 1), fmt.entry_key(group, until + 1)
        )
        last_dropped = self._database.get(family, fmt.entry_key(group, until))
        assert last_dropped is not None, "the log is dense"
        term = fmt.decode_entry(until, last_dropped).term
        batch.put(family, fmt.cut_key(group), fmt.CUT.pack(until, term))
        self._turn_cut = until

    def _store_truncation(self) -> None:
        for _ in range(self._turn_cut - self._cut):
            self._held_size -= self._sizes.popleft()
        self._cut = self._turn_cut

    # -- the state ------------------------------------------------------------------------------

    def _apply(self, requests: list[RequestT]) -> list[AnswerT]:
        """Apply the entries after the applied index, in batches of a bounded size."""
        answers: list[AnswerT] = []
        reported = 0
        overlay = self.reader.working.overlay()
        for number, request in enumerate(requests, start=1):
            answers.append(self._machine.apply(overlay, request))
            if overlay.size >= UNWRITTEN_SIZE_MAX or number == len(requests):
                self.reader.publish(overlay.changes, overlay.size)
                self._applied += len(answers) - reported
                self._write_some()
                for answer in answers[reported:]:
                    self._report(answer)
                reported = len(answers)
                overlay = self.reader.working.overlay()
        assert self._applied == self._last, "a turn applies all that is logged"
        return answers

    def _write_some(self) -> None:
        if (
            self.reader.is_large(UNWRITTEN_SIZE_MAX)
            or self._applied - self._written >= self._unwritten_max
        ):
            self.write_state()

    @property
    def is_written(self) -> bool:
        """Return whether the database has all that is applied."""
        return self._written == self._applied

    def write_state(self) -> None:
        group, applied = self.name.number, self._applied
        batch = Batch()
        self.reader.fill(batch)
        row = fmt.APPLIED.pack(applied, self._term, self._generation)
        batch.put(self.name.state_family, fmt.applied_key(group), row)
        hard_state = fmt.HARD_STATE.pack(self._term, self._node_id, applied)
        batch.put(self.name.log_family, fmt.hard_state_key(group), hard_state)
        self._database.write(batch)
        self.reader.written()
        self._written = applied

    def _report(self, answer: AnswerT) -> None:
        if self._on_applied is not None:
            self._on_applied(answer)

    # -- start ----------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read the log as it is, put it on the device, and apply what was not applied."""
        family, group = self.name.log_family, self.name.number
        hard_state = self._database.get(family, fmt.hard_state_key(group))
        if hard_state is None:
            self._create()
        else:
            self._term = max(1, fmt.HARD_STATE.unpack(hard_state)[0])
        self._check_configuration()
        cut = self._database.get(family, fmt.cut_key(group))
        if cut is not None:
            self._cut, _ = fmt.CUT.unpack(cut)
        self._last = self._cut
        applied = self._database.get(self.name.state_family, fmt.applied_key(group))
        if applied is not None:
            self._applied, _, self._generation = fmt.APPLIED.unpack(applied)
        self.reader = UnflushedRows(self._database, self.name.state_family, group, self._generation)
        unapplied = self._scan_log()
        # The last process may have left entries in the page cache only.
        self._database.sync()
        self._written = self._applied_durable = self._applied
        self._replay(unapplied)

    def _create(self) -> None:
        group, family = self.name.number, self.name.log_family
        configuration = fmt.Configuration(voters=(self._node_id,))
        batch = Batch()
        batch.put(family, fmt.configuration_key(group), fmt.encode_configuration(configuration))
        hard_state = fmt.HARD_STATE.pack(self._term, self._node_id, 0)
        batch.put(family, fmt.hard_state_key(group), hard_state)
        self._database.write(batch)

    def _check_configuration(self) -> None:
        row = self._database.get(self.name.log_family, fmt.configuration_key(self.name.number))
        if row is None:
            raise log_corruption(self._database, self.name, "the configuration is missing")
        configuration = fmt.decode_configuration(row)
        if configuration.voters != (self._node_id,) or configuration.voters_outgoing:
            raise NotAStoreError(
                f"{self._database.path} belongs to a group with the voters "
                f"{', '.join(str(voter) for voter in configuration.voters)}; it runs on one "
                f"node only when node {self._node_id} alone votes"
            )

    def _scan_log(self) -> list[fmt.Entry]:
        """Check that the entries are dense, and return those that were not applied."""
        family, group = self.name.log_family, self.name.number
        unapplied: list[fmt.Entry] = []
        start, end = fmt.entry_key(group, self._cut + 1), fmt.entries_end(group)
        for key, row in self._database.scan(family, start, end):
            index = fmt.entry_index(key)
            if index != self._last + 1:
                raise log_corruption(
                    self._database, self.name, f"the entry after {self._last} is missing"
                )
            entry = fmt.decode_entry(index, row)
            self._count_entry(len(entry.data))
            self._term = max(self._term, entry.term)
            if index > self._applied:
                unapplied.append(entry)
        if not self._cut <= self._applied <= self._last:
            raise log_corruption(
                self._database,
                self.name,
                f"entry {self._applied} is applied, but the log is {self._cut} to {self._last}",
            )
        return unapplied

    def _replay(self, entries: list[fmt.Entry]) -> None:
        requests = [self._decode_logged(entry) for entry in entries]
        for entry, held in zip(entries, requests, strict=True):
            overlay = self.reader.working.overlay()
            for request in held:
                self._machine.apply(overlay, request)
            self.reader.publish(overlay.changes, overlay.size)
            self._applied = entry.index
            self._write_some()
        if not self.is_written:
            self.write_state()

    def _decode_logged(self, entry: fmt.Entry) -> list[RequestT]:
        if entry.kind != fmt.ENTRY_NORMAL:
            raise NotAStoreError(
                f"{self._database.path}: entry {entry.index} of {self.name.name} changes the "
                "group's members and was not applied; start the node in its cluster first"
            )
        if not entry.data:
            return []  # what a Raft leader writes when its term begins
        return decode_requests(self._machine, entry.data, self._database, self.name, entry.index)
