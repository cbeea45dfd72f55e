"""Routes requests to the coordinator of a group, on this node or another.

A question is passed on once: a node that does not coordinate the group says so, and the member
asks again. Which node does is asked at one place, `GroupCoordinator.node_of`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.errors import BadRequestError, DeadlineError, StoreError
from penstock.groups.codes import GroupCode
from penstock.groups.consumer_protocol import TopicPartition, decode_assignment
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Answer, Caller, GroupState, Join, Joined, Sync, Synced
from penstock.meta import DEFAULT_NAMESPACE

WAIT_S_MAX: Final = 5.0
OTHER_NODE_S: Final = 30.0
"""How long another node may take to answer."""


class MemberView(Struct, frozen=True):
    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]


class GroupView(Struct, frozen=True):
    """A group as its coordinator sees it."""

    state: str = GroupState.EMPTY.value
    protocol: str = ""
    members: tuple[MemberView, ...] = ()
    pending: tuple[str, ...] = ()
    """Ids of members that are about to join."""

    @property
    def is_empty(self) -> bool:
        return not self.members and not self.pending


class Question(Struct, frozen=True):
    namespace: str
    group: str
    join: Join | None = None
    sync: Sync | None = None
    heartbeat: Caller | None = None
    leave: Caller | None = None
    commit: Caller | None = None
    partitions: tuple[TopicPartition, ...] = ()
    seconds: float = 0.0


class Reply(Struct, frozen=True):
    joined: Joined | None = None
    synced: Synced | None = None
    code: GroupCode = GroupCode.none
    view: GroupView | None = None


ROUTE_S: Final = 6.0
"""How long a commit is retried at the coordinator: a lost node is noticed within three seconds."""
_PAUSE_S: Final = 0.05
_PASSING: Final = frozenset(
    {
        GroupCode.coordinator_load_in_progress,
        GroupCode.coordinator_not_available,
        GroupCode.not_coordinator,
    }
)

_encoder: Final = Encoder()
_questions: Final = Decoder(Question)
_replies: Final = Decoder(Reply)


class PendingReply:
    """The reply to a question that is under way; `wake` is called when it is there."""

    def __init__(self, question: Question, wake: Callable[[], None], grace_s: float = 0.0) -> None:
        """`grace_s` is how much longer than the question says the reply may take."""
        self.grace_s: Final = grace_s
        self._question: Final = question
        self._wake: Final = wake
        self._reply: Reply | StoreError | None = None

    @property
    def is_there(self) -> bool:
        return self._reply is not None

    def now(self) -> Reply:
        """Return the reply, or that the group has not decided. Raises what another node raised."""
        reply = self._reply
        if reply is None:
            return _refused(self._question, GroupCode.still_waiting)
        if isinstance(reply, StoreError):
            raise reply
        return reply

    def set_reply(self, reply: Reply | StoreError) -> None:
        self._reply = reply
        self._wake()

    def set_answer(self, answer: Answer) -> None:
        """Take what this node's coordinator has answered; a group that it abandons answers joins
        and syncs alike."""
        if isinstance(answer, Joined) and self._question.join is not None:
            self.set_reply(Reply(joined=answer))
        elif isinstance(answer, Synced) and self._question.sync is not None:
            self.set_reply(Reply(synced=answer))
        else:
            self.set_reply(_refused(self._question, answer.error))

    def set_packed(self, reply: bytes | StoreError) -> None:
        """Take what another node has answered."""
        if isinstance(reply, StoreError):
            self.set_reply(reply)
            return
        try:
            self.set_reply(_replies.decode(reply))
        except MsgspecError as error:
            self.set_reply(DeadlineError(f"the coordinator's reply cannot be decoded: {error}"))


class GroupRouter:
    """The operations on groups of the store's own interfaces."""

    def __init__(self, here: GroupCoordinator) -> None:
        self._here: Final = here

    def ask(self, question: Question) -> Reply:
        here = self._here
        if here.send_to_coordinator is None or here.is_here(question.group):
            return answer(here, question)
        node = here.node_of(question.group)
        if node is None:
            return _refused(question, GroupCode.coordinator_not_available)
        return _replies.decode(here.send_to_coordinator(node, _encoder.encode(question)))

    def begin(self, question: Question, wake: Callable[[], None]) -> PendingReply:
        """Ask without waiting; `wake` is called when the reply is there."""
        here = self._here
        if here.ask_other_later is None or here.is_here(question.group):
            return begin_answer(here, question, wake)
        pending = PendingReply(question, wake, OTHER_NODE_S)
        node = here.node_of(question.group)
        if node is None:
            pending.set_reply(_refused(question, GroupCode.coordinator_not_available))
        else:
            here.ask_other_later(node, _encoder.encode(question), pending.set_packed)
        return pending

    def check_commit(
        self, namespace: str, group: str, caller: Caller, partitions: Collection[TopicPartition]
    ) -> tuple[GroupCode, bool]:
        """Say whether a member may commit. While a group moves to another coordinator, or is loaded
        there, this waits: for a commit that is not a member's, too. The second: whether it did."""
        question = Question(namespace, group, commit=caller, partitions=tuple(partitions))
        has_waited = False
        until = time.monotonic() + ROUTE_S
        while True:
            is_last = time.monotonic() >= until
            try:
                code = self._check_commit(question)
            except DeadlineError:
                if is_last:
                    raise
            else:
                if code not in _PASSING or is_last:
                    return code, has_waited
            has_waited = True
            time.sleep(_PAUSE_S)

    def _check_commit(self, question: Question) -> GroupCode:
        here, caller = self._here, question.commit
        if caller is None or not (here.send_to_coordinator is None or here.is_here(question.group)):
            return self.ask(question).code
        return here.check_commit(
            question.group, caller, namespace=question.namespace, partitions=question.partitions
        )

    def view(self, namespace: str, group: str) -> GroupView:
        reply = self.ask(Question(namespace, group))
        return reply.view or GroupView()

    def views(self, namespace: str | None) -> dict[tuple[str, str], GroupView]:
        """Return the groups of this node that have members."""
        here = self._here
        return {
            (key.namespace, key.group): _view(here, Question(key.namespace, key.group))
            for key, _ in here.with_members(namespace)
        }


def begin_packed(
    here: GroupCoordinator, data: bytes, wake: Callable[[], None]
) -> tuple[PendingReply, float]:
    """Begin to answer the question of another node, and say for how long it waits."""
    try:
        question = _questions.decode(data)
    except MsgspecError as error:
        raise BadRequestError(f"a question about a group cannot be decoded: {error}") from error
    if here.is_here(question.group):
        return begin_answer(here, question, wake), _seconds(question)
    pending = PendingReply(question, wake)
    pending.set_reply(_refused(question, GroupCode.not_coordinator))
    return pending, 0.0


def pack(reply: Reply) -> bytes:
    return _encoder.encode(reply)


def begin_answer(
    here: GroupCoordinator, question: Question, wake: Callable[[], None]
) -> PendingReply:
    """Ask this node's coordinator. Joins and syncs are answered when the group has decided."""
    pending = PendingReply(question, wake)
    namespace, group = question.namespace or DEFAULT_NAMESPACE, question.group
    if question.join is not None:
        here.join(group, question.join, pending.set_answer, namespace=namespace)
    elif question.sync is not None:
        here.sync(group, question.sync, pending.set_answer, namespace=namespace)
    else:
        pending.set_reply(answer(here, question))
    return pending


def _seconds(question: Question) -> float:
    return min(max(0.0, question.seconds), WAIT_S_MAX)


def answer(here: GroupCoordinator, question: Question) -> Reply:
    """Pass a request to this node's coordinator."""
    namespace, group = question.namespace or DEFAULT_NAMESPACE, question.group
    seconds = _seconds(question)
    if question.join is not None:
        return Reply(joined=here.join_within(group, question.join, seconds, namespace=namespace))
    if question.sync is not None:
        return Reply(synced=here.sync_within(group, question.sync, seconds, namespace=namespace))
    if question.heartbeat is not None:
        return Reply(code=here.heartbeat(group, question.heartbeat, namespace=namespace))
    if question.leave is not None:
        caller = question.leave
        code = here.leave(group, caller.member_id, caller.instance_id, namespace=namespace)
        return Reply(code=code)
    if question.commit is not None:
        return Reply(
            code=here.check_commit(
                group, question.commit, namespace=namespace, partitions=question.partitions
            )
        )
    return Reply(view=_view(here, question))


def _refused(question: Question, code: GroupCode) -> Reply:
    if question.join is not None:
        return Reply(joined=Joined(code, question.join.member_id))
    if question.sync is not None:
        return Reply(synced=Synced(code))
    return Reply(code=code)


def _view(here: GroupCoordinator, question: Question) -> GroupView:
    with here.lock:
        machine = here.find(question.group, namespace=question.namespace)
        if machine is None:
            return GroupView()
        is_stable = machine.state is GroupState.STABLE
        members = tuple(
            MemberView(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host.removeprefix("/"),
                instance_id=member.instance_id,
                partitions=tuple(sorted(decode_assignment(member.assignment))) if is_stable else (),
            )
            for member in machine.members
        )
        protocol = machine.members.protocol or ""
        return GroupView(machine.state.value, protocol, members, tuple(machine.members.pending))
