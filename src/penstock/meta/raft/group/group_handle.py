"""A group of a `RaftNode` as other threads use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Final, Generic, Protocol, TypeVar

from penstock.errors import BadRequestError, StaleReadError, StoreError
from penstock.meta.client_api.local_reads import ANY_AGE, LocalRows, current
from penstock.meta.raft.group.pending_requests import Proposal
from penstock.meta.raft.group.raft_group import RaftGroup
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.state.view import Reader
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.groups import GroupName, Machine, decode_proposal
from penstock.platform.clock import Clock

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

_LEADER_CHECK_S: Final = 0.1


class Driver(Protocol):
    """The node whose thread drives the group."""

    staleness_s: float | None
    """The bound of local reads; None: reads are linearizable."""

    @property
    def clock(self) -> Clock: ...

    def post(
        self, work: Callable[[], None], refused: Callable[[StoreError], None] | None = None
    ) -> None:
        """Have the driver's thread run `work`; if it never will, call `refused` with the reason."""
        ...


class _BatchFuture(Generic[AnswerT]):
    """The outcomes of a batch, for one waiting thread. A lock wakes it: an event costs ten times
    as much."""

    def __init__(self, count: int) -> None:
        self._outcomes: dict[int, AnswerT | StoreError] = {}
        self._count = count
        self._lock = threading.Lock()
        self._woken = threading.Lock()
        if count:
            self._woken.acquire()

    def set_outcome(self, number: int, outcome: AnswerT | StoreError) -> None:
        with self._lock:
            self._outcomes[number] = outcome
            is_last = len(self._outcomes) == self._count
        if is_last:
            self._woken.release()

    def wait(self) -> list[AnswerT | StoreError]:
        self._woken.acquire()
        return [self._outcomes[number] for number in range(self._count)]


class _Completion:
    """Completion of an operation without a result, for one waiting thread."""

    def __init__(self) -> None:
        self._error: StoreError | None = None
        self._woken = threading.Lock()
        self._woken.acquire()

    def done(self, error: StoreError | None = None) -> None:
        self._error = error
        self._woken.release()

    def wait(self, seconds: float = -1) -> bool:
        """Return whether the operation completed within `seconds`; raise the error of a failure."""
        is_done = self._woken.acquire(timeout=seconds)
        if self._error is not None:
            raise self._error
        return is_done


class GroupHandle(Generic[RequestT, AnswerT]):
    """A group of this node, for clients on any thread."""

    def __init__(
        self,
        node: Driver,
        group: RaftGroup[RequestT, AnswerT],
        machine: Machine[RequestT, AnswerT],
    ) -> None:
        self._node = node
        self._machine = machine
        self._is_changing = False
        self.group: Final = group
        self.local: Final = group.reader
        """The rows of this node, of any age."""
        self._current_at: float | None = None
        """The rows contain everything that was acknowledged before this time."""

    @property
    def name(self) -> GroupName:
        return self.group.name

    @property
    def reader(self) -> Reader:
        """The rows, with everything that any node acknowledged before this call; of local reads,
        with everything acknowledged `RaftNode.staleness_s` before it."""
        bound_s = self._node.staleness_s
        if bound_s is None or not self._is_within(bound_s * 1_000):
            self.barrier()
        return self.local

    @property
    def age_ms(self) -> int | None:
        """The rows contain everything that was acknowledged longer ago than this; None: unknown."""
        if self._current_at is None:
            return None
        return ceil((self._node.clock.monotonic() - self._current_at) * 1_000)

    def _is_within(self, staleness_ms: float) -> bool:
        age_ms = self.age_ms
        return age_ms is not None and age_ms <= staleness_ms

    def within(self, staleness_ms: int) -> LocalRows:
        """Return the rows of this node once they contain everything older than `staleness_ms`.
        Without a leader raises `StaleReadError` immediately: the caller may ask another node."""
        if staleness_ms == ANY_AGE or self._is_within(staleness_ms):
            age_ms = self.age_ms
            return LocalRows(self.local, lambda: age_ms)
        self.barrier(is_patient=False)
        return current(self.local)

    def _refuse_stale(self) -> None:
        age_ms = self.age_ms
        age = "of unknown age" if age_ms is None else f"up to {age_ms} ms old"
        raise StaleReadError(
            f"group {self.name.name}: the rows of this node are {age}, and it knows no leader; "
            "ask another node"
        )

    def barrier(self, *, is_patient: bool = True) -> None:
        """Wait until reads on this node see everything that was acknowledged before. Raises
        `DeadlineError`, and `StaleReadError` as soon as no leader is known unless `is_patient`."""
        began = self._node.clock.monotonic()
        completion = _Completion()
        self._node.post(partial(self.group.read, completion.done), completion.done)
        while not completion.wait(-1 if is_patient else _LEADER_CHECK_S):
            if not self.group.knows_leader:
                self._refuse_stale()
        self._current_at = max(began, self._current_at or began)

    def propose(self, data: bytes) -> AnswerT:
        """Log `data` in a majority, apply it here and return the answer."""
        (outcome,) = self.propose_many([data])
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def propose_many(self, requests: Sequence[bytes]) -> list[AnswerT | StoreError]:
        """As `propose` of each, all in parallel; an error takes the place of an answer."""
        batch_future: _BatchFuture[AnswerT] = _BatchFuture(len(requests))
        proposals: list[Proposal[RequestT, AnswerT]] = []
        for number, data in enumerate(requests):
            done = partial(batch_future.set_outcome, number)
            try:
                proposals.append(Proposal(data, decode_proposal(self._machine, data), done))
            except BadRequestError as error:
                done(error)

        def propose() -> None:
            for proposal in proposals:
                self.group.propose(proposal)

        def refuse(error: StoreError) -> None:
            for proposal in proposals:
                proposal.done(error)

        self._node.post(propose, refuse)
        return batch_future.wait()

    def change_members(self, *changes: tuple[int, int]) -> None:
        """Change who belongs to the group: (0 voter | 1 removed | 2 learner, node)."""
        completion = _Completion()
        self._node.post(
            partial(self.group.propose, _change(changes, completion.done, completion.done)),
            completion.done,
        )
        completion.wait()

    @property
    def configuration(self) -> fmt.Configuration:
        return self.group.configuration

    @property
    def status(self) -> RaftStatus:
        return self.group.status

    def begin_change(self, change: tuple[int, int]) -> None:
        """Propose a change of the members from the driver's thread, without waiting for it."""
        if not self._is_changing:
            self._is_changing = True
            self.group.propose(_change((change,), self._end_change, self._end_change))

    def _end_change(self, _error: StoreError | None = None) -> None:
        self._is_changing = False

    def truncate_log(self) -> None:
        self._node.post(self.group.truncate_log)

    def transfer(self, to: int) -> None:
        self._node.post(partial(self.group.transfer, to))


def _change(
    changes: tuple[tuple[int, int], ...],
    changed: Callable[[], None],
    failed: Callable[[StoreError], None],
) -> Proposal[RequestT, AnswerT]:
    def done(outcome: AnswerT | StoreError) -> None:
        assert isinstance(outcome, StoreError), "a change of the members has no answer"
        failed(outcome)

    return Proposal(b"", None, done, changes=changes, changed=changed)
