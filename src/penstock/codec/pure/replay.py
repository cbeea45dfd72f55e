"""Builds queues, time blocks and index entries again from the records of a log.

A record is looked at in log order. One that has an offset below its queue's end replaces everything
from that offset on: the shard was cut there, and the bytes of the cut records are dead. A group is
taken whole or not at all.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.codec.append_interface import Replayed
from penstock.codec.codes import (
    REPLAY_DAMAGE,
    REPLAY_DONE,
    REPLAY_LEAP,
    REPLAY_NO_INDEX_ROOM,
    REPLAY_TRUNCATE_BATCH_QUEUE,
)
from penstock.codec.format import (
    FLAG_INNER_BATCH,
    GAP_MAX,
    KIND_BATCH,
    KIND_SIMPLE,
    Damage,
)
from penstock.codec.index_writer import IndexFiles
from penstock.codec.pure.queue_table import Queue, QueueTable
from penstock.codec.pure.read.codec import end_of_log
from penstock.codec.pure.read.dispatching import Facts, facts_of
from penstock.codec.pure.read.located import check_at

_OFFSET_MAX: Final = (1 << 63) - 1


class Replay:
    """One pass over one log file."""

    def __init__(
        self,
        queues: QueueTable,
        index: IndexFiles | None,
        log: memoryview,
        base: int,
        special_topic_suffix: str,
        *,
        strict: bool,
    ) -> None:
        self._queues = queues
        self._index = index
        self._log = log
        self._base = base
        self._suffix = special_topic_suffix
        self._strict = strict
        self._ahead: deque[Facts] = deque()  # the members of a group, checked with its first record
        self._specials: list[tuple[int, int]] = []
        self.last_store_timestamp_ms = 0

    def run(self, start: int, end: int, *, groups: bool) -> Replayed:
        """Dispatch the records of [start, end). Without `groups`, part of one is good enough."""
        limit = min(end - self._base, len(self._log))
        position = start
        records = 0
        while position - self._base < limit:
            stop = end_of_log(self._log, self._base, position, limit)
            if isinstance(stop, int):
                return stop, records, REPLAY_DONE, None, self._specials
            facts = stop or self._read(position, limit, groups=groups)
            outcome = facts if isinstance(facts, Damage) else self._dispatch(facts, position)
            if isinstance(outcome, Damage):
                return position, records, REPLAY_DAMAGE, outcome, self._specials
            if outcome != REPLAY_DONE:
                return position, records, outcome, None, self._specials
            assert isinstance(facts, Facts)
            records += 1
            position += facts.record.size
        return position, records, REPLAY_DONE, None, self._specials

    def _read(self, position: int, limit: int, *, groups: bool) -> Facts | Damage:
        """Return the record at `position`; with `groups`, if it begins one, all of that is good."""
        if self._ahead:
            return self._ahead.popleft()
        checked = check_at(self._log, self._base, position, limit, strict=self._strict)
        if isinstance(checked, Damage):
            return checked
        facts = facts_of(self._log, checked)
        size = facts.group_size() if groups else None
        if isinstance(size, str):
            return Damage(position, size)
        damage = None if size is None else self._check_group(facts, position, size, limit)
        return damage or facts

    def _check_group(self, first: Facts, start: int, size: int, limit: int) -> Damage | None:
        end = start + size
        members: list[Facts] = []
        if size < first.record.size or end - self._base > limit:
            return Damage(start, f"group of {size} bytes is cut short")
        position = start + first.record.size
        while position < end:
            checked = check_at(self._log, self._base, position, limit, strict=self._strict)
            if isinstance(checked, Damage):
                return Damage(position, f"group at {start} is incomplete: {checked.reason}")
            member = facts_of(self._log, checked)
            if member.topic != first.topic or checked.queue_id != first.record.queue_id:
                return Damage(position, f"group at {start} holds a record of another queue")
            if member.group_size() is not None:
                return Damage(position, f"group at {start} holds the start of another group")
            members.append(member)
            position += checked.size
        if position != end:
            return Damage(start, f"group of {size} bytes does not end with a record")
        self._ahead.extend(members)
        return None

    # ---------------------------------------------------------------------------- dispatch

    def _dispatch(self, facts: Facts, position: int) -> int | Damage:
        """Dispatch one record; return REPLAY_DONE, or why it cannot be dispatched now."""
        hashes: list[int] = []
        if self._index is not None and position >= self._index.end_position:
            hashes = facts.index_hashes()[self._index.count_of(position) :]
            if len(hashes) > self._index.room:
                return REPLAY_NO_INDEX_ROOM
        if facts.enters_a_queue:
            outcome = self._dispatch_to_queue(facts, position)
            if outcome != REPLAY_DONE:
                return outcome
        store_ms = facts.record.store_timestamp_ms
        if self._index is not None and hashes:
            self._index.put_all(hashes, position, store_ms)
        queue = self._queues.find(facts.topic, facts.record.queue_id)
        if queue is None or not queue.admission.is_following:
            # Else they may be copies, with the times of another node's clock.
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, store_ms)
        return REPLAY_DONE

    def _dispatch_to_queue(self, facts: Facts, position: int) -> int | Damage:
        record = facts.record
        queue = self._queues.find(facts.topic, record.queue_id)
        is_new = queue is None
        inner = facts.inner
        kind = self._kind_of(facts) if queue is None else queue.kind
        if kind == KIND_BATCH and inner is None:
            return REPLAY_DONE
        offset, count = inner if kind == KIND_BATCH and inner else (record.queue_offset, 1)
        if offset < 0 or offset + count > _OFFSET_MAX or not facts.topic:
            return Damage(position, f"offset {offset} of topic {facts.topic!r} makes no sense")
        if queue is None:
            first_unit = offset if kind == KIND_SIMPLE else 0
            queue = self._queues.add(facts.topic, record.queue_id, kind, offset, first_unit)
        outcome = REPLAY_DONE if is_new else self._make_way(queue, offset, position)
        if outcome == REPLAY_DONE:
            self._add_special(facts, queue, position)
            stamps = (record.store_timestamp_ms, record.born_timestamp_ms)
            queue.add_unit(position, record.size, facts.tag_code, stamps, count)
        return outcome

    @staticmethod
    def _kind_of(facts: Facts) -> int:
        is_batch = facts.record.sys_flag & FLAG_INNER_BATCH or facts.inner is not None
        return KIND_BATCH if is_batch else KIND_SIMPLE

    def _make_way(self, queue: Queue, offset: int, position: int) -> int:
        """Let `offset` be the next one of `queue`."""
        if offset - queue.next_offset > GAP_MAX:
            self._specials.append((position, queue.handle))
            return REPLAY_LEAP
        if offset > queue.next_offset:
            queue.skip_to(offset)
        elif offset < queue.next_offset:
            if queue.kind == KIND_BATCH:
                self._specials.append((position, queue.handle))
                return REPLAY_TRUNCATE_BATCH_QUEUE
            queue.cut(offset, offset - queue.next_offset + queue.next_unit)
        return REPLAY_DONE

    def _add_special(self, facts: Facts, queue: Queue, position: int) -> None:
        is_special = (
            facts.has_producer
            or facts.epoch != queue.epoch
            or (self._suffix and facts.topic.endswith(self._suffix))
        )
        if is_special:
            self._specials.append((position, queue.handle))
        queue.epoch = facts.epoch
