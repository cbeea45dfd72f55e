"""Pending requests of a group: proposals until they are applied here, reads until they are safe.

A proposal is answered by the node that received it, when that node applies it: any node accepts any
request, and a read there sees every change that it answered. When a message to the leader may be
lost, or the leader has changed, the proposal is sent again. The log may then hold it twice, which
is why a request carries an id, or changes nothing when it is repeated.

Proposals that are pending at the same time share one entry of the log, and so its cost on every
node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from penstock.errors import DeadlineError, StoreError
from penstock.meta.storage import log_format as fmt

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

RESEND_TICKS: Final = 20
BUNDLE_MAX: Final = 1_024
_BUNDLED_OVERHEAD: Final = 4


def _ignore_outcome(_outcome: object) -> None:
    """The members of a bundle are answered one by one."""


def _unchanged() -> None:
    """A request changes no members."""


class Proposal(Generic[RequestT, AnswerT]):
    """A pending request; `done` is called once, with its answer or an error. A change of the
    members of the group has no answer: `changed` is called instead."""

    __slots__ = (
        "age",
        "changed",
        "changes",
        "context",
        "data",
        "done",
        "leader",
        "members",
        "request",
        "resend_age",
        "sends",
    )

    def __init__(
        self,
        data: bytes,
        request: RequestT | None,
        done: Callable[[AnswerT | StoreError], None],
        *,
        changes: tuple[tuple[int, int], ...] = (),
        changed: Callable[[], None] = _unchanged,
    ) -> None:
        self.data = data
        self.request = request
        self.members: list[Proposal[RequestT, AnswerT]] = []
        """The proposals of a bundle; empty: a single proposal."""
        self.done = done
        self.changes = changes
        """Changes of the members: (kind, node). Empty: `data` is a request."""
        self.changed = changed
        self.context = b""
        self.age = 0
        self.sends = 0
        self.resend_age = 0
        self.leader = (0, 0)
        """Term and leader when it was sent."""


class Proposals(Generic[RequestT, AnswerT]):
    def __init__(self, origin: bytes, *, deadline_ticks: int, group: str) -> None:
        self._origin = origin
        self._group = group
        self._deadline_ticks = deadline_ticks
        self._count = 0
        self._unsent: deque[Proposal[RequestT, AnswerT]] = deque()
        self._waiting: dict[bytes, Proposal[RequestT, AnswerT]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, proposal: Proposal[RequestT, AnswerT]) -> None:
        self._count += 1
        proposal.context = self._origin + self._count.to_bytes(8, "big")
        self._waiting[proposal.context] = proposal
        self._unsent.append(proposal)

    def send(
        self,
        leader: tuple[int, int],
        size_max: int,
        propose: Callable[[Proposal[RequestT, AnswerT]], bool],
    ) -> bool:
        """Pass the unsent proposals to `propose`, in order, until it returns False or `size_max` is
        reached; return whether the next turn can continue immediately."""
        size = 0
        while self._unsent:
            first = self._unsent[0]
            if first.context not in self._waiting:
                self._unsent.popleft()
                continue
            first = self._bundled(size_max)
            size += len(first.data)
            if size > size_max and size > len(first.data):
                return True
            if not propose(first):
                return False
            self._unsent.popleft()
            first.leader = leader
            # Back off: proposals that are late under load must not add to the load.
            first.resend_age = first.age + (RESEND_TICKS << first.sends)
            first.sends += 1
        return False

    def _bundled(self, size_max: int) -> Proposal[RequestT, AnswerT]:
        """Bundle the first unsent proposals, as many as fit, and return the bundle."""
        members: list[Proposal[RequestT, AnswerT]] = []
        size = 0
        while self._unsent and len(members) < BUNDLE_MAX:
            proposal = self._unsent[0]
            if proposal.context not in self._waiting:
                self._unsent.popleft()
                continue
            if proposal.changes or proposal.members or proposal.sends:
                break
            size += len(proposal.data) + _BUNDLED_OVERHEAD
            if size > size_max and members:
                break
            members.append(proposal)
            self._unsent.popleft()
        if len(members) < 2:
            self._unsent.extendleft(members)
            return self._unsent[0]
        bundle: Proposal[RequestT, AnswerT]
        bundle = Proposal(
            fmt.bundle([proposal.data for proposal in members]), None, _ignore_outcome
        )
        bundle.members = members
        bundle.age = members[0].age
        bundle.context = members[0].context
        for proposal in members:
            del self._waiting[proposal.context]
        self._waiting[bundle.context] = bundle
        self._unsent.appendleft(bundle)
        return bundle

    def tick(self, leader: tuple[int, int], *, is_leader: bool) -> None:
        """Advance the age of all proposals: fail those past the deadline, resend those that may be
        lost. A leader has its own proposals in its log and loses none; only a change of members can
        be dropped."""
        unsent = {proposal.context for proposal in self._unsent}
        late: list[Proposal[RequestT, AnswerT]] = []
        for proposal in self._waiting.values():
            proposal.age += 1
            if proposal.age > self._deadline_ticks:
                late.append(proposal)
            elif proposal.context not in unsent and (
                proposal.leader != leader
                or (proposal.age >= proposal.resend_age and (proposal.changes or not is_leader))
            ):
                self._unsent.append(proposal)
        for proposal in late:
            del self._waiting[proposal.context]
            error = DeadlineError(
                f"group {self._group}: no answer in time; the outcome is unknown, "
                "send the same request again"
            )
            for member in proposal.members or [proposal]:
                member.done(error)

    def requests(self, context: bytes) -> list[RequestT] | None:
        """Return the decoded requests of a pending entry of this node, or None."""
        proposal = self._waiting.get(context)
        if proposal is None:
            return None
        members = proposal.members or [proposal]
        requests = [member.request for member in members if member.request is not None]
        return requests or None

    def answer(self, context: bytes, answers: Sequence[AnswerT]) -> None:
        proposal = self._waiting.pop(context, None)
        if proposal is not None:
            for member, answer in zip(proposal.members or [proposal], answers, strict=True):
                member.done(answer)

    def finish_change(self, context: bytes) -> None:
        """Complete a change of the members that was proposed on this node."""
        proposal = self._waiting.get(context)
        if proposal is not None and proposal.changes:
            del self._waiting[context]
            proposal.changed()

    def refuse(self, error: StoreError) -> None:
        waiting, self._waiting = self._waiting, {}
        self._unsent.clear()
        for proposal in waiting.values():
            for member in proposal.members or [proposal]:
                member.done(error)


ReadDone = Callable[[StoreError | None], None]


class _Round:
    """Reads that share one request to the leader."""

    def __init__(self, waiters: list[ReadDone]) -> None:
        self.waiters = waiters
        self.index: int | None = None
        self.age = 0
        self.asked_age = 0


class Reads:
    """Reads that wait until this node has applied all that was committed when they began."""

    def __init__(self, origin: bytes, *, deadline_ticks: int, group: str) -> None:
        self._origin = origin
        self._group = group
        self._deadline_ticks = deadline_ticks
        self._count = 0
        self._new: list[ReadDone] = []
        self._rounds: dict[bytes, _Round] = {}

    def add(self, done: ReadDone) -> None:
        self._new.append(done)

    def ask(self, ask: Callable[[bytes], None]) -> None:
        if self._new:
            waiters, self._new = self._new, []
            self._ask(_Round(waiters), ask)

    def _ask(self, read_round: _Round, ask: Callable[[bytes], None]) -> None:
        self._count += 1
        context = self._origin + self._count.to_bytes(8, "big")
        self._rounds[context] = read_round
        ask(context)

    def confirm(self, context: bytes, index: int) -> None:
        read_round = self._rounds.get(context)
        if read_round is not None:
            read_round.index = index

    def release(self, applied: int) -> None:
        """Wake the reads whose index is applied."""
        done = [
            context
            for context, read_round in self._rounds.items()
            if read_round.index is not None and read_round.index <= applied
        ]
        for context in done:
            for waiter in self._rounds.pop(context).waiters:
                waiter(None)

    def tick(self, ask: Callable[[bytes], None]) -> None:
        """Repeat requests without a reply: the leader may have changed, or not been ready."""
        for context, read_round in list(self._rounds.items()):
            read_round.age += 1
            if read_round.age > self._deadline_ticks:
                del self._rounds[context]
                error = DeadlineError(f"group {self._group}: no leader answered a read in time")
                for waiter in read_round.waiters:
                    waiter(error)
            elif (
                read_round.index is None
                and read_round.age - read_round.asked_age >= RESEND_TICKS // 4
            ):
                del self._rounds[context]
                read_round.asked_age = read_round.age
                self._ask(read_round, ask)

    def refuse(self, error: StoreError) -> None:
        rounds, self._rounds = self._rounds, {}
        waiters = [
            waiter for read_round in rounds.values() for waiter in read_round.waiters
        ] + self._new
        self._new = []
        for waiter in waiters:
            waiter(error)
