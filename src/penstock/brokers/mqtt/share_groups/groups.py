"""`ShareGroups`: the groups of a node, and which sessions are members.

A group lives while a session is a member, connected or not. What is in flight with QoS 1 when the
connection of a member ends goes to another member; with QoS 2 it stays with the session, and ends
with it. The position of a group that a persistent session is in is a row, written at marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import randbits
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.share_groups.group import ShareGroup
from penstock.brokers.mqtt.share_groups.membership import SessionShares
from penstock.brokers.mqtt.share_groups.names import parse
from penstock.brokers.mqtt.share_groups.restoring import restore_groups
from penstock.brokers.mqtt.share_groups.saving import group_row, removed_row
from penstock.brokers.mqtt.share_groups.strategies import StrategyName, strategy_of
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.context import DeliveryContext
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.row_reader import SavedRows
    from penstock.brokers.mqtt.sessions.row_writer import Row
    from penstock.brokers.mqtt.sessions.session import Session
    from penstock.brokers.mqtt.subscriptions.interface import Tree

GROUPS_MAX: Final = 100_000
NUMBER_BITS: Final = 62


class ShareGroups:
    """See `SharedSubscriptions` of `sessions.interface`, and `SharedRows` of `sessions.store`."""

    def __init__(
        self,
        context: DeliveryContext,
        tree: Tree,
        strategy: StrategyName = "round_robin",
        *,
        groups_max: int = GROUPS_MAX,
    ) -> None:
        self._context: Final = context
        self._tree: Final = tree
        self._strategy: Final[StrategyName] = strategy
        self._groups_max: Final = groups_max
        self._groups: Final[dict[str, ShareGroup]] = {}
        """By the filters that clients name."""
        self._changed: list[ShareGroup] = []
        """Groups that the next mark has to look at."""
        self._writing: list[ShareGroup] = []
        self._delivered: list[SessionShares] = []
        """Sessions with QoS 2 messages that no mark has as delivered."""
        self._pruned: list[SessionShares] = []
        self._removed: list[str] = []
        """Groups whose rows are to be removed."""
        self.make_number: Callable[[], int] = lambda: randbits(NUMBER_BITS) | 1

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, name: str) -> ShareGroup | None:
        return self._groups.get(name)

    # Members

    def subscribe(self, session: Session, subscription: Subscription) -> int:
        name = subscription.filter
        parsed = parse(name)
        if parsed is None:
            return ReasonCode.TOPIC_FILTER_INVALID
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= self._groups_max:
                return ReasonCode.QUOTA_EXCEEDED
            own = Subscription(name, 2, retain_as_published=True, inner=parsed.filter)
            group = ShareGroup(
                self.make_number(),
                name,
                own,
                strategy_of(self._strategy),
                self._context,
                self._position_changed,
            )
            self._groups[name] = group
            self._tree.add(group, own)
        shares = self._shares_of(session)
        shares.groups[name] = group
        group.add(session, subscription)
        return subscription.qos

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        shares = session.shares
        group = self._groups.get(topic_filter)
        if group is None or not isinstance(shares, SessionShares):
            return
        shares.groups.pop(topic_filter, None)
        group.remove(session)
        if not group.members:
            del self._groups[topic_filter]
            self._tree.remove(group, group.subscription)
            if group.has_row:
                self._removed.append(topic_filter)

    def attached(self, session: Session) -> None:
        if isinstance(session.shares, SessionShares):
            for group in session.shares.groups.values():
                group.attach(session)

    def detached(self, session: Session) -> None:
        shares = session.shares
        if not isinstance(shares, SessionShares):
            return
        for group in shares.groups.values():
            group.detach(session)
        window = session.window
        for packet_id, delivery in list(shares.in_flight.items()):
            if delivery.qos == 1:
                del shares.in_flight[packet_id]
                if window is not None:
                    window.in_flight.pop(packet_id, None)
                delivery.group.release(delivery.queue, delivery.offset)
        if window is not None and window.is_empty() and not window.sent_ends:
            session.window = None

    def ended(self, session: Session) -> None:
        shares = session.shares
        if isinstance(shares, SessionShares):
            for delivery in shares.in_flight.values():
                delivery.queue.acknowledge(delivery.offset)
                delivery.group.changed(delivery.tail, delivery.queue)
            shares.in_flight.clear()
            session.shares = None

    def _shares_of(self, session: Session) -> SessionShares:
        shares = session.shares
        if not isinstance(shares, SessionShares):
            shares = session.shares = SessionShares(session, self._delivered.append)
        return shares

    # Rows

    def _position_changed(self, group: ShareGroup) -> None:
        self._changed.append(group)

    def collect_rows(self) -> list[Row]:
        changed, self._changed = self._changed, []
        self._writing += changed
        rows: list[Row] = []
        for group in changed:
            group.is_dirty = False
            if self._groups.get(group.name) is group:
                row = group_row(group)
                if row is not None:
                    rows.append(row)
        removed, self._removed = self._removed, []
        rows += [removed_row(name) for name in removed if name not in self._groups]
        for shares in self._delivered:
            shares.written_done += shares.done
            shares.done = []
        self._pruned += self._delivered
        self._delivered.clear()
        return rows

    def rows_written(self) -> None:
        self._writing = []
        for shares in self._pruned:
            shares.written_done = []
        self._pruned = []

    def rows_not_written(self) -> None:
        writing, self._writing = self._writing, []
        for group in writing:
            group.has_row = True
            if self._groups.get(group.name) is group:
                group.mark_dirty()
            else:
                self._removed.append(group.name)

    def restore(
        self,
        saved: SavedRows,
        sessions: Sequence[Session],
        shards: Sequence[tuple[ShardTail, int]],
    ) -> None:
        self._removed += saved.groups.keys() - self._groups.keys()
        restore_groups(self._groups, saved, sessions, shards)
