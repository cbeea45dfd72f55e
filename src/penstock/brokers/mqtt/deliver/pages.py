"""Pages of messages that were read from the log, shared by the subscribers that are not live."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from operator import attrgetter
from typing import Final

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail

PAGE_SIZE: Final = 256 << 10
PAGE_RECORDS: Final = 2_000
CACHE_SIZE_MAX: Final = 32 << 20
"""Bytes of payload in all pages; about."""
_MESSAGE_SIZE: Final = 250
"""Bytes that a message takes besides its payload; about."""
_offset_of: Final = attrgetter("offset")


class Page:
    """All messages of [start, end) of a shard."""

    __slots__ = ("end", "messages", "size", "start")

    def __init__(self, start: int, end: int, messages: list[Message]) -> None:
        self.start: Final = start
        self.end: Final = end
        self.messages: Final = messages
        self.size: Final = sum(len(message.payload) + _MESSAGE_SIZE for message in messages)

    def index_of(self, offset: int) -> int:
        """Return the index of the first message at or after an offset."""
        messages = self.messages
        index = offset - self.start
        if 0 <= index < len(messages) and messages[index].offset == offset:
            return index
        return bisect_left(messages, offset, key=_offset_of)

    def message_at(self, offset: int) -> Message | None:
        """Return the message with an offset; None: it was deleted, or has expired."""
        index = self.index_of(offset)
        if index < len(self.messages) and self.messages[index].offset == offset:
            return self.messages[index]
        return None


class PageCache:
    """The pages that were used last, of all shards."""

    def __init__(self, size_max: int = CACHE_SIZE_MAX) -> None:
        self._size_max: Final = size_max
        self._by_shard: Final[dict[ShardTail, list[Page]]] = {}
        self._pages: Final[OrderedDict[tuple[ShardTail, int], Page]] = OrderedDict()
        self.size = 0

    def find(self, tail: ShardTail, offset: int) -> Page | None:
        """Return a page that covers an offset."""
        for page in self._by_shard.get(tail, ()):
            if page.start <= offset < page.end:
                self._pages.move_to_end((tail, page.start))
                return page
        return None

    def add(self, tail: ShardTail, page: Page) -> None:
        if page.end <= page.start:
            return
        self.remove(tail, page.start)
        self._pages[tail, page.start] = page
        self._by_shard.setdefault(tail, []).append(page)
        self.size += page.size
        while self.size > self._size_max and len(self._pages) > 1:
            oldest_tail, start = next(iter(self._pages))
            self.remove(oldest_tail, start)

    def remove(self, tail: ShardTail, start: int) -> None:
        page = self._pages.pop((tail, start), None)
        if page is None:
            return
        self.size -= page.size
        pages = self._by_shard[tail]
        pages.remove(page)
        if not pages:
            del self._by_shard[tail]

    def remove_shard(self, tail: ShardTail) -> None:
        for page in list(self._by_shard.get(tail, ())):
            self.remove(tail, page.start)
