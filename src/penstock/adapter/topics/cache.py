"""`BrokerCacheManager`: the topics by name, as of the last update of the meta service.

Updates are applied in order. Names belong to a namespace; after its deletion a name may go to
another topic, with another id.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.engine.routing.metadata_waiters import CacheWaiters
from penstock.errors import UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE, Node, Topic, Update
from penstock.meta import events as event
from penstock.platform.clock import Clock, SystemClock

TopicKey = tuple[str, str]


class BrokerCacheManager:
    """Reading needs no lock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.topics: Final[dict[TopicKey, Topic]] = {}
        """By (namespace, name)."""
        self.nodes: Final[dict[int, Node]] = {}
        self.revision = 0
        """The revision of the last update."""
        self._lock: Final = threading.Lock()
        self._waiters: Final = CacheWaiters(clock if clock is not None else SystemClock())

    def get_topic(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> Topic:
        """Return a topic, or raise `UnknownTopicError`."""
        topic = self.topics.get((namespace, name))
        if topic is None:
            raise UnknownTopicError(name)
        return topic

    def list_topics(self, namespace: str | None = None) -> list[Topic]:
        """Return the topics of a namespace, or all, by namespace and name."""
        with self._lock:
            topics = sorted(self.topics.items())
        return [topic for (space, _), topic in topics if namespace in {None, space}]

    def wait_for_topic(self, topic: Topic, seconds: float) -> bool:
        """Wait until the change that made `topic` what it is was applied; return whether it was in
        time. The topic may have been deleted since."""
        return self._waiters.wait(lambda: self.revision >= topic.revision, seconds)

    def apply(self, update: Update) -> None:
        """Apply an update of the metadata."""
        with self._lock:
            if update.is_reset:
                self.topics.clear()
                self.nodes.clear()
            for change in update.events:
                self._apply(change)
            self.revision = update.revision
        self._waiters.wake()

    def _apply(self, change: event.Event) -> None:
        match change:
            case event.TopicPut(topic):
                self.topics[topic.namespace, topic.name] = topic
            case event.TopicDeleted(topic):
                key = (topic.namespace, topic.name)
                shown = self.topics.get(key)
                if shown is not None and shown.topic_id == topic.topic_id:
                    del self.topics[key]
            case event.NodePut(node):
                self.nodes[node.node_id] = node
            case event.NodeRemoved(node_id):
                self.nodes.pop(node_id, None)
            case (
                event.ShardPut()
                | event.ShardDeleted()
                | event.SegmentPut()
                | event.SegmentDeleted()
            ):
                pass
