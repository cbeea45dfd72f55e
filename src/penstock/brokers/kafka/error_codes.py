"""Maps errors of the store to Kafka's error codes."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    BusyError,
    ClosedError,
    CorruptionError,
    DeadlineError,
    DiskFailedError,
    DiskFullError,
    GroupMovedError,
    NotEnoughReplicasError,
    NotLeaderError,
    NotSupportedError,
    ProducerFencedError,
    RecordTooLargeError,
    SequenceGapError,
    ShardLostError,
    ShardSealedError,
    StaleWriteError,
    StoreError,
    UnknownGroupError,
    UnknownShardError,
    UnknownTopicError,
)

_CODES: Final[tuple[tuple[type[StoreError], ErrorCode], ...]] = (
    (UnknownTopicError, ErrorCode.unknown_topic_or_partition),
    (UnknownShardError, ErrorCode.unknown_topic_or_partition),
    (UnknownGroupError, ErrorCode.group_id_not_found),
    (AlreadyExistsError, ErrorCode.topic_already_exists),
    (RecordTooLargeError, ErrorCode.message_too_large),
    (ShardSealedError, ErrorCode.not_leader_or_follower),
    (ShardLostError, ErrorCode.kafka_storage_error),
    (ProducerFencedError, ErrorCode.invalid_producer_epoch),
    (SequenceGapError, ErrorCode.out_of_order_sequence_number),
    (NotSupportedError, ErrorCode.invalid_request),
    (StaleWriteError, ErrorCode.invalid_request),
    (GroupMovedError, ErrorCode.coordinator_load_in_progress),
    (NotLeaderError, ErrorCode.not_leader_or_follower),
    (NotEnoughReplicasError, ErrorCode.not_enough_replicas),
    (BusyError, ErrorCode.leader_not_available),
    (DiskFullError, ErrorCode.kafka_storage_error),
    (DeadlineError, ErrorCode.request_timed_out),
    (DiskFailedError, ErrorCode.kafka_storage_error),
    (CorruptionError, ErrorCode.kafka_storage_error),
    (ClosedError, ErrorCode.not_leader_or_follower),
    (BadRequestError, ErrorCode.invalid_request),
)


def code_of(error: StoreError) -> ErrorCode:
    """Return the code that makes a Kafka client react to `error` as it should."""
    if isinstance(error, NotEnoughReplicasError) and error.is_appended:
        return ErrorCode.not_enough_replicas_after_append
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.unknown_server_error
