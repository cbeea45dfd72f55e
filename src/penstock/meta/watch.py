"""Watchers: every change of the metadata, in order, each exactly once.

The log's thread queues what it applied; the thread that proposed the change then calls the
watchers, one thread at a time, with no lock of the log held. A watcher may read and change the
metadata (its changes are delivered after it has returned), but must not register another watcher. A
change proposed by one thread can be delivered by another, so a call may return just before its
watchers were called.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder

from penstock.meta.events import Event, NodePut, SegmentPut, ShardPut, TopicPut
from penstock.meta.state.answers import HEAD, HEAD_TABLE, read_head
from penstock.meta.state.constants import ACTIVE
from penstock.meta.state.keys import encode_key
from penstock.meta.state.metadata.commands import Answer, Applied
from penstock.meta.state.metadata.rows import (
    EVENTS_TABLE,
    NODES,
    SEGMENTS,
    SHARDS,
    TOPICS,
    scan_events,
)
from penstock.meta.state.model import Node, Segment, Shard, Topic
from penstock.meta.state.view import Reader
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

_topic_decoder: Final = Decoder(Topic)
_shard_decoder: Final = Decoder(Shard)
_segment_decoder: Final = Decoder(Segment)
_node_decoder: Final = Decoder(Node)


class Update(Struct, frozen=True):
    """What changed at one revision."""

    revision: int
    events: tuple[Event, ...]
    is_reset: bool = False
    """True: drop everything known before; the events are all that exists at this revision."""


class Watch:
    """A registration; `close` ends it, and no call begins after that."""

    def __init__(self, callback: Callable[[Update], None], after: int) -> None:
        self._callback = callback
        self.revision = after
        """The last revision that was delivered."""
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def deliver(self, update: Update) -> None:
        if self.is_closed or update.revision <= self.revision:
            return
        self.revision = update.revision
        try:
            self._callback(update)
        except Exception as error:  # noqa: BLE001 - an error of the watcher must not fail the change
            # The watcher missed a change: further calls would leave it wrong without a sign.
            self.is_closed = True
            _log.error("watcher_failed", cause=error, revision=update.revision)


class Watchers:
    def __init__(self) -> None:
        self._queue: deque[Update] = deque()
        self._watches: list[Watch] = []
        self._delivering = threading.Lock()

    def enqueue(self, answer: Answer) -> None:
        """Queue what a command caused; called in the order of the log, on its thread."""
        if isinstance(answer, Applied) and answer.events and not answer.repeated:
            self._queue.append(Update(answer.revision, answer.events))

    def enqueue_reset(self, reader: Reader) -> None:
        """Have the watchers start over: a snapshot replaced the state. Called as `enqueue` is."""
        self._queue.append(full_state(reader))

    def deliver(self) -> None:
        """Call the watchers with the queued updates, unless another thread does so."""
        while self._queue:
            # A thread that finds the lock taken leaves its update to the holder's next iteration.
            if not self._delivering.acquire(blocking=False):
                return
            try:
                self._drain()
            finally:
                self._delivering.release()

    def watch(self, reader: Reader, after: int, callback: Callable[[Update], None]) -> Watch:
        """Call `callback` with every change after revision `after`, the past ones before this
        returns. When those were dropped, the first update is a reset."""
        watch = Watch(callback, after)
        with self._delivering:
            for update in _backlog(reader, after):
                watch.revision = min(watch.revision, update.revision - 1)
                watch.deliver(update)
            self._watches = [*[other for other in self._watches if not other.is_closed], watch]
        self.deliver()
        return watch

    def _drain(self) -> None:
        while self._queue:
            update = self._queue.popleft()
            for watch in self._watches:
                watch.deliver(update)


def _backlog(reader: Reader, after: int) -> list[Update]:
    head = read_head(reader)
    if head.horizon <= after <= head.revision:
        updates = [Update(*event) for event in scan_events(reader, after)]
        # Rows can be dropped while they are read; only then has the horizon moved past us.
        if read_head(reader).horizon <= after:
            return updates
    return [full_state(reader)]


def full_state(reader: Reader) -> Update:
    """Return everything that exists, at one revision: a scan reads one snapshot."""
    revision = 0
    topics: set[str] = set()
    events: list[Event] = []
    for key, row in reader.scan(encode_key(HEAD_TABLE), encode_key(EVENTS_TABLE)):
        table = key[0]
        if table == HEAD_TABLE:
            revision = HEAD.unpack(row)[0]
        elif table == TOPICS.number:
            topic = _topic_decoder.decode(row)
            if topic.status == ACTIVE:
                topics.add(topic.topic_id)
                events.append(TopicPut(topic))
        elif table == SHARDS.number:
            shard = _shard_decoder.decode(row)
            if shard.topic_id in topics:
                events.append(ShardPut(shard))
        elif table == SEGMENTS.number:
            segment = _segment_decoder.decode(row)
            if segment.topic_id in topics:
                events.append(SegmentPut(segment))
        elif table == NODES.number:
            events.append(NodePut(_node_decoder.decode(row)))
    return Update(revision, tuple(events), is_reset=True)
