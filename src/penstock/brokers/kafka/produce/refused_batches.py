"""`RefusedBatches`: keeps the batches of idempotent producers in order when one is refused.

A producer has up to five requests on their way. When one is refused for a moment (this node does
not lead yet), those after it are already here. They are refused, too, until the first one comes
again:

  * a producer that the shard knows would get OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then
    raises its epoch, and sends batches whose outcome is unknown under new numbers to all of its
    partitions: no broker recognises the repetition, and records are stored twice
  * one that the shard does not know may begin anywhere. The later batch would be stored, and
    librdkafka would count the refused one as delivered: a record is lost
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

SEQUENCES: Final = 1 << 31
"""How many sequence numbers there are; 0 follows the last."""
REFUSALS_MAX: Final = 4
"""Batches that may follow a refused one before the client knows of it: an idempotent producer has
up to five on their way."""
ENTRIES_MAX: Final = 1_000
"""Producers and partitions of one connection; the oldest goes for one too many."""

_RETRIED: Final = frozenset(
    map(
        int,
        (
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.leader_not_available,
            ErrorCode.not_leader_or_follower,
            ErrorCode.request_timed_out,
            ErrorCode.not_enough_replicas,
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.kafka_storage_error,
        ),
    )
)
"""After these a producer sends the same batch again, under the same numbers."""


class NumberedBatch(NamedTuple):
    """A batch of an idempotent producer for one partition."""

    topic: bytes
    partition: int
    producer_id: int
    epoch: int
    sequence: int

    @property
    def key(self) -> tuple[bytes, int, int]:
        return self[:3]


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    left: int
    """Later batches that may be refused because of it."""


class RefusedBatches:
    """The batches that one connection was refused last. Its requests run one at a time."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: Final[dict[tuple[bytes, int, int], _Refused]] = {}
        """The first of the refused batches of each producer and partition."""

    def __len__(self) -> int:
        return len(self._first)

    def must_wait(self, batch: NumberedBatch) -> bool:
        """Say whether a batch is refused without a look at the shard: the shard may not know its
        producer, whose first batch was refused."""
        first = self._before(batch)
        return first is not None and first.sequence == 0

    def code_of(self, batch: NumberedBatch, code: int) -> int:
        """Return the error code for a batch that the shard has refused with `code`."""
        is_gap = code == ErrorCode.out_of_order_sequence_number
        if is_gap and self._before(batch) is not None:
            return int(ErrorCode.not_leader_or_follower)
        return code

    def record(self, batch: NumberedBatch, code: int) -> None:
        """Record the outcome of a batch."""
        first = self._before(batch)
        if code not in _RETRIED:
            # Written, as everything before it was; or the producer does not send it again.
            self._first.pop(batch.key, None)
        elif first is None:
            self._first.pop(batch.key, None)
            self._first[batch.key] = _Refused(batch.epoch, batch.sequence, REFUSALS_MAX)
            if len(self._first) > ENTRIES_MAX:
                del self._first[next(iter(self._first))]
        elif first.left > 1:
            self._first[batch.key] = first._replace(left=first.left - 1)
        else:
            del self._first[batch.key]

    def _before(self, batch: NumberedBatch) -> _Refused | None:
        """Return the refused batch that has to come before this one."""
        first = self._first.get(batch.key)
        if first is None or first.epoch != batch.epoch:
            return None
        distance = (batch.sequence - first.sequence) % SEQUENCES
        return first if 0 < distance < SEQUENCES // 2 else None
