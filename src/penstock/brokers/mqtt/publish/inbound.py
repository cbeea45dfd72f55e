"""`Inbound`: the publishes of one connection, from the packet to its acknowledgement.

    accept(packet), for each of one receive        flush, after the last
      alias, limits, hooks, mapping                  one append per shard ─▶ delivery
      record ─▶ append of its shard                  ─▶ append of the retained messages
      PendingAck ─▶ queue in order of receipt        ─▶ acknowledgements that are complete

A publish that cannot be stored yet, because its stored topic does not exist, is returned: the
connection creates the topic, and offers the publish again. A QoS 2 packet id is marked as received
before its record is appended, and unmarked when that fails.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.brokers.mqtt.protocol.hooks import Action, AllowEverything, Client
from penstock.brokers.mqtt.publish.acknowledgements import AckQueue, PendingAck
from penstock.brokers.mqtt.publish.aliases import TopicAliases
from penstock.brokers.mqtt.publish.path import PublishPath, reason_of
from penstock.brokers.mqtt.publish.records import Receipt, expiry_of
from penstock.brokers.mqtt.publish.shard_writer import Append, Outcome
from penstock.brokers.mqtt.topics.mapping import MappedTopic
from penstock.brokers.mqtt.wire.codec import encode, encode_acks
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.packets import MQTT_5, Ack, Publish
from penstock.brokers.mqtt.wire.reason_codes import FAILURE, ReasonCode
from penstock.errors import StoreError
from penstock.platform.log import get_logger
from penstock.record import Record

if TYPE_CHECKING:
    from penstock._native import MqttGrants
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.publish.fast_path import FastPath
    from penstock.brokers.mqtt.sessions.session import Session

ANSWERS_MAX: Final = 1_024
"""Answers of the authorizer that a connection keeps."""

_log: Final = get_logger(__name__)


class Publisher(Protocol):
    """The connection, as its publishes see it."""

    version: int

    def send(self, data: bytes) -> None: ...

    def refuse(self, reason_code: int, reason: str) -> None:
        """End the connection: a publish of a client older than MQTT 5 was not stored."""
        ...

    def hold_back(self, size: int) -> None:
        """So many bytes of publishes wait for the storage."""
        ...

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None: ...


class _Retaining:
    """What follows the record of a publish with the retain flag."""

    __slots__ = ("ack", "mapped", "message", "record")

    def __init__(
        self, ack: PendingAck | None, mapped: MappedTopic, message: Message, record: Record
    ) -> None:
        self.ack: Final = ack
        self.mapped: Final = mapped
        self.message: Final = message
        self.record: Final = record


class Inbound:
    __slots__ = (
        "_acks",
        "_aliases",
        "_answers",
        "_appends",
        "_client",
        "_grants",
        "_grants_revision",
        "_is_flushing",
        "_passed",
        "_path",
        "_publisher",
        "_qos2_here",
        "_reused",
        "_revision",
        "_session",
        "is_stamped",
        "messages",
        "outstanding",
        "size",
        "waiting_size",
    )

    def __init__(
        self, path: PublishPath, publisher: Publisher, client: Client, session: Session
    ) -> None:
        self._path: Final = path
        self._publisher: Final = publisher
        self._client: Final = client
        self._session: Final = session
        self._acks: Final = AckQueue()
        self._aliases: TopicAliases | None = None
        self._answers: dict[tuple[str, int, bool], bool] = {}
        self._revision = -1
        self._grants: MqttGrants | None = None if path.fast is None else path.fast.new_grants()
        self._grants_revision = -1
        self._appends: dict[str, Append] = {}
        self._passed: list[Message] = []
        self._qos2_here: set[int] = set()
        """QoS 2 packet ids of this connection that are not released."""
        self._reused: dict[int, int] = {}
        """What was sent again without DUP, by packet id."""
        self._is_flushing = False
        self.is_stamped = False
        """Whether records name the session, because one of its subscriptions excludes its own
        messages."""
        self.outstanding = 0
        """QoS 1 and 2 publishes of this connection that it has not seen the end of."""
        self.waiting_size = 0
        """Bytes of publishes that wait for the storage."""
        self.messages = self.size = 0
        """Publishes that were stored since the connection set these to 0, and their bytes."""

    # Accepting

    def feed(self, view: memoryview) -> tuple[int, bool]:
        """Store the publishes at the beginning of a buffer natively, as far as that is possible.
        Return how many bytes they have, and whether the next packet has to be decoded."""
        fast = self._path.fast
        hooks = self._path.hooks
        if (
            fast is None
            or self._acks
            or self._appends
            or self.waiting_size
            or hooks.rewriter.is_active
            or self.outstanding >= self._path.settings.receive_maximum
            or not fast.is_ready()
        ):
            return 0, True
        session = self._session
        fed = fast.feed(
            view,
            self._publisher.version,
            self._current_grants(fast),
            session,
            is_stamped=self.is_stamped,
            qos2_max=self._path.settings.receive_maximum - self.outstanding,
        )
        if fed.messages:
            self.messages += fed.messages
            self.size += fed.size
            self.outstanding += len(fed.received)
            self._qos2_here.update(fed.received)
        if fed.replies:
            if fed.has_qos1 and session.subscriptions:
                # As in `_send_acks`: the client's own messages come before PUBACK.
                self._path.delivery.flush()
            self._publisher.send(fed.replies)
        if fed.acknowledged:
            self._pass_acks(fed.acknowledged)
        return fed.consumed, fed.is_left

    def _current_grants(self, fast: FastPath) -> MqttGrants | None:
        """Return what the client may publish natively; None: everything."""
        authorizer = self._path.hooks.authorizer
        if self._client.is_superuser or isinstance(authorizer, AllowEverything):
            return None
        if authorizer.revision != self._grants_revision:
            self._grants_revision = authorizer.revision
            self._grants = fast.new_grants()
        return self._grants

    def _pass_acks(self, acknowledged: list[tuple[int, list[int]]]) -> None:
        """Pass the acknowledgements of the client on, and answer them."""
        for kind, packet_ids in acknowledged:
            if kind == PacketType.PUBREL:
                self._release_all(packet_ids)
            else:
                answers = self._session.acknowledged_all(PacketType(kind), packet_ids)
                if answers:
                    self._publisher.send(answers)

    def _release_all(self, packet_ids: list[int]) -> None:
        """The client releases QoS 2 publishes of a session that does not outlive it."""
        for packet_id in packet_ids:
            self._session.unmark_received(packet_id)
            self.released(packet_id)
        self._publisher.send(encode_acks(PacketType.PUBCOMP, packet_ids))

    def accept(self, publish: Publish) -> MappedTopic | None:
        """Take one publish of the client. A topic that is returned must be created first; then the
        publish is offered again. Raises `ProtocolError`, which ends the connection."""
        self._resolve_alias(publish)
        qos = publish.qos
        if qos:
            self._check_quota(publish)
            if qos == 2 and self._session.is_received(publish.packet_id):
                self._repeat(publish)
                return None
        reason = self._check(publish)
        if reason:
            self.refuse(publish, reason)
            return None
        handler_prefix = self._handler_prefix(publish.topic)
        if handler_prefix:
            self._pass_to_handler(handler_prefix, publish)
            return None
        path = self._path
        mapped = path.mapping.resolve(publish.topic)
        if mapped.route is None:
            return mapped
        retained: MappedTopic | None = None
        if publish.retain:
            retained = path.retained.resolve(publish.topic)
            if retained.route is None:
                return retained
        self._add(publish, mapped, retained)
        return None

    def _resolve_alias(self, publish: Publish) -> None:
        properties = publish.properties
        if properties is not None and properties.topic_alias is not None:
            if self._aliases is None:
                self._aliases = TopicAliases(self._path.settings.topic_aliases_max)
            publish.topic = self._aliases.resolve(properties.topic_alias, publish.topic)
            properties.topic_alias = None
        elif not publish.topic:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "PUBLISH has no topic and no alias")

    def _check_quota(self, publish: Publish) -> None:
        settings = self._path.settings
        if self.outstanding < settings.receive_maximum or publish.packet_id in self._qos2_here:
            return
        self._refuse_excess()

    def _refuse_excess(self) -> None:
        """Raise `ProtocolError` for a client that sends more than the receive maximum."""
        settings = self._path.settings
        if settings.receive_maximum_strict and self._publisher.version == MQTT_5:
            raise ProtocolError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"{self.outstanding} publishes are unacknowledged; the receive maximum is "
                f"{settings.receive_maximum}",
            )

    def _check(self, publish: Publish) -> int:
        """Apply the hooks; return the reason code of a refusal, or 0."""
        hooks, client = self._path.hooks, self._client
        if hooks.rewriter.is_active:
            publish.topic = hooks.rewriter.publish(client, publish.topic)
        topic = publish.topic
        if topic[0] == "$" and hooks.is_read_only(topic):
            return ReasonCode.NOT_AUTHORIZED
        if client.is_superuser or isinstance(hooks.authorizer, AllowEverything):
            return 0
        if hooks.authorizer.revision != self._revision or len(self._answers) >= ANSWERS_MAX:
            self._answers = {}
            self._revision = hooks.authorizer.revision
        key = (topic, publish.qos, publish.retain)
        is_allowed = self._answers.get(key)
        if is_allowed is None:
            is_allowed = self._answers[key] = hooks.authorizer.allows(
                client, Action.PUBLISH, topic, publish.qos, publish.retain
            )
        return 0 if is_allowed else ReasonCode.NOT_AUTHORIZED

    def _repeat(self, publish: Publish) -> None:
        """Answer a QoS 2 packet that was received before, and is not released: nothing is stored
        again. While the first one waits, its PUBREC answers both."""
        self._path.metrics.repeated_qos2 += 1
        if not publish.dup:
            self._check_reuse(publish)
        unfinished = self._path.unfinished.get((self._session.number, publish.packet_id))
        if unfinished is not None:
            ack = PendingAck(PacketType.PUBREC, publish.packet_id)
            self._acks.add(ack)
            unfinished.append((self, ack))
        elif not any(ack.packet_id == publish.packet_id for ack in self._acks.waiting()):
            self._acks.add(PendingAck(PacketType.PUBREC, publish.packet_id, 0))
        if publish.packet_id not in self._qos2_here:
            self._qos2_here.add(publish.packet_id)
            self.outstanding += 1

    def _check_reuse(self, publish: Publish) -> None:
        """Let a client that does not set DUP repeat a message once, not twice."""
        packet_id, content = publish.packet_id, hash((publish.topic, publish.payload))
        if self._reused.get(packet_id) == content:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR, f"packet id {packet_id} is in use, and sent without DUP"
            )
        self._reused[packet_id] = content

    def _add(self, publish: Publish, mapped: MappedTopic, retained: MappedTopic | None) -> None:
        """Turn a publish into a record of the append of its shard."""
        path, session = self._path, self._session
        expires_at_ms = None
        if publish.properties is not None:
            expires_at_ms = expiry_of(publish, path.clock.now_ms())
        message = path.codec.message(publish, expires_at_ms=expires_at_ms, publisher=session.number)
        if retained is not None and not path.retained.has_room(message):
            self.refuse(publish, ReasonCode.QUOTA_EXCEEDED)
            return
        if publish.qos == 0 and mapped.passes_qos0 and retained is None:
            self._passed.append(message)
            return
        ack = self._pending_ack(publish) if publish.qos else None
        receipt = None
        if publish.qos == 2 and session.is_persistent:
            receipt = Receipt(session.number, publish.packet_id)
        record = path.codec.encode(
            publish,
            mapped.key,
            expires_at_ms=expires_at_ms,
            publisher=session.number if self.is_stamped else 0,
            receipt=receipt,
        )
        append = self._append_for(mapped)
        append.records.append(record)
        append.messages.append(message)
        size = len(publish.payload) + len(mapped.key)
        append.size += size
        self.size += size
        self.messages += 1
        if retained is None:
            append.tokens.append(ack)
            if path.fast is not None:
                path.fast.admit(mapped, self._grants, publish.qos)
        else:
            append.tokens.append(_Retaining(ack, retained, message, record))

    def _append_for(self, mapped: MappedTopic) -> Append:
        append = self._appends.get(mapped.shard_name)
        if append is None:
            append = self._appends[mapped.shard_name] = Append(mapped, self._appended)
            append.session = self._session
        return append

    def _pending_ack(self, publish: Publish) -> PendingAck:
        if publish.qos == 1:
            ack = PendingAck(PacketType.PUBACK, publish.packet_id)
        else:
            ack = PendingAck(PacketType.PUBREC, publish.packet_id)
            self._session.mark_received(publish.packet_id)
            self._qos2_here.add(publish.packet_id)
        self.outstanding += 1
        path = self._path
        if (
            publish.qos == 1
            and path.settings.no_subscribers_reason
            and self._publisher.version == MQTT_5
            and not path.delivery.has_subscribers(publish.topic)
        ):
            ack.reason_code = ReasonCode.NO_MATCHING_SUBSCRIBERS
        self._acks.add(ack)
        return ack

    def refuse(self, publish: Publish, reason_code: int) -> None:
        """Answer a publish that is not stored."""
        self._path.metrics.count_refused(reason_code)
        if publish.qos == 0:
            return
        kind = PacketType.PUBACK if publish.qos == 1 else PacketType.PUBREC
        ack = PendingAck(kind, publish.packet_id, 0)
        ack.reason_code = reason_code
        self.outstanding += 1
        self._acks.add(ack)

    # Handlers of prefixes

    def _handler_prefix(self, topic: str) -> str:
        if topic[0] == "$":
            for prefix in self._path.hooks.publish_handlers:
                if topic.startswith(prefix):
                    return prefix
        return ""

    def _pass_to_handler(self, prefix: str, publish: Publish) -> None:
        handler = self._path.hooks.publish_handlers[prefix]
        ack = self._pending_ack(publish) if publish.qos else None
        if ack is not None:
            ack.reason_code = 0

        async def handle() -> None:
            reason_code = await handler.publish(self._client, publish)
            if ack is not None:
                self._complete(ack, reason_code)
                self._send_acks()
            elif reason_code >= FAILURE:
                self._path.metrics.count_refused(reason_code)

        self._publisher.spawn(handle(), "mqtt-publish-handler")

    # Storing

    def flush(self) -> None:
        """Append what was accepted since the last call, and send what is acknowledged."""
        self._is_flushing = True
        if self._appends:
            appends, self._appends = self._appends, {}
            for append in appends.values():
                self.waiting_size += append.size
                self._path.writer.write(append)
        if self._passed:
            passed, self._passed = self._passed, []
            self._path.delivery.passed(passed)
        self._is_flushing = False
        if self.waiting_size:
            self._publisher.hold_back(self.waiting_size)
        self._send_acks()

    def _appended(self, append: Append, outcomes: Sequence[Outcome]) -> None:
        """The records of an append are stored, or some of them failed."""
        self.waiting_size -= append.size
        retaining: dict[str, Append] = {}
        for token, outcome in zip(append.tokens, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                reason = self._reason_of(outcome)
                ack = token.ack if isinstance(token, _Retaining) else token
                if isinstance(ack, PendingAck):
                    self._complete(ack, reason)
            elif token is not None:
                self._stored(append, token, outcome, retaining)
        for following in retaining.values():
            self.waiting_size += following.size
            self._path.writer.write(following)
        if not self._is_flushing:
            self._publisher.hold_back(self.waiting_size)
            self._send_acks()

    def _stored(
        self, append: Append, token: object, offset: int, retaining: dict[str, Append]
    ) -> None:
        """A record was stored; its retained message, if it has one, follows."""
        ack = token.ack if isinstance(token, _Retaining) else token
        if isinstance(ack, PendingAck):
            is_first = ack.kind is PacketType.PUBREC and append.messages
            if is_first and self._session.is_received(ack.packet_id):
                self._session.mark_stored(ack.packet_id, append.mapped.shard_name, offset)
            if ack is token:
                self._complete(ack, 0)
        if isinstance(token, _Retaining):
            self._retain(token, retaining)

    def _retain(self, token: _Retaining, appends: dict[str, Append]) -> None:
        record = self._path.retained.put(token.message, token.record)
        name = token.mapped.shard_name
        append = appends.get(name)
        if append is None:
            append = appends[name] = Append(token.mapped, self._appended)
        append.records.append(record)
        append.tokens.append(token.ack)
        append.size += len(record.value or b"") + len(record.key or b"")

    def _reason_of(self, error: StoreError) -> int:
        reason = reason_of(error)
        self._path.metrics.count_refused(reason)
        _log.warning("mqtt_publish_not_stored", client=self._client.client_id, reason=str(error))
        return reason

    # Acknowledging

    def _complete(self, ack: PendingAck, reason_code: int) -> None:
        ack.done(reason_code)
        if reason_code >= FAILURE and ack.kind is PacketType.PUBREC:
            self._session.unmark_received(ack.packet_id)
            self._qos2_here.discard(ack.packet_id)
        if self._path.unfinished and ack.waits_for <= 0:
            key = (self._session.number, ack.packet_id)
            for other, repeated in self._path.unfinished.pop(key, ()):
                other.finish(repeated, ack.reason_code)

    def finish(self, ack: PendingAck, reason_code: int) -> None:
        """The publish that this one repeats is stored, or was refused."""
        self._complete(ack, reason_code)
        self._send_acks()

    def _send_acks(self) -> None:
        """Send the acknowledgements that are complete, in order of receipt."""
        is_new = self._publisher.version == MQTT_5
        kind, ids = PacketType.PUBACK, list[int]()
        acks = list(self._acks.pop_complete())
        if self._session.subscriptions and any(ack.kind is PacketType.PUBACK for ack in acks):
            # A client that receives its own messages has them before PUBACK, as from Mosquitto.
            self._path.delivery.flush()
        for ack in acks:
            if ack.kind is PacketType.PUBACK or ack.reason_code >= FAILURE:
                self.outstanding -= 1
            if ack.reason_code and not is_new and ack.reason_code >= FAILURE:
                if ids:
                    self._publisher.send(encode_acks(kind, ids))
                self._acks.clear()
                self._publisher.refuse(ack.reason_code, "a publish was refused")
                return
            if ids and (ack.kind is not kind or ack.reason_code):
                self._publisher.send(encode_acks(kind, ids))
                ids = []
            if ack.reason_code and is_new:
                self._publisher.send(encode(Ack(ack.kind, ack.packet_id, ack.reason_code), MQTT_5))
            else:
                kind = ack.kind
                ids.append(ack.packet_id)
        if ids:
            self._publisher.send(encode_acks(kind, ids))

    # Releasing

    def released(self, packet_id: int) -> None:
        """PUBCOMP of a QoS 2 packet leaves."""
        self._reused.pop(packet_id, None)
        if packet_id in self._qos2_here:
            self._qos2_here.discard(packet_id)
            self.outstanding -= 1

    def close(self) -> None:
        """The connection has ended; what was accepted is stored nevertheless. Until it is, the
        next connection of the session gets no PUBREC for it."""
        for ack in self._acks.waiting():
            if ack.kind is PacketType.PUBREC and ack.waits_for > 0:
                self._path.unfinished[self._session.number, ack.packet_id] = []
        self._acks.clear()
