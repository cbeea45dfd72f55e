"""`Recovery`: restores the sessions when the node starts.

    rows        the last of each key: sessions, positions, QoS 2 in both directions, marks
    records     one pass over each shard from its mark to its end: routed for the sessions, which
                are all offline; receipts of QoS 2 publishes and of wills are collected

A shard without a mark belongs to a topic that was created after the last mark, and is read from its
beginning; or it was mapped since, and is followed from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.catch_up import match_at
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.deliver.tails import StoredTopicName
from penstock.brokers.mqtt.publish.records import receipt_of
from penstock.brokers.mqtt.sessions.registry import SessionRegistry
from penstock.brokers.mqtt.sessions.row_reader import SavedRows, read_rows
from penstock.brokers.mqtt.sessions.session import Session
from penstock.brokers.mqtt.sessions.session_restore import restore_positions, restore_session
from penstock.engine.contract import ShardInfo
from penstock.errors import UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.log import get_logger
from penstock.record import StoredRecord

NEW_TOPIC_MS: Final = 60_000
"""Topics that were created so much before the last mark, or after it, are new."""
PACKET_IDS: Final = 65_535

_log: Final = get_logger(__name__)


class ReachableTopics(Protocol):
    def stored_topics_for(self, topic_filter: str) -> Sequence[StoredTopicName]:
        """Return the stored topics that can have messages which a filter matches."""
        ...


class Recovery:
    def __init__(
        self,
        drivers: StorageDriverManager,
        registry: SessionRegistry,
        mapping: ReachableTopics,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self._drivers: Final = drivers
        self._registry: Final = registry
        self._delivery: Final = registry.delivery
        self._mapping: Final = mapping
        self._namespace: Final = namespace
        self._by_number: Final[dict[int, Session]] = {}
        self._saved = SavedRows()
        self.records = 0
        """Records that were routed again."""

    async def run(self) -> None:
        self._saved = await read_rows(self._drivers, self._namespace)
        sessions = [
            restore_session(self._delivery, client_id, row)
            for client_id, row in self._saved.sessions.items()
        ]
        self._by_number.update((session.number, session) for session in sessions)
        tails = await self._open_tails()
        by_name = {tail.name: tail for tail, _ in tails}
        for session in sessions:
            restore_positions(session, self._saved, by_name)
        self._registry.restore(sessions)
        if self._registry.shared is not None:
            self._registry.shared.restore(self._saved, sessions, tails)
        if sessions:
            self._delivery.reader.on_record = self._collect_receipt
            try:
                for tail, end in tails:
                    await self._route(tail, end)
            finally:
                self._delivery.reader.on_record = None
        for tail, end in tails:
            tail.known_end = tail.end = max(tail.known_end, end)
        for session in sessions:
            if not self._saved.sessions[session.client_id].disconnected_at_ms:
                _expect_duplicates(session)
        _log.info(
            "mqtt_sessions_restored",
            sessions=len(sessions),
            subscriptions=len(self._delivery.tree),
            shards=len(tails),
            records=self.records,
        )

    async def _open_tails(self) -> list[tuple[ShardTail, int]]:
        """Follow all shards from their marks on; return them with their ends."""
        opened: list[tuple[ShardTail, int]] = []
        for topic in self._mapping.stored_topics_for("#"):
            for partition, shard_name in enumerate(topic.shards):
                call = partial(
                    self._drivers.shard_info, topic.name, partition, namespace=self._namespace
                )
                try:
                    info = await self._drivers.run_blocking(call)
                except UnknownTopicError:
                    break  # deleted meanwhile
                start = self._start_of(topic.name, shard_name, partition, info)
                tail = self._delivery.tails.open(topic.name, partition, shard_name, start)
                opened.append((tail, info.commit))
        return opened

    def _start_of(self, stored_topic: str, shard_name: str, partition: int, info: ShardInfo) -> int:
        topic_id = shard_name.rpartition("_")[0]
        mark = self._saved.marks.get(topic_id)
        if mark is not None and partition < len(mark.ends) and mark.ends[partition] >= 0:
            return min(mark.ends[partition], info.commit)
        topic = self._drivers.broker_cache.get_topic(stored_topic, self._namespace)
        if topic.created_at_ms >= self._saved.marked_ms - NEW_TOPIC_MS:
            return info.earliest
        return info.commit

    async def _route(self, tail: ShardTail, end: int) -> None:
        """Keep hints of the messages of [mark, end) for the sessions that want them."""
        offset = tail.known_end
        while offset < end:
            page = await self._delivery.reader.read(tail, offset)
            if page is None or page.end <= offset:
                return
            self.records += len(page.messages)
            for message in page.messages:
                if message.offset < end:
                    self._keep_hints(tail, message)
            offset = page.end

    def _keep_hints(self, tail: ShardTail, message: Message) -> None:
        least = 0 if self._delivery.queues_qos0 else 1
        if message.qos < least:
            return
        for subscriber, _ in self._delivery.route(message.topic).entries:
            if not isinstance(subscriber, Session):
                continue  # groups of shared subscriptions read the log themselves
            match = match_at(subscriber, message)
            if match is None or match.qos < least:
                continue
            if match.no_local and message.publisher == subscriber.number:
                continue
            hint = None if subscriber.hints is None else subscriber.hints.get(tail)
            if hint is None or message.offset >= hint.first:
                subscriber.add_hint(tail, message.offset)

    def _collect_receipt(self, tail: ShardTail, record: StoredRecord) -> None:
        receipt = receipt_of(record)
        session = None if receipt is None else self._by_number.get(receipt.session)
        if receipt is None or session is None:
            return
        if receipt.packet_id > PACKET_IDS:
            if session.will is not None and session.will.token == receipt.packet_id:
                session.will = None
                session.mark_row_dirty()
            return
        ends = session.received_ends or {}
        if record.offset >= ends.get(tail.name, 0):
            session.mark_stored(receipt.packet_id, tail.name, record.offset)


def _expect_duplicates(session: Session) -> None:
    """A client was connected when the node ended: what it was not known to have may have been
    sent."""
    for tail, hint in (session.hints or {}).items():
        hint.dup_until = tail.known_end
