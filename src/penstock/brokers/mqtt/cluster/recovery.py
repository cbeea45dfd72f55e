"""`PartitionRecovery`: loads the sessions of one partition, on a node that delivers already.

    rows        of the partition, when all that the last leader appended is committed
    join        the sessions are added to the tree: from here on the node keeps their hints
    records     of each shard from the partition's mark on: what was stored before the sessions have
                joined is routed for them; receipts of QoS 2 publishes and of wills are collected up
                to the end that the shard has now, committed or not

What the last leader had appended, and has not reported, is found in this way: a client that repeats
a QoS 2 publish is recognised.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.catch_up import match_at
from penstock.brokers.mqtt.deliver.cursor import HINTS_MAX, Hint
from penstock.brokers.mqtt.deliver.log_reader import LogReader
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.sessions.recovery import ReachableTopics, Recovery
from penstock.brokers.mqtt.sessions.registry import SessionRegistry
from penstock.brokers.mqtt.sessions.row_reader import SavedRows, read_partition
from penstock.brokers.mqtt.sessions.row_writer import TOPIC
from penstock.brokers.mqtt.sessions.session import Session
from penstock.brokers.mqtt.sessions.session_restore import restore_positions, restore_session
from penstock.engine.contract import ShardInfo
from penstock.errors import (
    DeadlineError,
    RetryableError,
    StoreError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.platform.log import get_logger

COMMIT_PAUSE_S: Final = 0.02
LEADER_PAUSE_S: Final = 0.1
LEADER_WAIT_S: Final = 30.0
"""How long a replicated shard without a leader is waited for: without it, a client that repeats a
QoS 2 publish would not be recognised."""
COMMIT_WAIT_S: Final = 10.0
"""How long records that are not committed are waited for."""

_log: Final = get_logger(__name__)
_Bounds = tuple[ShardTail, int, int]
"""A shard, the partition's mark in it, and its end, committed or not."""


class PartitionRecovery(Recovery):
    def __init__(
        self,
        drivers: StorageDriverManager,
        registry: SessionRegistry,
        mapping: ReachableTopics,
        reader: LogReader,
        partition: int,
    ) -> None:
        """`reader` is used for nothing else."""
        super().__init__(drivers, registry, mapping)
        self._reader: Final = reader
        self._partition: Final = partition
        self._recovered: Final[dict[Session, dict[ShardTail, Hint]]] = {}
        self._joined: dict[ShardTail, int] = {}

    async def load(self) -> list[Session]:
        """Return the sessions of the partition, offline and in the registry. Raises what the
        storage raises; then nothing was done, or `unload` undoes it."""
        await self._await_rows()
        saved = self._saved = SavedRows()
        await read_partition(self._drivers, self._partition, saved, self._namespace)
        bounds = await self._find_bounds() if saved.sessions else []
        sessions = [
            restore_session(self._delivery, client_id, row)
            for client_id, row in saved.sessions.items()
        ]
        self._join(sessions)
        for tail, start, end in bounds:
            await self._read(tail, start, end)
        for session in sessions:
            self._add_hints(session)
        return sessions

    async def _await_rows(self) -> None:
        """Wait until the rows of the last leader are committed here."""
        info = await self._info_of(TOPIC, self._partition)
        end = info.end
        async with asyncio.timeout(COMMIT_WAIT_S):
            while info.commit < end or info.is_lagging:
                await asyncio.sleep(COMMIT_PAUSE_S)
                info = await self._info_of(TOPIC, self._partition)

    async def _info_of(self, topic: str, partition: int) -> ShardInfo:
        call = partial(self._drivers.shard_info, topic, partition, namespace=self._namespace)
        return await self._drivers.run_blocking(call)

    async def _info_in_time(self, tail: ShardTail) -> ShardInfo:
        """Return the bounds of a shard; wait for a leader where there can be another one."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LEADER_WAIT_S
        while True:
            try:
                return await self._info_of(tail.stored_topic, tail.partition)
            except RetryableError:
                topic = self._drivers.broker_cache.get_topic(tail.stored_topic, self._namespace)
                if topic.config.replication == 1 or loop.time() > until_s:
                    raise
            await asyncio.sleep(LEADER_PAUSE_S)

    async def _find_bounds(self) -> list[_Bounds]:
        found = await asyncio.gather(*(self._bounds_of(tail) for tail in self._delivery.tails))
        return [bounds for bounds in found if bounds is not None]

    async def _bounds_of(self, tail: ShardTail) -> _Bounds | None:
        try:
            info = await self._info_in_time(tail)
        except (UnknownShardError, UnknownTopicError):
            return None  # deleted
        except StoreError as error:
            _log.warning("mqtt_shard_not_recovered", shard=tail.name, reason=str(error))
            start = self._mark_of(tail)
            # Its messages are looked for when the clients of the sessions are back.
            return (tail, start, start) if start is not None else None
        start = self._start_of(tail.stored_topic, tail.name, tail.partition, info)
        return tail, start, info.end

    def _mark_of(self, tail: ShardTail) -> int | None:
        mark = self._saved.marks.get(tail.topic_id)
        if mark is None or tail.partition >= len(mark.ends) or mark.ends[tail.partition] < 0:
            return None
        return mark.ends[tail.partition]

    def _join(self, sessions: list[Session]) -> None:
        """Let delivery keep hints of what comes from now on."""
        self._delivery.flush()
        tails = self._delivery.tails
        for session in sessions:
            restore_positions(session, self._saved, tails.by_name)
            self._recovered[session] = session.hints or {}
            session.hints = None
            self._by_number[session.number] = session
        self._joined = {tail: tail.known_end for tail in tails}
        self._registry.restore(sessions)

    async def _read(self, tail: ShardTail, start: int, end: int) -> None:
        """Route what is stored from the mark on, and collect receipts up to the end."""
        joined = self._joined.get(tail, 0)
        self._reader.on_record = self._collect_receipt
        if start >= end:
            if start < joined:
                self._keep_range(tail, start, joined)
            return
        offset, waited = start, 0.0
        while offset < max(end, joined):
            page = await self._reader.read(tail, offset)
            if page is None:
                return
            if page.end <= offset:
                if waited > COMMIT_WAIT_S:
                    raise DeadlineError(
                        f"records of {tail.name!r} from {offset} to {end} were not committed "
                        f"within {COMMIT_WAIT_S:g} s"
                    )
                waited += COMMIT_PAUSE_S
                await asyncio.sleep(COMMIT_PAUSE_S)
                if waited > 1.0:
                    # Another leader may have begun with a shorter log.
                    info = await self._info_of(tail.stored_topic, tail.partition)
                    end = min(end, info.end)
                continue
            self.records += len(page.messages)
            for message in page.messages:
                if message.offset < joined:
                    self._keep_hints(tail, message)
            offset = page.end

    def _keep_hints(self, tail: ShardTail, message: Message) -> None:
        least = 0 if self._delivery.queues_qos0 else 1
        if message.qos < least:
            return
        for subscriber, _ in self._delivery.route(message.topic).entries:
            if not isinstance(subscriber, Session) or subscriber not in self._recovered:
                continue
            match = match_at(subscriber, message)
            if match is None or match.qos < least:
                continue
            if match.no_local and message.publisher == subscriber.number:
                continue
            hints = self._recovered[subscriber]
            hint = hints.get(tail)
            if hint is None:
                hints[tail] = Hint(message.offset, message.offset, [message.offset])
            elif message.offset > hint.last:
                hint.add(message.offset)

    def _keep_range(self, tail: ShardTail, start: int, end: int) -> None:
        for hints in self._recovered.values():
            known = hints.get(tail)
            hints[tail] = Hint(min(start, known.first) if known else start, end - 1)

    def _add_hints(self, session: Session) -> None:
        """Put what was recovered before what delivery has added meanwhile."""
        recovered = self._recovered[session]
        was_connected = not self._saved.sessions[session.client_id].disconnected_at_ms
        for tail, hint in recovered.items():
            if was_connected:
                hint.dup_until = self._joined.get(tail, tail.known_end)
            later = (session.hints or {}).get(tail)
            if later is not None:
                both = None
                if hint.offsets is not None and later.offsets is not None:
                    both = [*hint.offsets, *(n for n in later.offsets if n > hint.last)]
                hint.offsets = both if both is not None and len(both) <= HINTS_MAX else None
                hint.last = max(hint.last, later.last)
            if session.hints is None:
                session.hints = {}
            session.hints[tail] = hint
        if recovered:
            session.mark_position_dirty()
