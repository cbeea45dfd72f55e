"""The retained messages in memory: a tree of topic levels, so that filters find theirs.

Bounded by a number of topics and by bytes. Used on the event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.topics.filters import ANY_LEVEL, ANY_REST

ENTRY_SIZE: Final = 400
"""Bytes of an entry besides topic and payload, about."""


class _Node:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None


class RetainedIndex:
    def __init__(self, topics_max: int, size_max: int) -> None:
        self._topics_max: Final = topics_max
        self._size_max: Final = size_max
        self._root: Final = _Node()
        self._by_topic: Final[dict[str, Message]] = {}
        self.size = 0
        """Bytes of all messages, about."""

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: str) -> Message | None:
        return self._by_topic.get(topic)

    def has_room(self, message: Message) -> bool:
        """Say whether a message can be kept within the limits."""
        replaced = self._by_topic.get(message.topic)
        size = self.size + _size_of(message) - (_size_of(replaced) if replaced else 0)
        return size <= self._size_max and (
            replaced is not None or len(self._by_topic) < self._topics_max
        )

    def put(self, message: Message) -> None:
        """Keep a message in place of the last one of its topic."""
        replaced = self._by_topic.get(message.topic)
        if replaced is not None:
            self.size -= _size_of(replaced)
        node = self._root
        for level in message.topic.split("/"):
            node = node.children.get(level) or node.children.setdefault(level, _Node())
        node.message = message
        self._by_topic[message.topic] = message
        self.size += _size_of(message)

    def remove(self, topic: str) -> bool:
        """Drop the message of a topic; return whether there was one."""
        message = self._by_topic.pop(topic, None)
        if message is None:
            return False
        self.size -= _size_of(message)
        path = [self._root]
        levels = topic.split("/")
        for level in levels:
            path.append(path[-1].children[level])
        path[-1].message = None
        for parent, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            child = parent.children[level]
            if child.children or child.message is not None:
                break
            del parent.children[level]
        return True

    def match(self, topic_filter: str) -> Iterator[Message]:
        """Yield the messages whose topics a filter matches. The index may change meanwhile: what is
        added then may be left out."""
        if not {ANY_LEVEL, ANY_REST} & set(topic_filter):
            message = self._by_topic.get(topic_filter)
            if message is not None:
                yield message
            return
        pattern = topic_filter.split("/")
        waiting: list[tuple[_Node, int]] = [(self._root, 0)]
        while waiting:
            node, depth = waiting.pop()
            if depth == len(pattern):
                if node.message is not None:
                    yield node.message
                continue
            level = pattern[depth]
            if level == ANY_REST:
                if node.message is not None:
                    yield node.message  # `a/#` matches `a`, and everything below it
                waiting += [(child, depth) for child in self._below(node)]
            elif level == ANY_LEVEL:
                waiting += [(child, depth + 1) for child in self._below(node)]
            elif level in node.children:
                waiting.append((node.children[level], depth + 1))

    def _below(self, node: _Node) -> list[_Node]:
        """Return the next levels. A wildcard at the beginning of a filter matches no topic that
        begins with `$`."""
        if node is self._root:
            return [child for level, child in node.children.items() if not level.startswith("$")]
        return list(node.children.values())

    def drop_expired(self, now_ms: int, limit: int) -> int:
        """Drop up to `limit` messages that have expired; return how many."""
        expired: list[str] = []
        for topic, message in self._by_topic.items():
            if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
                expired.append(topic)
                if len(expired) >= limit:
                    break
        for topic in expired:
            self.remove(topic)
        return len(expired)


def _size_of(message: Message) -> int:
    return ENTRY_SIZE + 2 * len(message.topic) + len(message.payload)
