"""`FastPath`: publishes that go from the received buffer into the log in one native call.

    buffer ──▶ native: parse, topics, permissions, one append ──▶ replies to the client
                  │                                          └──▶ runs ──▶ delivery
                  └─ the first packet that needs anything else ──▶ `Inbound.accept`

A topic is admitted when a publish to it went through `Inbound.accept`; all are dropped when the
metadata changes, because a topic may then have another shard. Only shards whose appends wait for
nothing are admitted, so that the acknowledgements leave in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.topics.mapping import MappedTopic
from penstock.brokers.mqtt.wire.packets import MQTT_5
from penstock.brokers.mqtt.wire.validation import DecodeLimits
from penstock.codec.select import IS_NATIVE

if TYPE_CHECKING:
    from penstock._native import MqttGrants, MqttIntake, MqttReceivedRun, MqttRouteCache
    from penstock.brokers.mqtt.publish.path import PublishPath
    from penstock.brokers.mqtt.sessions.session import Session


_NOTHING: Final[dict[int, object]] = {}
"""The QoS 2 packet ids of a session that has none; only read."""


class Fed(NamedTuple):
    """What came of the publishes at the beginning of a buffer."""

    consumed: int
    is_left: bool
    """Whether the next packet has to be decoded."""
    replies: bytes
    messages: int
    size: int
    has_qos1: bool
    received: list[int]
    """QoS 2 packet ids."""
    acknowledged: list[tuple[int, list[int]]]
    """Acknowledgements of the client: type, packet ids."""


class _Shard(NamedTuple):
    number: int
    name: str
    count_appended: Callable[[int, int], None]


class FastPath:
    """Used on the event loop alone."""

    def __init__(
        self, path: PublishPath, drivers: StorageDriverManager, limits: DecodeLimits
    ) -> None:
        self._path: Final = path
        self._routes: Final = drivers.routes
        self._limits: Final = limits
        self._intake: MqttIntake | None = None
        self._version = -1
        self._admitted: set[tuple[str, int]] = set()
        self._shards: dict[str, _Shard | None] = {}
        self._numbered: list[_Shard] = []
        self.messages = 0
        """Publishes that were stored natively."""

    def new_grants(self) -> MqttGrants:
        """Return the permissions of a client, which has none yet."""
        from penstock._native import MqttGrants

        return MqttGrants()

    def is_ready(self) -> bool:
        """Say whether some publishes may be fed."""
        if self._intake is None or self._path.writer.delayed:
            return False
        if self._version != self._routes.version:
            self._clear()
        return bool(self._numbered)

    def _clear(self) -> None:
        self._version = self._routes.version
        if self._intake is not None:
            self._intake.clear()
        self._admitted.clear()
        self._shards.clear()
        self._numbered.clear()

    # Admitting

    def admit(self, mapped: MappedTopic, grants: MqttGrants | None, qos: int) -> None:
        """A publish to this topic was accepted: the next ones of its client may be fed."""
        if mapped.may_wait or mapped.passes_qos0 or mapped.topic.startswith("$"):
            return
        if self._version != self._routes.version:
            self._clear()
        shard = self._shards.get(mapped.shard_name)
        if shard is None:
            if mapped.shard_name in self._shards:
                return
            shard = self._shards[mapped.shard_name] = self._add_shard(mapped)
            if shard is None:
                return
        intake = self._intake
        assert intake is not None, "the shard was added to it"
        key = (mapped.topic, shard.number)
        if key not in self._admitted and intake.admit(mapped.topic, mapped, shard.number):
            self._admitted.add(key)
        if grants is not None:
            intake.grant(grants, mapped.topic, qos)

    def _add_shard(self, mapped: MappedTopic) -> _Shard | None:
        route = mapped.route
        assert route is not None, "the publish was accepted"
        found = route.driver.native_append(mapped.shard_name)
        if found is None:
            return None
        native, count_appended = found
        if self._intake is None:
            from penstock._native import MqttIntake

            limits = self._limits
            self._intake = MqttIntake(
                native.path,
                limits.packet_size_max,
                limits.topic_bytes_max,
                limits.topic_levels_max,
                limits.user_properties_max,
            )
        number = self._intake.add_shard(native.shard, native.size_max)
        shard = _Shard(number, mapped.shard_name, count_appended)
        self._numbered.append(shard)
        return shard

    # Storing

    def feed(
        self,
        view: memoryview,
        version: int,
        grants: MqttGrants | None,
        session: Session,
        *,
        is_stamped: bool,
        qos2_max: int,
    ) -> Fed:
        """Store and deliver the publishes at the beginning of a buffer, as far as nothing else is
        needed. `grants` None: the client may publish everything; at most `qos2_max` are of QoS
        2."""
        intake = self._intake
        assert intake is not None, "the caller has asked whether it is ready"
        path = self._path
        needs_reasons = version == MQTT_5 and path.settings.no_subscribers_reason
        consumed, is_left, replies, runs, groups, acknowledged, size = intake.receive(
            view,
            version,
            grants,
            session.received or _NOTHING,
            max(qos2_max, 0),
            session.number,
            is_stamped,
            session.is_persistent,
            path.clock.now_ms(),
            needs_reasons,
            cast("MqttRouteCache", path.delivery.routes),  # native, as this class is
        )
        messages = 0
        has_qos1 = False
        received: list[int] = []
        if groups:
            numbered = self._numbered
            for number, first, count in groups:
                numbered[number].count_appended(first, count)
                messages += count
            self.messages += messages
            for run in runs:
                has_qos1 |= run.qos == 1
                self._stored(run, session, received)
        return Fed(consumed, is_left, replies, messages, size, has_qos1, received, acknowledged)

    def _stored(self, run: MqttReceivedRun, session: Session, received: list[int]) -> None:
        name = self._numbered[run.shard].name
        if run.qos == 2:
            ids = run.packet_ids()
            for offset, packet_id in enumerate(ids, run.first):
                session.mark_stored(packet_id, name, offset)
            received += ids
        self._path.delivery.received(name, run)


def make_fast_path(
    path: PublishPath, drivers: StorageDriverManager, limits: DecodeLimits
) -> FastPath | None:
    """Return the fast path; None: there is no native code."""
    return FastPath(path, drivers, limits) if IS_NATIVE else None
