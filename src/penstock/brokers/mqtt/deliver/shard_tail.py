"""`ShardTail`: how far delivery has come in one shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.message import Message

if TYPE_CHECKING:
    from penstock.adapter import RecordWatch
    from penstock.brokers.mqtt.deliver.message import ReceivedMessages


class ShardTail:
    """The end of a shard, as the event loop knows it. All messages before `known_end` were given to
    the subscribers that were live; `end` includes those that are queued for this turn."""

    __slots__ = (
        "advertised",
        "end",
        "expected",
        "expected_from",
        "is_gone",
        "is_remote",
        "known_end",
        "marked_end",
        "name",
        "partition",
        "queued",
        "reading",
        "stored_topic",
        "topic_id",
        "watch",
        "woken",
    )

    def __init__(self, name: str, stored_topic: str, partition: int, end: int) -> None:
        """`name` is `{topic_id}_{partition}`, so a topic that is created again has other tails."""
        self.name: Final = name
        self.topic_id: Final = name.rpartition("_")[0]
        self.stored_topic: Final = stored_topic
        self.partition: Final = partition
        self.known_end = end
        self.end = end
        self.marked_end = -1
        """`known_end` of the last mark."""
        self.queued: list[Message | ReceivedMessages] = []
        self.expected = 0
        """Appends of this front end that are on their way in other threads."""
        self.expected_from = 0
        """Those of them that are in the shard are not before this offset."""
        self.reading = False
        """Whether messages of other writers are being read from the log."""
        self.woken = False
        """Whether another writer has appended since delivery looked last."""
        self.is_gone = False
        """Whether the shard was deleted."""
        self.is_remote = False
        """Whether the node that leads the shard says when it has grown; the watch does not then."""
        self.advertised = 0
        """How far the shard goes at least, as that node says."""
        self.watch: RecordWatch | None = None

    @property
    def safe_end(self) -> int:
        """Before this offset everything was delivered, and what this front end has stored was
        reported to the sessions that published it."""
        return min(self.known_end, self.expected_from) if self.expected else self.known_end

    def __repr__(self) -> str:
        return f"ShardTail({self.name!r}, known_end={self.known_end})"
