"""What administrators ask for: sessions, subscriptions, retained messages, the blacklist.

Operations take and return plain values, which the answers have as JSON. All run on the event loop
and return a bounded number of items.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.brokers.mqtt.policy.blacklist import BlacklistEntry
from penstock.brokers.mqtt.policy.filters import matches
from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker
    from penstock.brokers.mqtt.extras.slow_subscriptions import SlowSubscriptions
    from penstock.brokers.mqtt.policy.stored_blacklist import StoredBlacklist
    from penstock.brokers.mqtt.sessions.session import Session

ITEMS_MAX: Final = 10_000
PAYLOAD_SHOWN: Final = 256

Item = dict[str, object]
Arguments = dict[str, object]
Operation = Callable[[Arguments], Awaitable[list[Item]]]


class AdminApi:
    def __init__(
        self, broker: MqttBroker, blacklist: StoredBlacklist, slow: SlowSubscriptions
    ) -> None:
        self._broker: Final = broker
        self._blacklist: Final = blacklist
        self._slow: Final = slow
        self.operations: Final[dict[str, Operation]] = {
            "sessions": self.sessions,
            "subscriptions": self.subscriptions,
            "retained": self.retained,
            "explain": self.explain,
            "kick": self.kick,
            "slow": self.slow,
            "blacklist": self.blacklist,
            "blacklist-add": self.blacklist_add,
            "blacklist-remove": self.blacklist_remove,
        }

    async def sessions(self, arguments: Arguments) -> list[Item]:
        """Return sessions; `idle`: only those without a connection."""
        is_idle = bool(arguments.get("idle"))
        found = (
            _session_item(session)
            for session in self._broker.sessions
            if not (is_idle and session.sink is not None)
        )
        return _bounded(found, arguments)

    async def subscriptions(self, arguments: Arguments) -> list[Item]:
        """Return subscriptions, of one client if `client` names it."""
        client = arguments.get("client")
        found = (
            {
                "client": session.client_id,
                "filter": topic_filter,
                "qos": subscription.qos,
                "no_local": subscription.no_local,
                "identifier": subscription.identifier,
            }
            for session in self._broker.sessions
            if client in (None, session.client_id)
            for topic_filter, subscription in session.subscriptions.items()
        )
        return _bounded(found, arguments)

    async def retained(self, arguments: Arguments) -> list[Item]:
        """Return the retained messages that `filter` selects."""
        topic_filter = _text(arguments, "filter", "#")
        limit = _limit(arguments)
        return [
            {
                "topic": message.topic,
                "qos": message.qos,
                "size": len(message.payload),
                "payload": bytes(message.payload[:PAYLOAD_SHOWN]).decode("utf-8", "replace"),
                "expires_at_ms": message.expires_at_ms,
            }
            for message in self._broker.retained.match(topic_filter, limit)
        ]

    async def explain(self, arguments: Arguments) -> list[Item]:
        """Return where the messages of a topic are stored, and who receives them."""
        topic = _text(arguments, "topic")
        mapped = self._broker.mapping.resolve(topic)
        subscribers = [
            {"client": session.client_id, "filter": topic_filter, "qos": subscription.qos}
            for session in self._broker.sessions
            for topic_filter, subscription in session.subscriptions.items()
            if matches(topic_filter, topic)
        ]
        item: Item = {
            "topic": topic,
            "rule": mapped.rule.settings.filter,
            "stored_topic": mapped.stored_topic,
            "shard": mapped.shard_name if mapped.route is not None else None,
            "is_stored_at_qos0": not mapped.passes_qos0,
            "retained": bool(self._broker.retained.match(topic, 1)),
            "subscribers": subscribers[: _limit(arguments)],
        }
        return [item]

    async def kick(self, arguments: Arguments) -> list[Item]:
        """Disconnect a client; `clean` removes its session as well."""
        client = _text(arguments, "client")
        if self._broker.sessions.find(client) is None:
            raise BadRequestError(f"there is no session of client {client!r}")
        return [{"client": client, "was_connected": self._broker.sessions.kick(client)}]

    async def slow(self, arguments: Arguments) -> list[Item]:
        """Return the slowest subscribers."""
        found = self._slow.slowest(self._broker.clock.now_ms())
        return _bounded((msgspec.to_builtins(entry) for entry in found), arguments)

    # Blacklist

    async def blacklist(self, arguments: Arguments) -> list[Item]:
        """Return the entries that have not expired."""
        entries = self._blacklist.blacklist.entries()
        return _bounded((msgspec.to_builtins(entry) for entry in entries), arguments)

    async def blacklist_add(self, arguments: Arguments) -> list[Item]:
        """Add or replace an entry, and disconnect the clients that it names exactly."""
        try:
            entry = msgspec.convert(arguments, BlacklistEntry)
        except msgspec.ValidationError as error:
            raise BadRequestError(f"the blacklist entry is not valid: {error}") from error
        await self._blacklist.add(entry)
        refused = [
            session.client_id
            for session in self._broker.sessions
            if session.sink is not None and self._is_refused(session)
        ]
        for client in refused:
            self._broker.sessions.kick(client)
        return [{"added": entry.value, "disconnected": len(refused)}]

    async def blacklist_remove(self, arguments: Arguments) -> list[Item]:
        """Remove an entry."""
        kind, value = _text(arguments, "kind"), _text(arguments, "value")
        match = _text(arguments, "match", "exact")
        if not await self._blacklist.remove(kind, match, value):
            raise BadRequestError(f"the blacklist has no entry {kind} {match} {value!r}")
        return [{"removed": value}]

    def _is_refused(self, session: Session) -> bool:
        for connection in self._broker.clients:
            if connection.session is session:
                client = connection.client
                found = self._blacklist.blacklist.find(
                    user=client.username, client=client.client_id, address=client.host
                )
                return found is not None
        return False


def _session_item(session: Session) -> Item:
    window = session.window
    return {
        "client": session.client_id,
        "is_connected": session.sink is not None,
        "version": session.version,
        "expiry_s": session.expiry_s,
        "expires_at_ms": session.expires_at_ms or None,
        "subscriptions": len(session.subscriptions),
        "in_flight": 0 if window is None else window.size,
        "shards_behind": len(session.lagging or ()),
    }


def _bounded(items: Iterable[Item], arguments: Arguments) -> list[Item]:
    return list(islice(items, _limit(arguments)))


def _limit(arguments: Arguments) -> int:
    limit = arguments.get("limit", 1_000)
    if not isinstance(limit, int) or not 1 <= limit <= ITEMS_MAX:
        raise BadRequestError(f"limit {limit!r} is not a number from 1 to {ITEMS_MAX}")
    return limit


def _text(arguments: Arguments, name: str, default: str | None = None) -> str:
    value = arguments.get(name, default)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"the argument {name} is missing")
    return value
