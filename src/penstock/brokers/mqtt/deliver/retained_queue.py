"""`RetainedQueue`: retained messages on their way to one new subscription after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.subscriptions.interface import Match, Subscription, match_of

QUEUED_MAX: Final = 256
"""Messages in memory for one subscriber above which no more are loaded."""


class RetainedSource(Protocol):
    """The retained messages of the node."""

    def pages(self, topic_filter: str) -> AsyncIterator[Sequence[Message]]:
        """Return the retained messages that a filter matches, some at a time."""
        ...

    @property
    def is_loaded(self) -> bool:
        """Whether all retained messages are known, some time after the start."""
        ...

    def match(self, topic_filter: str, limit: int) -> Sequence[Message]:
        """Return retained messages of those that are known."""
        ...


class RetainedQueue:
    __slots__ = ("is_loading", "messages", "sources")

    def __init__(self) -> None:
        self.messages: Final[deque[tuple[Message, Match]]] = deque()
        self.sources: Final[deque[tuple[AsyncIterator[Sequence[Message]], Match]]] = deque()
        """Of subscriptions whose messages are not all loaded."""
        self.is_loading = False

    @property
    def is_complete(self) -> bool:
        return not self.messages and not self.sources and not self.is_loading

    def add_source(self, source: RetainedSource, subscription: Subscription) -> None:
        match = match_of([subscription])
        is_exact = not {"+", "#"} & set(subscription.inner)
        if is_exact and source.is_loaded and not self.sources:
            found = source.match(subscription.inner, 1)
            self.messages.extend((message, match) for message in found)
            return
        self.sources.append((aiter(source.pages(subscription.inner)), match))

    async def load(self) -> None:
        """Load the next messages."""
        while self.sources and len(self.messages) < QUEUED_MAX:
            pages, match = self.sources[0]
            try:
                page = await anext(pages)
            except StopAsyncIteration:
                self.sources.popleft()
                continue
            self.messages.extend((message, match) for message in page)
