"""From the values that the state machines answer with to the errors that callers catch."""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Encoder

from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    StaleWriteError,
    StoreError,
    TransactionRefusedError,
    UnknownGroupError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.meta.state.answers import Rejected
from penstock.meta.state.model import INT_MAX

_encoder = Encoder()


def error_of(rejected: Rejected) -> StoreError:
    match rejected.code:
        case "exists":
            return AlreadyExistsError(rejected.reason)
        case "unknown_topic":
            return UnknownTopicError(rejected.subject)
        case "unknown_shard":
            return UnknownShardError(rejected.subject)
        case "unknown_group":
            return UnknownGroupError(rejected.subject)
        case "stale" | "held":
            return StaleWriteError(rejected.reason)
        case "fenced" | "unknown_transaction" | "in_progress" | "bad_state":
            return TransactionRefusedError(rejected.code, rejected.reason)
        case "bad_request" | "unknown_node":
            return BadRequestError(rejected.reason)


def encode_checked(request: Struct) -> bytes:
    """Encode a request; what no log can hold (half a surrogate pair, a number of more than 64
    bits, an object of another kind) is the caller's mistake."""
    try:
        return _encoder.encode(request)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise BadRequestError(f"cannot be stored: {error}") from error


def check_text(subject: str, text: object) -> str:
    """Return `text` if a row can be found by it; else raise `BadRequestError`."""
    if not isinstance(text, str) or not text:
        raise BadRequestError(f"{subject} must be a text of at least one character, not {text!r}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"{subject} {text!r} is not Unicode: {error.reason}") from error
    return text


def check_partition(partition: object) -> int:
    """Return `partition` if a row can be found by it; else raise `BadRequestError`."""
    if not isinstance(partition, int) or not 0 <= partition <= INT_MAX:
        raise BadRequestError(f"{partition!r} is not a partition number")
    return partition
