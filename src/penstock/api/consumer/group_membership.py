"""Client side of group membership: joins, heartbeats and the assigned partitions of a consumer.

A background thread sends heartbeats and takes part in rebalances, so that a slow consumer does not
block the group. It never revokes a partition itself: the consumer does that in its own thread at
the next read (`pending`, `set_owned`). With the cooperative protocol the thread rejoins immediately
and the consumer keeps reading the partitions it retains; with an eager protocol (Kafka clients that
support no other) it rejoins after the consumer has released all of them.

A consumer that does not poll for `max_poll_interval` seconds leaves the group; its next call
reports the lost partitions.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final
from weakref import WeakSet

from msgspec import Struct

from penstock.api.backend import Backend, TopicPartition
from penstock.api.consumer.group_client import GroupClient, MemberOptions
from penstock.errors import (
    ClosedError,
    GroupFencedError,
    RebalanceInProgressError,
    RequestError,
    RetryableError,
    StoreError,
    UnknownTopicError,
)
from penstock.groups.assignors import ASSIGNORS, COOPERATIVE
from penstock.groups.codes import GroupCode
from penstock.groups.consumer_protocol import (
    CONSUMER,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.groups.error_mapping import GONE, LATER, refusal
from penstock.groups.model import NO_GENERATION, Caller, Joined, Sync, Synced
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.record import Offset

HEARTBEAT_S: Final = 0.5
SETTLE_S: Final = 5.0
"""How long a consumer without partitions waits for a rebalance under way."""
COMMIT_TIMEOUT_S: Final = 30.0
"""How long a commit waits for one."""
_PAUSE_S: Final = 0.1
_NOTHING: Final[frozenset[TopicPartition]] = frozenset()

_log: Final = get_logger(__name__)


class Pending(Struct, frozen=True):
    """Partitions that the consumer must release and take over."""

    revoked: frozenset[TopicPartition] = _NOTHING
    assigned: frozenset[TopicPartition] = _NOTHING
    is_lost: bool = False
    """Other members may already own the revoked partitions."""


class Membership:
    def __init__(
        self,
        backend: Backend,
        namespace: str,
        group: str,
        topics: Sequence[str],
        options: MemberOptions,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._client: Final = GroupClient(backend, namespace, group, options)
        self._group: Final = group
        self._topics: Final = tuple(topics)
        self._options: Final = options
        self._clock: Final = clock if clock is not None else SystemClock()
        self._changed: Final = threading.Condition()
        self._wakes: Final[SimpleQueue[None]] = SimpleQueue()  # also from a finalizer
        self._pid: Final = os.getpid()
        self._is_closed = False
        self._failure: StoreError | None = None
        self._member_id = ""
        self._generation = NO_GENERATION
        self._protocol = ""
        self._is_leader = False
        self._counts: dict[str, int] = {}
        """Partitions by topic, as this leader saw them when it assigned them."""
        self._must_join = True
        self._is_lost = False
        self._target = _NOTHING
        self._owned = _NOTHING
        self._started = self._finished = 0
        self.last_poll = self._clock.monotonic()
        self._thread: Final = threading.Thread(
            target=self._run, name=f"penstock-member-{group}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        _open.add(self)

    # For the consumer, in its own thread

    def pending(self) -> Pending | None:
        """Return the assignment change to apply before the next read."""
        self.last_poll = self._clock.monotonic()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._is_lost:
                return Pending(revoked=self._owned, is_lost=True)
            if self._must_join:
                if self._owned and self._protocol != COOPERATIVE:
                    return Pending(revoked=self._owned)
                return None
            if self._owned == self._target:
                return None
            return Pending(self._owned - self._target, self._target - self._owned)

    def set_owned(self, owned: Iterable[TopicPartition], done: Pending) -> None:
        """Set the owned partitions after a pending change was applied."""
        with self._changed:
            self._owned = frozenset(owned)
            if done.is_lost:
                self._is_lost = False
                self._must_join = True
            elif done.revoked and self._protocol == COOPERATIVE:
                self._must_join = True  # another member waits for what was given up
            self._changed.notify_all()
        self._wake()

    def update_partition_counts(self, counts: dict[str, int]) -> bool:
        """Compare the partition counts with the leader's assignment; True: it reassigns."""
        with self._changed:
            if not self._is_leader or self._must_join:
                return False
            if all(self._counts.get(topic) == count for topic, count in counts.items()):
                return False
            self._must_join = True
        self._wake()
        return True

    def wait_for_rebalance(self, seconds: float) -> bool:
        """Wait until the group has assigned partitions to this consumer."""
        with self._changed:
            return self._changed.wait_for(self._is_settled, seconds)

    def poll_coordinator(self, seconds: float) -> None:
        """Ask for the group's state without waiting for the next heartbeat, and wait for a
        rebalance under way."""
        until = self._clock.monotonic() + seconds
        with self._changed:
            before = self._started
            self._wake()
            self._changed.wait_for(lambda: self._finished > before or self._is_over(), seconds)
        self.wait_for_rebalance(max(0.0, until - self._clock.monotonic()))

    def _caller(self) -> Caller:
        """Return the member identity; raise `GroupFencedError` if it is no longer a member."""
        with self._changed:
            if self._is_lost:
                raise GroupFencedError(
                    self._group,
                    "this consumer exceeded its poll interval or session and lost its partitions",
                )
            return Caller(self._member_id, self._generation, self._options.instance_id)

    def commit(
        self, offsets: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, str]
    ) -> None:
        """Commit as a member; wait for a rebalance under way, which changes the generation."""
        deadline = self._clock.monotonic() + COMMIT_TIMEOUT_S
        while True:
            caller = self._caller()
            try:
                self._client.commit(offsets, topic_ids, caller)
            except (GroupFencedError, RebalanceInProgressError):
                left = deadline - self._clock.monotonic()
                is_moving = (self._must_join and not self._is_over()) or self._caller() != caller
                if left <= 0 or not is_moving:
                    raise
                self.wait_for_rebalance(min(left, SETTLE_S))
            else:
                return

    def close(self) -> None:
        """Leave the group. Closing twice does nothing."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self.abandon()
        _open.discard(self)
        self._leave()
        with self._changed:
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let the thread leave the group; safe in a finalizer."""
        self._is_closed = True
        self._wakes.put(None)

    # In the thread

    def _run(self) -> None:
        while not self._is_closed:
            self._started += 1
            pause_s = HEARTBEAT_S
            try:
                if self._may_join():
                    pause_s = self._join()
                else:
                    self._beat()
            except ClosedError:
                break
            except RetryableError as error:
                _log.debug("group_member_waits", group=self._group, reason=str(error))
            except StoreError as error:
                self._fail(error)
                return
            with self._changed:
                self._finished = self._started
                self._changed.notify_all()
            if pause_s and not (pause_s == HEARTBEAT_S and self._may_join()):
                self._pause(pause_s)
        self._is_closed = True
        with self._changed:
            self._changed.notify_all()
        self._leave()

    def _pause(self, seconds: float) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=seconds)
            while not self._wakes.empty():
                self._wakes.get_nowait()

    def _may_join(self) -> bool:
        with self._changed:
            if not self._must_join or self._is_lost:
                return False
            return not self._owned or self._protocol == COOPERATIVE

    def _beat(self) -> None:
        with self._changed:
            caller = Caller(self._member_id, self._generation, self._options.instance_id)
            if self._generation == NO_GENERATION or self._is_lost:
                return
        if self._clock.monotonic() - self.last_poll > self._options.max_poll_interval:
            _log.warning("group_member_idle", group=self._group, member=caller.member_id)
            self._lose()
            self._leave()
            return
        code = self._client.heartbeat(caller)
        if code is GroupCode.rebalance_in_progress:
            with self._changed:
                self._must_join = True
        elif code in GONE:
            if code is GroupCode.unknown_member_id:
                self._member_id = ""
            self._lose()
        elif code not in LATER and code is not GroupCode.none:
            raise refusal(code, self._group)

    def _lose(self) -> None:
        with self._changed:
            self._generation = NO_GENERATION
            self._target = _NOTHING
            self._is_lost = bool(self._owned)
            self._must_join = not self._is_lost

    def _join(self) -> float:
        """Join, or go on with it; return how long to pause."""
        joined = self._client.join(self._member_id, self._protocols())
        match joined.error:
            case GroupCode.none:
                return self._sync(joined)
            case GroupCode.member_id_required:
                self._member_id = joined.member_id
            case GroupCode.still_waiting | GroupCode.rebalance_in_progress:
                pass
            case GroupCode.unknown_member_id:
                self._member_id = ""
                self._lose()
            case code if code in LATER:
                return _PAUSE_S
            case code:
                raise refusal(code, self._group)
        return 0.0

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        with self._changed:
            subscription = Subscription(self._topics, self._owned, self._generation)
        plain = encode_subscription(subscription, version=0)
        owning = encode_subscription(subscription, version=1)
        return tuple((name, owning if name == COOPERATIVE else plain) for name in ASSIGNORS)

    def _released(self, joined: Joined) -> bool:
        """Wait until the consumer has given up all it had, if the group's protocol is an eager one;
        meanwhile it can still commit. False: it is a member no more."""
        caller = Caller(joined.member_id, joined.generation, self._options.instance_id)
        while joined.protocol != COOPERATIVE and not self._is_closed:
            with self._changed:
                if self._changed.wait_for(lambda: not self._owned, HEARTBEAT_S):
                    return True
            if self._clock.monotonic() - self.last_poll > self._options.max_poll_interval:
                return False
            if self._client.heartbeat(caller) in GONE:
                return False
        return True

    def _sync(self, joined: Joined) -> float:
        is_leader = joined.leader == joined.member_id
        with self._changed:
            self._generation, self._protocol = joined.generation, joined.protocol or ""
            self._is_leader = is_leader
        if not self._released(joined):
            self._lose()
            return HEARTBEAT_S
        assignments = self._assign(joined) if is_leader else ()
        caller = Caller(joined.member_id, joined.generation, self._options.instance_id)
        request = Sync(caller, assignments, CONSUMER, joined.protocol)
        self._member_id = joined.member_id
        synced = Synced(GroupCode.still_waiting)
        while synced.error is GroupCode.still_waiting and not self._is_closed:
            synced = self._client.sync(request)
        if synced.error is GroupCode.none:
            with self._changed:
                self._must_join = False
                self._target = decode_assignment(synced.assignment)
                self._changed.notify_all()
            return HEARTBEAT_S
        if synced.error is GroupCode.unknown_member_id:
            self._member_id = ""
            self._lose()
        return _PAUSE_S if synced.error in LATER else 0.0

    def _assign(self, joined: Joined) -> tuple[tuple[str, bytes], ...]:
        members = {
            member.member_id: decode_subscription(member.metadata) for member in joined.members
        }
        counts: dict[str, int] = {}
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            with suppress(UnknownTopicError):
                counts[topic] = self._client.partition_count(topic)
        assign = ASSIGNORS[joined.protocol or ""]
        self._counts = counts
        return tuple(
            (member, encode_assignment(partitions))
            for member, partitions in assign(members, counts).items()
        )

    def _leave(self) -> None:
        member_id = self._member_id
        if member_id and self._options.instance_id is None:
            self._member_id = ""
            with suppress(StoreError):
                self._client.leave(member_id)

    def _fail(self, error: StoreError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _is_settled(self) -> bool:
        return self._is_over() or (not self._must_join and self._generation != NO_GENERATION)

    def _is_over(self) -> bool:
        return self._is_closed or self._failure is not None

    def _wake(self) -> None:
        self._wakes.put(None)


_open: Final[WeakSet[Membership]] = WeakSet()


def _leave_all() -> None:
    """A program that ends without closing its consumers does not keep others waiting."""
    for member in tuple(_open):
        with suppress(RequestError):
            member.close()


atexit.register(_leave_all)
