"""Every error this package raises, grouped by who can do something about it.

    StoreError
    ├── RequestError              the caller's request cannot be met; fix the request
    │   ├── BadRequestError           an argument makes no sense
    │   ├── UnknownTopicError / UnknownShardError / UnknownGroupError
    │   ├── TopicReplacedError        the name stands for another topic by now
    │   ├── AlreadyExistsError
    │   ├── RecordTooLargeError
    │   ├── ShardSealedError
    │   ├── ShardLostError            its node came back without the records; an operator decides
    │   ├── ProducerFencedError       a newer epoch of this producer has written
    │   ├── SequenceGapError          records between the last write and this one are missing
    │   ├── NotSupportedError         this engine, kind of queue or build cannot do that
    │   │   └── UnreadableContentError    an intact record whose content cannot be decoded
    │   ├── StaleWriteError           a compare-and-set found another value
    │   ├── GroupFencedError          this consumer lost its partitions to other members
    │   ├── GroupNotEmptyError        a group has live members; stop them first
    │   └── TransactionRefusedError   a transaction is not where this request expects it
    ├── RetryableError            nothing is wrong with the request; send it again later
    │   ├── NotLeaderError
    │   ├── NotEnoughReplicasError    too few replicas of a shard are in sync
    │   ├── BusyError                 a bounded queue stayed full for the whole deadline
    │   ├── DiskFullError             writes are refused until space is freed; reads go on
    │   ├── TierUnavailableError      the tier does not answer; what it holds cannot be read now
    │   ├── RebalanceInProgressError  the members of a group are being assigned partitions
    │   ├── StaleReadError            a node knows nothing new enough, and no leader to ask
    │   ├── GroupMovedError           a group has another coordinator; nothing was committed
    │   └── DeadlineError             the answer did not come in time; the outcome is unknown
    │       └── NotSentError              the other side is not there; nothing was done
    ├── SetupError                the operator must change a setting, a path or an installation
    │   ├── SettingsError
    │   ├── NotAStoreError
    │   ├── LockedError               another process has this directory open
    │   ├── TierSetupError            the tier refuses: no such bucket, no permission
    │   └── ReadOnlyError
    ├── PartialWriteError         some shards of a batch took their records, others did not
    ├── ClosedError               this object was closed
    ├── DiskFailedError           the device failed: a log has stopped for good, or a read failed
    └── CorruptionError           bytes on disk are not what was written; an operator must look
        └── TierDamageError           a chunk of a tier; says which offsets and which object
            └── TierObjectMissingError    an object that the manifest names is not there

A broken invariant of our own is not in this tree: it is an `AssertionError`. Protocol error codes
are not here either; each broker maps these classes at its own edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.record import Location


class StoreError(Exception):
    """The root: catch this to catch everything that Penstock raises on purpose."""


class RequestError(StoreError):
    """The caller's request cannot be met as it is."""


class BadRequestError(RequestError, ValueError):
    """An argument makes no sense."""


class UnknownTopicError(RequestError, LookupError):
    """No topic has this name."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist")
        self.topic = topic


class TopicReplacedError(RequestError):
    """The name stands for another topic by now."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and created again; offsets of the old one mean nothing "
            "in the new one"
        )
        self.topic = topic


class UnknownShardError(RequestError, LookupError):
    """No shard has this name."""

    def __init__(self, shard: str) -> None:
        super().__init__(f"shard {shard!r} does not exist")
        self.shard = shard


class UnknownGroupError(RequestError, LookupError):
    """No group of consumers has this name."""

    def __init__(self, group: str) -> None:
        super().__init__(f"consumer group {group!r} does not exist")
        self.group = group


class AlreadyExistsError(RequestError):
    """The name is taken."""


class RecordTooLargeError(RequestError, ValueError):
    """A record is larger than its limit."""

    def __init__(self, what: str, *, size: int, size_max: int) -> None:
        super().__init__(f"{what} takes {size} bytes; the limit is {size_max}")
        self.size = size
        self.size_max = size_max


class ShardSealedError(RequestError):
    """The shard is sealed, and takes no more records."""

    def __init__(self, shard: str) -> None:
        super().__init__(f"shard {shard!r} is sealed and takes no more records")
        self.shard = shard


class ShardLostError(RequestError):
    """Every node that had the records has come back without them. Nothing is served in their
    place until an operator deletes the topic or accepts the loss."""

    def __init__(self, shard: str, *, topic: str, nodes: Sequence[int]) -> None:
        where = ", ".join(str(node) for node in nodes)
        super().__init__(
            f"the records of {shard!r} are lost: node {where} has come back without its data. "
            f"Delete the topic {topic!r}, or begin it with an empty shard: "
            f"`penstock cluster accept-loss {topic}`"
        )
        self.shard = shard
        self.topic = topic


class ProducerFencedError(RequestError):
    """A newer epoch of this producer has written."""

    def __init__(self, shard: str, *, producer_id: int, epoch: int, newest_epoch: int) -> None:
        super().__init__(
            f"producer {producer_id} wrote to {shard!r} with epoch {epoch}, "
            f"but epoch {newest_epoch} has taken over"
        )
        self.producer_id = producer_id
        self.epoch = epoch
        self.newest_epoch = newest_epoch


class SequenceGapError(RequestError):
    """Records between the last write and this one are missing."""

    def __init__(self, shard: str, *, producer_id: int, sequence: int, expected: int) -> None:
        super().__init__(
            f"producer {producer_id} wrote sequence {sequence} to {shard!r}; "
            f"{expected} is the next one"
        )
        self.producer_id = producer_id
        self.sequence = sequence
        self.expected = expected


class NotSupportedError(RequestError):
    """This engine, kind of queue or build cannot do that."""


class UnreadableContentError(NotSupportedError):
    """A record is intact, but its content cannot be decoded: it is an opaque batch, or its body
    does not decompress. Raw reads return it; a reader that skips it continues at `next_offset`.
    `timestamp_ms` is that of the whole record."""

    def __init__(
        self, shard: str, *, offset: int, next_offset: int, timestamp_ms: int, reason: str
    ) -> None:
        super().__init__(
            f"the record at offset {offset} of {shard!r} is intact, but cannot be decoded: "
            f"{reason}. Read it raw, or continue at offset {next_offset}"
        )
        self.offset = offset
        self.next_offset = next_offset
        self.timestamp_ms = timestamp_ms


class StaleWriteError(RequestError):
    """A compare-and-set found another value."""


class GroupFencedError(RequestError):
    """A consumer lost its place in the group, and with it its partitions. What it did not commit
    is read again by the members that have them now; its next read joins the group again."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(
            f"this consumer is not a member of the current generation of group {group!r}: {reason}"
        )
        self.group = group


class GroupNotEmptyError(RequestError):
    """`members` names them."""

    def __init__(self, group: str, *, members: str, action: str) -> None:
        super().__init__(
            f"group {group!r} has live members, so that {action} is refused: {members}. "
            "Stop them first"
        )
        self.group = group
        self.members = members


class TransactionRefusedError(RequestError):
    """`code` says why: fenced, unknown_transaction, in_progress (try again soon), bad_state."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class RetryableError(StoreError):
    """Nothing is wrong with the request; send it again later."""


class NotLeaderError(RetryableError):
    """Another node leads this shard or group of nodes."""

    def __init__(self, shard: str, *, leader: str | None) -> None:
        super().__init__(f"this node does not lead {shard!r}; leader: {leader or 'unknown'}")
        self.shard = shard
        self.leader = leader


class NotEnoughReplicasError(RetryableError):
    """Fewer replicas of a shard are in sync than its topic asks for. `is_appended`: the records are
    in the leader's log, and are committed or removed later; else nothing was written."""

    def __init__(self, shard: str, *, in_sync: int, needed: int, is_appended: bool = False) -> None:
        outcome = "the outcome is unknown" if is_appended else "nothing was written"
        super().__init__(
            f"{in_sync} replicas of {shard!r} are in sync, and min_insync is {needed}; {outcome}, "
            "try again when more nodes are up"
        )
        self.shard = shard
        self.in_sync = in_sync
        self.needed = needed
        self.is_appended = is_appended


class BusyError(RetryableError):
    """A bounded queue stayed full for the whole deadline."""


class DiskFullError(RetryableError):
    """Writes are refused until space is freed; reads go on."""


class TierUnavailableError(RetryableError):
    """The tier does not answer; what it holds cannot be read now."""


class StaleReadError(RetryableError):
    """A node knows nothing new enough, and no leader to ask."""


class RebalanceInProgressError(RetryableError):
    """The members of a group are being assigned partitions."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} is rebalancing; nothing was committed, try again")
        self.group = group


class GroupMovedError(RetryableError):
    """A group has come to this node, or has left it, since a commit was sent. Another node may have
    stored later ones meanwhile: only the consumer can say whether this one is the newest."""

    def __init__(self, group: str, reason: str = "") -> None:
        super().__init__(
            f"group {group!r} is moving between its coordinators: {reason}; commit again"
            if reason
            else f"another node coordinated group {group!r} until now; nothing was committed, try "
            "again"
        )
        self.group = group


class DeadlineError(RetryableError, TimeoutError):
    """The answer did not come in time; the outcome is unknown."""


class NotSentError(DeadlineError):
    """No answer can come: the other side is not there, and the call was not sent to it."""


class SetupError(StoreError):
    """The operator must change a setting, a path or an installation."""


class SettingsError(SetupError, ValueError):
    """A setting is unknown, or its value is out of bounds."""


class NotAStoreError(SetupError):
    """The path does not hold a store."""


class LockedError(SetupError):
    """Another process has this directory open."""


class ReadOnlyError(SetupError):
    """The store was opened for reading."""


class TierSetupError(SetupError):
    """The tier refuses: no such bucket, no permission."""


class PartialWriteError(StoreError):
    """A batch over several shards was written in part: each shard took all of its records or none.

    `locations` has None for every record that was not written, in the order of the batch; `errors`
    says why, by partition (or by topic and partition, for a batch over several topics).
    """

    def __init__(
        self,
        locations: Sequence[Location | None],
        errors: Mapping[int, StoreError] | Mapping[tuple[str, int], StoreError],
    ) -> None:
        failed = sum(1 for location in locations if location is None)
        first = next(iter(errors.values()))
        super().__init__(f"{failed} of {len(locations)} records were not written: {first}")
        self.locations = locations
        self.errors = errors


class ClosedError(StoreError):
    """This object was closed."""


class DiskFailedError(StoreError):
    """The device failed: a log has stopped for good, or a read failed."""

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        consequence: str = "the log takes no more writes, reads go on",
    ) -> None:
        super().__init__(f"{path}: {reason}; {consequence}")
        self.path = path


class CorruptionError(StoreError):
    """Bytes on disk are not what was written; an operator must look."""

    def __init__(self, path: str, *, position: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class TierDamageError(CorruptionError):
    """An object of a tier is damaged: the offsets [first_offset, end_offset) of a shard cannot be
    read from it. What comes before and after them can be."""

    is_missing = False

    def __init__(
        self,
        object_name: str,
        *,
        shard: str,
        first_offset: int,
        end_offset: int,
        position: int,
        reason: str,
    ) -> None:
        super().__init__(object_name, position=position, reason=reason)
        problem = reason if self.is_missing else f"damaged at byte {position}: {reason}"
        text = (
            f"offsets {first_offset} to {end_offset - 1} of {shard!r} cannot be read: "
            f"{object_name}: {problem}. Restore the object, or let `penstock tier repair` say what "
            f"can be restored; reading goes on at offset {end_offset}"
        )
        self.args = (text,)
        self.object_name = object_name
        self.shard = shard
        self.first_offset = first_offset
        self.end_offset = end_offset


class TierObjectMissingError(TierDamageError):
    """An object that the manifest names is not there."""

    is_missing = True
