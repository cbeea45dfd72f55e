"""`Delivery`: gives stored messages to subscribers, in the order of each shard.

    this front end   appended ──▶ queued ──▶ end of the turn: runs ──▶ subscriber.deliver
    other writers    the shard's watch ──▶ read from the log up to its end ──▶ runs

`known_end` of a shard is what was delivered. An append that does not begin there comes after
records of other writers: those are read from the log first, and the append with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.context import DeliveryCounts, Pumped
from penstock.brokers.mqtt.deliver.log_reader import LogReader
from penstock.brokers.mqtt.deliver.message import Message, ReceivedMessages
from penstock.brokers.mqtt.deliver.outgoing import Outgoing
from penstock.brokers.mqtt.deliver.pages import Page, PageCache
from penstock.brokers.mqtt.deliver.retained_queue import RetainedQueue, RetainedSource
from penstock.brokers.mqtt.deliver.run import Run
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.deliver.tails import MessageDecoder, StoredTopicName, Tails, TopicNames
from penstock.brokers.mqtt.subscriptions.interface import (
    Route,
    RoutedTopics,
    Subscription,
    Tree,
)
from penstock.brokers.mqtt.subscriptions.routing import make_routing
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Offset

if TYPE_CHECKING:
    from penstock._native import MqttReceivedRun

BLOCKED_PAUSE_S: Final = 0.05
"""How soon a subscriber whose output is too long is looked at again."""
ROUTE_CACHE_MAX: Final = 65_536
READERS_MAX: Final = 64
UNSENT_MAX: Final = 1 << 20

_log: Final = get_logger(__name__)


class Delivery:
    """Used on the event loop alone; `start` before the rest."""

    def __init__(
        self,
        drivers: StorageDriverManager,
        names: TopicNames,
        decoder: MessageDecoder,
        clock: Clock,
        *,
        unsent_max: int = UNSENT_MAX,
        queues_qos0: bool = False,
        route_cache_max: int = ROUTE_CACHE_MAX,
        readers_max: int = READERS_MAX,
    ) -> None:
        self.unsent_max = unsent_max
        self.queues_qos0 = queues_qos0
        self.counts = DeliveryCounts()
        tree, routes = make_routing(route_cache_max)
        self.tree: Final[Tree] = tree
        self.routes: Final[RoutedTopics] = routes
        self.route: Final[Callable[[str], Route]] = self.routes.find
        self.now_ms: Final[Callable[[], int]] = clock.now_ms
        self.tails: Final = Tails(drivers, self._look)
        self.reader: Final = LogReader(drivers, names, decoder, readers_max)
        self.reader.on_skipped = self._skipped
        self.retained: RetainedSource | None = None
        """Set before the first connection."""
        self._limits: Final = drivers.limits
        self._pages: Final = PageCache()
        self._dirty: list[ShardTail] = []
        self._passed: list[Message] = []
        self._is_scheduled = False
        self._pumps: list[Pumped] = []
        self._reads: Final[dict[tuple[ShardTail, int], list[Pumped]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stored_topics_for: Callable[[str], Sequence[StoredTopicName]] = lambda _: ()
        """Set before the first connection."""
        self.on_latency: Callable[[str, str, int], None] | None = None
        """Called with client id, topic and milliseconds of some acknowledgements."""
        self.on_advance: Callable[[ShardTail], None] | None = None
        """In a cluster: called when messages of a shard up to its `known_end` are committed."""
        self.skips_unread = False
        """Whether shards are not read as long as there are no subscriptions."""
        self.write_out: Callable[[Outgoing], None] = _not_stored
        """Set by the store of sessions, as the next one."""
        self.position_changed: Callable[[Outgoing], None] = _not_stored

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.tails.start()

    async def close(self) -> None:
        """Deliver what is queued, and end all reads."""
        self.flush()
        self.tails.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)

    def has_subscribers(self, topic: str) -> bool:
        return bool(self.routes.find(topic).entries)

    # Appends of this front end

    def expect(self, shard_name: str) -> None:
        """An append is on its way in another thread; `appended` or `append_failed` follows. Without
        this call its messages would be read from the log."""
        tail = self.tails.by_name.get(shard_name)
        if tail is not None:
            if not tail.expected:
                tail.expected_from = tail.known_end
            tail.expected += 1

    def append_failed(self, shard_name: str) -> None:
        """The append that `expect` announced wrote nothing."""
        tail = self.tails.by_name.get(shard_name)
        if tail is not None and tail.expected:
            tail.expected -= 1
            if tail.woken:
                self._look(tail)

    def appended(self, shard_name: str, first: Offset, messages: Sequence[Message]) -> None:
        """Deliver messages that were stored from `first` on, at the end of this turn."""
        tail = self.tails.by_name.get(shard_name)
        if tail is None:
            tail = self._open_unknown(shard_name, first)
            if tail is None:
                return
        if tail.expected:
            tail.expected -= 1
        offset: int = first
        if offset != tail.end or tail.reading or self._limits.holds_any:
            if not self._continues(tail, offset, len(messages)):
                return
            if offset < tail.end:
                messages = list(islice(messages, tail.end - offset, None))
                offset = tail.end
        for message in messages:
            message.shard = tail
            message.offset = offset
            offset += 1
        if not tail.queued:
            self._dirty.append(tail)
        tail.queued += messages
        tail.end = offset
        if not self._is_scheduled:
            self._schedule()
        self._look_after_append(tail)

    def received(self, shard_name: str, run: MqttReceivedRun) -> None:
        """Deliver a run that native code has stored, at the end of this turn."""
        tail = self.tails.by_name.get(shard_name)
        if tail is None:
            tail = self._open_unknown(shard_name, run.first)
            if tail is None:
                return
        if run.first != tail.end or tail.reading or self._limits.holds_any:
            self.appended(shard_name, Offset(run.first), ReceivedMessages(run, tail))
            return
        tail.end += len(run)
        if not tail.queued:
            if not len(self.tree):
                tail.known_end = tail.end
                return
            self._dirty.append(tail)
        tail.queued.append(ReceivedMessages(run, tail))
        if not self._is_scheduled:
            self._schedule()

    def _look_after_append(self, tail: ShardTail) -> None:
        """The shard was written to during an append: by that, or by another writer."""
        if tail.expected or tail.reading or not (tail.woken or tail.advertised > tail.end):
            return
        watch, tail.woken = tail.watch, False
        if watch is not None:
            watch.move(Offset(tail.end))
            tail.woken = not tail.is_remote and watch.has_news()
        if tail.woken or tail.advertised > tail.end:
            self._look(tail)

    def advertise(self, tail: ShardTail, end: int) -> None:
        """The node that leads a shard says that its messages up to `end` are committed."""
        tail.advertised = max(tail.advertised, end)
        if end <= tail.end:
            return
        is_quiet = not (tail.queued or tail.reading or tail.expected)
        if self.skips_unread and is_quiet and not len(self.tree):
            tail.known_end = tail.end = end
            return
        tail.woken = True
        self._look(tail)

    def look(self, tail: ShardTail) -> None:
        """Read what a shard has more than was delivered, if it has."""
        tail.woken = True
        self._look(tail)

    def passed(self, messages: Sequence[Message]) -> None:
        """Deliver messages that are not stored, with QoS 0, to connected subscribers."""
        self._passed += messages
        if not self._is_scheduled:
            self._schedule()

    def _continues(self, tail: ShardTail, first: int, count: int) -> bool:
        """Say whether an append can be delivered now. If not, it is read from the log after the
        records before it, or when no transaction holds it back."""
        is_held = False
        if self._limits.holds_any:
            stable = self._limits.stable_until(tail.name)
            is_held = stable is not None and stable < first + count
        if tail.reading or first > tail.end or is_held:
            tail.woken = True
            if not tail.reading:
                self._look(tail)
            return False
        return first + count > tail.end

    def _open_unknown(self, shard_name: str, first: int) -> ShardTail | None:
        """Follow a shard whose topic was created since the start."""
        topic_id, _, partition = shard_name.rpartition("_")
        topic = self.tails.topic_name(topic_id)
        if topic is None:
            return None  # deleted since
        return self.tails.open(topic, int(partition), shard_name, first)

    def _schedule(self) -> None:
        assert self._loop is not None, "delivery was started"
        self._is_scheduled = True
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Deliver what this turn has brought, then continue subscribers that wait."""
        self._is_scheduled = False
        now_ms = self.now_ms()
        if self._passed:
            passed, self._passed = self._passed, []
            self._deliver(None, passed, now_ms)
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for tail in dirty:
                queued, tail.queued = tail.queued, []
                tail.known_end = tail.end
                self._deliver(tail, queued, now_ms)
                if self.on_advance is not None:
                    self.on_advance(tail)
        if self._pumps:
            pumps, self._pumps = self._pumps, []
            for subscriber in pumps:
                subscriber.pump()

    def _deliver(
        self,
        tail: ShardTail | None,
        messages: Sequence[Message | ReceivedMessages],
        now_ms: int,
    ) -> None:
        """Group messages by route and QoS, and hand each group to the subscribers."""
        find = self.routes.find
        run: list[Message] = []
        current: Route | None = None
        qos = -1
        for message in messages:
            if isinstance(message, ReceivedMessages):
                if run and current is not None:
                    _hand_over(Run(tail, run, qos, now_ms), current)
                run, current = [], None
                self._deliver_received(message, now_ms)
                continue
            route = find(message.topic)
            if route is not current or message.qos != qos:
                if run and current is not None:
                    _hand_over(Run(tail, run, qos, now_ms), current)
                run = []
                current, qos = route, message.qos
            run.append(message)
        if run and current is not None:
            _hand_over(Run(tail, run, qos, now_ms), current)

    def _deliver_received(self, messages: ReceivedMessages, now_ms: int) -> None:
        """Hand messages over that native code has received, by their routes."""
        tail = messages.shard
        for route, part in messages.split(self.routes):
            if route.entries:
                _hand_over(Run(tail, part, part.source.qos, now_ms), route)

    # Appends of other writers

    def _look(self, tail: ShardTail) -> None:
        """Read what other writers have appended to a shard."""
        if tail.reading or tail.is_gone or tail.expected:
            return
        watch = tail.watch
        if watch is not None and watch.is_gone():
            self._close_shard(tail)
            return
        if tail.queued:
            self.flush()
        tail.reading = True
        self._spawn(self._follow(tail), "mqtt-follow")

    async def _follow(self, tail: ShardTail) -> None:
        """Deliver records from the log until its end."""
        try:
            while True:
                tail.woken = False
                if self.skips_unread and not len(self.tree) and await self._skip(tail):
                    return
                page = await self.reader.read(tail, tail.known_end)
                if page is None:
                    self._close_shard(tail)
                    return
                is_empty = page.end <= tail.known_end
                tail.known_end = tail.end = max(tail.known_end, page.end)
                if page.messages:
                    self._deliver(tail, page.messages, self.now_ms())
                if self.on_advance is not None and not is_empty:
                    self.on_advance(tail)
                if is_empty and not tail.woken:
                    return
        finally:
            tail.reading = False

    async def _skip(self, tail: ShardTail) -> bool:
        """Pass over the messages of a shard that no subscription asks for; return whether there is
        nothing to be read."""
        end = await self.reader.end_of(tail)
        if end is None or len(self.tree) or tail.woken:
            return False  # a subscription that came meanwhile wants messages before that end
        if end > tail.known_end:
            tail.known_end = tail.end = end
            if self.on_advance is not None:
                self.on_advance(tail)
        return True

    def _close_shard(self, tail: ShardTail) -> None:
        """The topic of a shard was deleted: what was not delivered is gone."""
        self.tails.close_shard(tail)
        self._pages.remove_shard(tail)

    def _skipped(self, count: int) -> None:
        self.counts.offsets_skipped += count

    # What subscribers ask for: see `DeliveryContext`

    def find_page(self, tail: ShardTail, offset: int) -> Page | None:
        return self._pages.find(tail, offset)

    def read_page(self, tail: ShardTail, offset: int, subscriber: Pumped) -> None:
        waiting = self._reads.get((tail, offset))
        if waiting is not None:
            waiting.append(subscriber)
            return
        self._reads[tail, offset] = [subscriber]
        self._spawn(self._read_page(tail, offset), "mqtt-read")

    async def _read_page(self, tail: ShardTail, offset: int) -> None:
        try:
            page = await self.reader.read(tail, offset)
            if page is None:
                self._close_shard(tail)
            else:
                self.counts.pages_read += 1
                if page.end <= offset < tail.known_end:
                    # The log ends before what was delivered: it was truncated by a power failure.
                    page = Page(offset, tail.known_end, [])
                self._pages.add(tail, page)
        finally:
            waiting = self._reads.pop((tail, offset))
        for subscriber in waiting:
            subscriber.page_was_read(tail)
            if not subscriber.pump_is_requested:
                self.request_pump(subscriber)

    def record_latency(self, client_id: str, topic: str, latency_ms: int) -> None:
        if self.on_latency is not None:
            self.on_latency(client_id, topic, latency_ms)

    def request_pump(self, subscriber: Pumped) -> None:
        if subscriber.pump_is_requested:
            return
        subscriber.pump_is_requested = True
        self._pumps.append(subscriber)
        if not self._is_scheduled:
            self._schedule()

    def pump_later(self, subscriber: Pumped) -> None:
        assert self._loop is not None, "delivery was started"
        if not subscriber.pump_is_requested:
            self._loop.call_later(BLOCKED_PAUSE_S, self.request_pump, subscriber)

    def tails_for(self, topic_filter: str) -> list[ShardTail]:
        """Return the shards that can have messages which a filter matches."""
        names = {topic.name for topic in self.stored_topics_for(topic_filter)}
        return [tail for tail in self.tails if tail.stored_topic in names]

    def has_retained(self) -> bool:
        return self.retained is None or self.retained.is_loaded

    def find_retained(self, topic: str) -> Message | None:
        found = () if self.retained is None else self.retained.match(topic, 1)
        return found[0] if found else None

    def queue_retained(self, subscriber: Outgoing, subscription: Subscription) -> None:
        """Send the retained messages that a new subscription matches, from the next turn on."""
        if subscriber.sink is None or self.retained is None:
            return
        if subscriber.retained is None:
            subscriber.retained = RetainedQueue()
        subscriber.retained.add_source(self.retained, subscription)
        if subscriber.retained.sources:
            self.load_retained(subscriber)
        elif subscriber.retained.messages:
            self.request_pump(subscriber)
        else:
            subscriber.retained = None

    def load_retained(self, subscriber: Outgoing) -> None:
        queue = subscriber.retained
        if queue is not None and not queue.is_loading:
            queue.is_loading = True
            self._spawn(self._load_retained(subscriber, queue), "mqtt-retained")

    async def _load_retained(self, subscriber: Outgoing, queue: RetainedQueue) -> None:
        try:
            await queue.load()
        finally:
            queue.is_loading = False
        if subscriber.retained is queue:
            self.request_pump(subscriber)

    def starts_of(self, subscriber: Outgoing) -> dict[ShardTail, int] | None:
        """Return where a new subscription of the subscriber begins, in the shards in which older
        messages may be read for it: now, or after a crash."""
        starts = {
            tail: tail.known_end
            for tail in (self.tails if subscriber.is_persistent else ())
            if tail.known_end != tail.marked_end
        }
        for tail in subscriber.lagging or ():
            starts[tail] = tail.known_end
        return starts or None

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        assert self._loop is not None, "delivery was started"
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("mqtt_delivery_failed", cause=error, task=task.get_name())


def _hand_over(run: Run, route: Route) -> None:
    for subscriber, match in route.entries:
        subscriber.deliver(run, match)


def _not_stored(subscriber: Outgoing) -> None:
    """Sessions are kept in memory only."""
    subscriber.position_is_dirty = True
