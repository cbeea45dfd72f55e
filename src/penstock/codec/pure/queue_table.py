"""The queues that an appender knows: where each ends, the units not yet in its file, its times."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.codec.format import (
    BATCH_UNIT,
    BLOCK_MAX_NONE,
    BLOCK_MAX_UNKNOWN,
    KIND_BATCH,
    KIND_SIMPLE,
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK,
    QUEUE_UNIT,
    TIME_BLOCK,
    TOPIC_SIZE_V1_MAX,
    java_hash,
)
from penstock.codec.pure.read.codec import sized_topic
from penstock.errors import AlreadyExistsError, BadRequestError

EPOCH_UNKNOWN: Final = -1


class Admission(NamedTuple):
    """What an append has to know of a queue's shard."""

    is_open: bool = False
    """It takes records without further questions."""
    is_sync: bool = False
    """Its records are shown and acknowledged when they are on the device."""
    epoch: int = 0
    """Leader epoch of the records to come."""
    is_following: bool = False
    """Another node decides what it holds: store times are of that node's clock."""


class Queue:
    """One queue.

    * units [first_unit, next_unit) are held in `units`; those before are in the queue's file
    * `block_max` belongs to the block of `next_offset`, `times` to blocks before it
    """

    __slots__ = (
        "admission",
        "block_max",
        "epoch",
        "first_unit",
        "handle",
        "hidden",
        "index_prefix",
        "kind",
        "magic",
        "next_offset",
        "next_unit",
        "queue_id",
        "sized_topic",
        "times",
        "topic",
        "unit_size",
        "units",
    )

    def __init__(
        self, handle: int, topic: str, queue_id: int, kind: int, next_offset: int, next_unit: int
    ) -> None:
        version = 1 if len(topic.encode("utf-8", "surrogateescape")) <= TOPIC_SIZE_V1_MAX else 2
        self.handle = handle
        self.topic = topic
        self.queue_id = queue_id
        self.kind = kind
        self.next_offset = next_offset
        self.next_unit = next_unit
        self.first_unit = next_unit
        self.units = bytearray()
        self.unit_size = QUEUE_UNIT.size if kind == KIND_SIMPLE else BATCH_UNIT.size
        self.times: list[tuple[int, int]] = []
        self.block_max = BLOCK_MAX_NONE
        self.epoch = EPOCH_UNKNOWN
        self.admission = Admission()
        self.hidden: deque[tuple[int, int]] = deque()
        self.magic = MAGIC_V1 if version == 1 else MAGIC_V2
        self.sized_topic = sized_topic(topic, version)
        self.index_prefix = java_hash(f"{topic}#")

    @property
    def shard(self) -> str:
        return f"{self.topic}_{self.queue_id}"

    def add_unit(
        self, position: int, size: int, code: int, stamps: tuple[int, int], count: int
    ) -> None:
        """Let the record at `position` have the next `count` offsets (1 in a simple queue).
        `stamps` are its store and born timestamps."""
        store_ms, born_ms = stamps
        self.next_unit += 1
        if self.kind == KIND_SIMPLE:
            self.units += QUEUE_UNIT.pack(position, size, code)
            self.next_offset += 1
            self.block_max = max(self.block_max, born_ms)
            if self.next_offset % TIME_BLOCK == 0:
                self._close_block()
        else:
            self.units += BATCH_UNIT.pack(
                position, size, code, store_ms, self.next_offset, count, -1, 0
            )
            self._advance(self.next_offset + count, born_ms)

    def skip_to(self, offset: int) -> None:
        """Leave the offsets before `offset` empty."""
        if self.kind == KIND_SIMPLE:
            gap = offset - self.next_offset
            self.units += PRE_BLANK * gap
            self.next_unit += gap
        self._advance(offset, BLOCK_MAX_NONE)

    def restart(self, next_offset: int, next_unit: int) -> None:
        """Forget everything; go on at `next_offset`, which is unit `next_unit`."""
        self.units.clear()
        self.times.clear()
        self.hidden.clear()
        self.block_max = BLOCK_MAX_NONE
        self.next_offset = next_offset
        self.next_unit = self.first_unit = next_unit
        self.epoch = EPOCH_UNKNOWN

    def cut(self, next_offset: int, next_unit: int) -> None:
        """Forget everything from `next_offset`, which is unit `next_unit`, on."""
        if not (0 <= next_offset <= self.next_offset and 0 <= next_unit <= self.next_unit):
            raise BadRequestError(
                f"shard {self.shard!r} cannot be truncated to offset {next_offset}, unit "
                f"{next_unit}: it ends at offset {self.next_offset}, unit {self.next_unit}"
            )
        self._truncate_times(next_offset)
        self.hidden = deque(offsets for offsets in self.hidden if offsets[0] < next_offset)
        self.first_unit = min(self.first_unit, next_unit)
        del self.units[(next_unit - self.first_unit) * self.unit_size :]
        self.next_offset = next_offset
        self.next_unit = next_unit
        self.epoch = EPOCH_UNKNOWN

    def hide(self, first_offset: int, end: int, durable: int) -> None:
        """Do not show the records from `first_offset` on before the log is on the device up to
        `end`."""
        self._unhide(durable)
        self.hidden.append((first_offset, end))

    def shown_offset(self, durable: int) -> int:
        self._unhide(durable)
        return self.hidden[0][0] if self.hidden else self.next_offset

    def _unhide(self, durable: int) -> None:
        while self.hidden and self.hidden[0][1] <= durable:
            self.hidden.popleft()

    def held(self, unit: int, count: int) -> bytes:
        if unit < self.first_unit or count <= 0:
            return b""
        start = (unit - self.first_unit) * self.unit_size
        return bytes(self.units[start : start + count * self.unit_size])

    def drop(self, until_unit: int) -> None:
        until = min(until_unit, self.next_unit)
        if until > self.first_unit:
            del self.units[: (until - self.first_unit) * self.unit_size]
            self.first_unit = until

    def _advance(self, until: int, born_ms: int) -> None:
        while self.next_offset < until:
            block = self.next_offset // TIME_BLOCK
            self.next_offset = min(until, (block + 1) * TIME_BLOCK)
            self.block_max = max(self.block_max, born_ms)
            if self.next_offset % TIME_BLOCK == 0:
                self._close_block()

    def _close_block(self) -> None:
        self.times.append((self.next_offset // TIME_BLOCK - 1, self.block_max))
        self.block_max = BLOCK_MAX_NONE

    def _truncate_times(self, next_offset: int) -> None:
        block = next_offset // TIME_BLOCK
        if next_offset % TIME_BLOCK == 0:
            self.block_max = BLOCK_MAX_NONE
        elif block != self.next_offset // TIME_BLOCK:
            self.block_max = dict(self.times).get(block, BLOCK_MAX_UNKNOWN)
        self.times = [entry for entry in self.times if entry[0] < block]


class QueueTable:
    """Queues by handle, and by topic and queue id. Handles are never used again."""

    def __init__(self) -> None:
        self._by_handle: dict[int, Queue] = {}
        self._by_name: dict[tuple[str, int], Queue] = {}
        self._next_handle = 0

    def add(self, topic: str, queue_id: int, kind: int, next_offset: int, next_unit: int) -> Queue:
        if kind not in (KIND_SIMPLE, KIND_BATCH):
            raise BadRequestError(f"kind {kind} is not a kind of queue")
        if not topic or next_offset < 0 or next_unit < 0:
            raise BadRequestError(
                f"topic {topic!r}, offset {next_offset}, unit {next_unit} make no queue"
            )
        if (topic, queue_id) in self._by_name:
            raise AlreadyExistsError(f"shard '{topic}_{queue_id}' has a queue")
        queue = Queue(self._next_handle, topic, queue_id, kind, next_offset, next_unit)
        self._by_handle[queue.handle] = queue
        self._by_name[topic, queue_id] = queue
        self._next_handle += 1
        return queue

    def remove(self, handle: int) -> None:
        queue = self.get(handle)
        del self._by_handle[handle], self._by_name[queue.topic, queue.queue_id]

    def get(self, handle: int) -> Queue:
        queue = self._by_handle.get(handle)
        if queue is None:
            raise BadRequestError(f"no queue has handle {handle}")
        return queue

    def find(self, topic: str, queue_id: int) -> Queue | None:
        return self._by_name.get((topic, queue_id))

    def table_of(self, number_of: Callable[[Queue], int]) -> bytes:
        """Return a number of every queue, by handle; 0 for deleted ones."""
        numbers = array("q", bytes(8 * self._next_handle))
        for queue in self._by_handle.values():
            numbers[queue.handle] = number_of(queue)
        return numbers.tobytes()

    def all(self) -> list[Queue]:
        return list(self._by_handle.values())
