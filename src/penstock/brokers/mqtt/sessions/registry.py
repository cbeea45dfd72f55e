"""`SessionRegistry`: the sessions of the node, from CONNECT to their end.

open         take over or end the session that is there ─▶ row stored ─▶ attached
subscribe    limits ─▶ row stored ─▶ tree; then retained messages
close        detached; a session that outlives the connection keeps its rows, wills wait
upkeep       each second: sessions that expired end, wills that are due are published
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from secrets import randbits
from typing import Final

from penstock.brokers.mqtt.deliver.delivery import Delivery
from penstock.brokers.mqtt.deliver.replay import Replay, begin_replay
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.sessions.errors import SessionLimitError, SessionTakenOverError
from penstock.brokers.mqtt.sessions.expiry import DueTimes
from penstock.brokers.mqtt.sessions.interface import SharedSubscriptions, is_shared
from penstock.brokers.mqtt.sessions.session import Session, WillRecord
from penstock.brokers.mqtt.sessions.sink import ClientSink
from penstock.brokers.mqtt.sessions.store import SessionStore
from penstock.brokers.mqtt.sessions.wills import Wills
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.subscriptions.replay import PREFIX, parse_start, split_replay
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import StoreError
from penstock.platform.log import get_logger

EXPIRY_CAP_S: Final = 7 * 24 * 3600
NUMBER_BITS: Final = 62

_log: Final = get_logger(__name__)


class RegistryLimits:
    """Bounds of the tables."""

    __slots__ = ("expiry_s", "sessions", "subscriptions", "subscriptions_per_session")

    def __init__(
        self,
        *,
        sessions: int = 1_000_000,
        subscriptions: int = 2_000_000,
        subscriptions_per_session: int = 1_000,
        expiry_s: int = EXPIRY_CAP_S,
    ) -> None:
        self.sessions: Final = sessions
        self.subscriptions: Final = subscriptions
        self.subscriptions_per_session: Final = subscriptions_per_session
        self.expiry_s: Final = expiry_s


class SessionRegistry:
    def __init__(
        self,
        delivery: Delivery,
        store: SessionStore,
        wills: Wills,
        limits: RegistryLimits,
        *,
        replay: Replay,
        shared: SharedSubscriptions | None = None,
    ) -> None:
        self.replay: Final = replay
        self.delivery: Final = delivery
        self.store: Final = store
        self.wills: Final = wills
        self.limits: Final = limits
        self.shared = shared
        self._sessions: Final[dict[str, Session]] = {}
        store.has_session = self._sessions.__contains__
        self._due: Final[DueTimes[Session]] = DueTimes()
        self.partition_of: Callable[[str], int] = lambda _: -1
        self.make_number: Callable[[], int] = lambda: randbits(NUMBER_BITS) | 1
        self.connected = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def find(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def kick(self, client_id: str, reason_code: int = ReasonCode.ADMINISTRATIVE_ACTION) -> bool:
        """Disconnect the client of a session; return whether one was connected."""
        session = self._sessions.get(client_id)
        if session is None or session.owner is None:
            return False
        session.owner.disconnect(reason_code)
        return True

    # Opening

    async def open(
        self,
        client_id: str,
        *,
        clean_start: bool,
        expiry_s: int,
        version: int,
        will: WillRecord | None,
        sink: ClientSink,
    ) -> tuple[Session, bool]:
        """Return the session of a client, attached to its connection, and whether it was there
        before. Its row is stored. Nothing is sent before the next turn of the loop, so that CONNACK
        comes first. Raises `SessionTakenOverError`, `SessionLimitError`, or what the storage
        raises."""
        now_ms = self.delivery.now_ms()
        session = self._sessions.get(client_id)
        if session is not None:
            self._end_connection(session)
            is_expired = 0 < session.expires_at_ms <= now_ms
            if clean_start or is_expired:
                self._end(session)
                session = None
        is_present = session is not None
        if session is None:
            session = self._create(client_id, version)
        session.owner = sink
        session.version = version
        session.expiry_s = min(expiry_s, self.limits.expiry_s)
        session.connects += 1
        session.disconnected_at_ms = 0
        session.will_due_ms = 0
        session.will = will
        if will is not None:
            will.token = 0x1_0000 + session.connects
        await self._store_opened(session, sink, is_present=is_present)
        if session.owner is not sink or session.is_ended:
            raise SessionTakenOverError(f"session {client_id!r} was taken over")
        self.connected += 1
        session.attach(sink)
        if self.shared is not None:
            self.shared.attached(session)
        return session, is_present

    async def _store_opened(self, session: Session, sink: ClientSink, *, is_present: bool) -> None:
        """Write the row of a session that is being opened, or remove those of one that does not
        outlive its new connection. When that fails, the session has no connection."""
        is_stored = False
        try:
            if session.expiry_s > 0:
                session.is_persistent = True
                await self.store.put(session)
            elif session.is_persistent:
                await self.store.remove(session)
                session.is_persistent = False
            is_stored = True
        finally:
            if not is_stored and session.owner is sink and not session.is_ended:
                session.owner = session.will = None
                if is_present:
                    session.disconnected_at_ms = self.delivery.now_ms()
                    self._add_due(session)
                else:
                    self._end(session)

    def _create(self, client_id: str, version: int) -> Session:
        if len(self._sessions) >= self.limits.sessions:
            raise SessionLimitError(
                f"the node has {len(self._sessions)} sessions, and at most "
                f"{self.limits.sessions} (mqtt.sessions_max)"
            )
        session = Session(self.make_number(), client_id, self.delivery, version=version)
        session.partition = self.partition_of(client_id)
        self._sessions[client_id] = session
        return session

    def _end_connection(self, session: Session) -> None:
        owner = session.owner
        if owner is not None:
            self._detach(session)
            owner.disconnect(ReasonCode.SESSION_TAKEN_OVER)
            if session.will is not None and session.will.delay_s == 0:
                self.wills.publish(session)
        # A client that is back before its will is due has none to be published.
        session.will_due_ms = 0

    def _detach(self, session: Session) -> None:
        if session.sink is not None:
            self.connected -= 1
            session.detach()
            if self.shared is not None:
                self.shared.detached(session)
        session.owner = None

    # Ending

    async def close(
        self, session: Session, *, sink: ClientSink, expiry_s: int | None, sends_will: bool
    ) -> None:
        """A connection has ended. `expiry_s` is that of DISCONNECT; None: it has none. Does nothing
        if another connection has the session."""
        if session.owner is not sink:
            return
        self._detach(session)
        session.disconnected_at_ms = self.delivery.now_ms()
        if expiry_s is not None:
            session.expiry_s = min(expiry_s, self.limits.expiry_s)
        if not sends_will:
            session.will = None
        if session.expiry_s == 0:
            self._end(session)
            return
        self._wait(session)
        await self.store.put_with_position(session)

    def _wait(self, session: Session) -> None:
        """Let time run for a session without a client."""
        if session.will is not None:
            delay_s = min(session.will.delay_s, session.expiry_s)
            session.will_due_ms = session.disconnected_at_ms + delay_s * 1000
            if delay_s == 0:
                self.wills.publish(session)
        self._add_due(session)

    def _add_due(self, session: Session) -> None:
        """Each session is at most once in the heap, at its next time or before."""
        due_ms = session.expires_at_ms
        if session.will is not None and session.will_due_ms:
            due_ms = min(due_ms, session.will_due_ms)
        if not session.due_ms or due_ms < session.due_ms:
            self._due.add(due_ms, session)
            session.due_ms = due_ms

    def _end(self, session: Session) -> None:
        """Remove a session and its rows."""
        self._detach(session)
        if session.will is not None:
            self.wills.publish(session)
        self._remove_subscriptions(session, list(session.subscriptions.values()))
        if self.shared is not None:
            self.shared.ended(session)
        session.is_ended = True
        session.hints = None
        self._sessions.pop(session.client_id, None)
        if session.is_persistent:
            self.store.remove_soon(session)

    def remove(self, client_id: str) -> bool:
        """End a session, and disconnect its client; return whether there was one."""
        session = self._sessions.get(client_id)
        if session is None:
            return False
        owner = session.owner
        self._end(session)
        if owner is not None:
            owner.disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
        return True

    def run_due(self) -> None:
        """End the sessions that have expired, and publish the wills that are due."""
        now_ms = self.delivery.now_ms()
        for due_ms, session in self._due.pop_due(now_ms):
            if session.due_ms != due_ms:
                continue  # it has an earlier place
            session.due_ms = 0
            if session.is_ended or not session.disconnected_at_ms:
                continue
            if session.expires_at_ms <= now_ms:
                self.expired += 1
                self._end(session)
                continue
            if session.will is not None and session.will_due_ms <= now_ms:
                self.wills.publish(session)
            self._add_due(session)

    # Subscriptions

    async def subscribe(self, session: Session, subscriptions: Sequence[Subscription]) -> list[int]:
        """Add subscriptions, or replace those with the same filters; return the reason codes of
        SUBACK. They are stored. Retained messages follow in a later turn of the loop."""
        starts: dict[str, dict[ShardTail, int]] = {}
        filters = set(session.subscriptions)
        codes = [await self._accept(session, item, starts, filters) for item in subscriptions]
        added: list[tuple[Subscription, Subscription | None]] = []
        for subscription, code in zip(subscriptions, codes, strict=True):
            if code >= ReasonCode.UNSPECIFIED_ERROR:
                continue
            replaced = session.subscriptions.get(subscription.filter)
            session.subscriptions[subscription.filter] = subscription
            self._set_starts(session, subscription, replaced)
            added.append((subscription, replaced))
        if added and session.is_persistent:
            await self._store_subscriptions(session, added)
        if session.is_ended:
            return codes
        for subscription, replaced in added:
            is_current = session.subscriptions.get(subscription.filter) is subscription
            if not is_current or is_shared(subscription.filter):
                continue  # not current: replaced or removed while the row was written
            self.delivery.tree.add(session, subscription)
            if subscription.filter not in starts:
                self._queue_retained(session, subscription, is_new=replaced is None)
            elif session.sink is not None:
                begin_replay(session, subscription, starts[subscription.filter])
        if starts and session.is_persistent:
            await self.store.put_with_position(session)
        return codes

    async def _store_subscriptions(
        self, session: Session, added: list[tuple[Subscription, Subscription | None]]
    ) -> None:
        """Write the row of a session with new subscriptions; it has the replaced ones again when
        that fails."""
        try:
            await self.store.put(session)
        except StoreError:
            for subscription, replaced in reversed(added):
                if replaced is not None:
                    session.subscriptions[subscription.filter] = replaced
                else:
                    session.subscriptions.pop(subscription.filter, None)
            raise

    async def _accept(
        self,
        session: Session,
        subscription: Subscription,
        starts: dict[str, dict[ShardTail, int]],
        filters: set[str],
    ) -> int:
        """Return the reason code of SUBACK; add where the history begins, if there is one, and the
        filter to those of the session."""
        code = self._check(session, subscription, filters)
        if code < ReasonCode.UNSPECIFIED_ERROR and is_replay(subscription):
            code = await self._find_history(subscription, starts)
        if code < ReasonCode.UNSPECIFIED_ERROR:
            filters.add(subscription.filter)
        return code

    async def _find_history(
        self, subscription: Subscription, starts: dict[str, dict[ShardTail, int]]
    ) -> int:
        """Find where the history of a subscription begins; return the reason code of SUBACK."""
        split = split_replay(subscription.filter)
        if subscription.filter.startswith(PREFIX):
            if split is None:
                return ReasonCode.TOPIC_FILTER_INVALID
            subscription.start, subscription.inner = split
        start = parse_start(subscription.start, self.delivery.now_ms())
        if start is None or is_shared(subscription.inner):
            return ReasonCode.TOPIC_FILTER_INVALID
        tails = self.delivery.tails_for(subscription.inner)
        starts[subscription.filter] = await self.replay.find_starts(tails, start)
        return subscription.qos

    def _check(self, session: Session, subscription: Subscription, filters: set[str]) -> int:
        is_new = subscription.filter not in filters
        is_full = len(filters) >= self.limits.subscriptions_per_session
        if is_new and (is_full or len(self.delivery.tree) >= self.limits.subscriptions):
            return ReasonCode.QUOTA_EXCEEDED
        if is_shared(subscription.filter):
            if self.shared is None:
                return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            return self.shared.subscribe(session, subscription)
        return subscription.qos

    def _set_starts(
        self, session: Session, subscription: Subscription, replaced: Subscription | None
    ) -> None:
        """Exclude messages that were stored before the subscription, where the session reads older
        ones, or would after a crash. Those that wait since one that is replaced are included."""
        if replaced is not None:
            subscription.since = replaced.since
            return
        starts = self.delivery.starts_of(session) or {}
        saved = session.written_position
        for name in {} if saved is None else saved.positions:
            tail = self.delivery.tails.by_name.get(name)
            if tail is not None:
                starts[tail] = tail.known_end
        if starts:
            subscription.since = starts
            session.has_starts = True
            if session.is_persistent:
                self.store.with_starts.append(session)

    def _queue_retained(
        self, session: Session, subscription: Subscription, *, is_new: bool
    ) -> None:
        handling = subscription.retain_handling
        if handling == 2 or (handling == 1 and not is_new):
            return
        self.delivery.queue_retained(session, subscription)

    async def unsubscribe(self, session: Session, filters: Sequence[str]) -> list[int]:
        """Remove subscriptions; return the reason codes of UNSUBACK."""
        codes: list[int] = []
        removed: list[Subscription] = []
        for topic_filter in filters:
            subscription = session.subscriptions.pop(topic_filter, None)
            if subscription is None:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            codes.append(ReasonCode.SUCCESS)
            removed.append(subscription)
        self._remove_subscriptions(session, removed)
        if removed and session.is_persistent:
            session.mark_row_dirty()  # for the next mark, if this write fails
            await self.store.put(session)
        return codes

    def _remove_subscriptions(
        self, session: Session, subscriptions: Iterable[Subscription]
    ) -> None:
        for subscription in subscriptions:
            if is_shared(subscription.filter):
                if self.shared is not None:
                    self.shared.unsubscribe(session, subscription.filter)
            else:
                self.delivery.tree.remove(session, subscription)

    # Inbound QoS 2

    async def release(self, session: Session, packet_id: int) -> bool:
        """The client releases a QoS 2 message (PUBREL). When this returns, that is stored, and
        PUBCOMP may leave. Returns whether the packet id was in use."""
        was_received = session.is_received(packet_id)
        place = session.unmark_received(packet_id)
        if was_received and session.is_persistent:
            try:
                await self.store.put_receipts(session)
            except StoreError:
                session.restore_received(packet_id, place)
                raise
        return was_received

    def release_then(self, session: Session, packet_id: int, then: Callable[[], None]) -> bool:
        """Do what `release` does without a task: `then` is called when the release is stored. It is
        not called when that fails; then the client is disconnected."""
        was_received = session.is_received(packet_id)
        place = session.unmark_received(packet_id)
        if was_received and session.is_persistent:
            restore = partial(session.restore_received, packet_id, place)
            self.store.put_receipts_then(session, then, restore)
        else:
            then()
        return was_received

    # After a start

    def restore(self, sessions: Iterable[Session]) -> None:
        """Take over the sessions that were read from the rows; their clients are not connected."""
        now_ms = self.delivery.now_ms()
        for session in sessions:
            session.partition = self.partition_of(session.client_id)
            self._sessions[session.client_id] = session
            for subscription in session.subscriptions.values():
                if is_shared(subscription.filter):
                    if self.shared is not None:
                        self.shared.subscribe(session, subscription)
                else:
                    self.delivery.tree.add(session, subscription)
            if not session.disconnected_at_ms:
                session.disconnected_at_ms = now_ms
                session.mark_row_dirty()

    def start_timers(self, sessions: Iterable[Session] | None = None) -> None:
        """Let time run for the restored sessions; after the recovery has found published wills."""
        for session in list(self._sessions.values() if sessions is None else sessions):
            if session.owner is None:
                self._wait(session)

    def unload(self, sessions: Iterable[Session], reason_code: int) -> None:
        """Drop sessions from memory, because another node runs them from now on. Their rows stay,
        and their wills are left to that node."""
        for session in list(sessions):
            owner = session.owner
            self._detach(session)
            session.will = None
            self._remove_subscriptions(session, list(session.subscriptions.values()))
            session.is_ended = session.is_unloaded = True
            session.hints = None
            self._sessions.pop(session.client_id, None)
            if owner is not None:
                owner.disconnect(reason_code)


def is_replay(subscription: Subscription) -> bool:
    """Say whether history comes before the live messages of a subscription."""
    return bool(subscription.start) or subscription.filter.startswith(PREFIX)
