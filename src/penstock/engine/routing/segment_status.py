"""The life of a segment, and what each of its states allows.

    write ──▶ pre-seal ──▶ sealed ──▶ pre-delete ──▶ deleting ──▶ forgotten
                                              (unavailable: aside, from anywhere and back)

A table and nothing else: which state may follow which is decided by the metadata's state machine
(`meta.state.vocabulary.SEGMENT_STEPS`), what a request may do in one is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class SegmentStatus(Enum):
    WRITE = "write"  # the active segment of its shard
    PRE_SEAL = "pre-seal"  # about to end: what is under way finishes, new writes wait
    SEALED = "sealed"  # ended; its offsets are read for as long as they are kept
    PRE_DELETE = "pre-delete"  # its records are no longer served
    DELETING = "deleting"  # its bytes are going
    UNAVAILABLE = "unavailable"  # its bytes cannot be reached now


class Answer(Enum):
    """How a segment answers a request."""

    YES = "yes"
    LATER = "later"  # `BusyError`: the same request may succeed soon
    NO = "no"


class Allowed(NamedTuple):
    write: Answer
    read: Answer
    """NO: its offsets lie before the earliest one; a read begins after them."""
    delete: Answer
    """Whether records in it may be deleted one by one."""


ALLOWED: Final[Mapping[SegmentStatus, Allowed]] = MappingProxyType(
    {
        SegmentStatus.WRITE: Allowed(Answer.YES, Answer.YES, Answer.YES),
        SegmentStatus.PRE_SEAL: Allowed(Answer.LATER, Answer.YES, Answer.YES),
        SegmentStatus.SEALED: Allowed(Answer.NO, Answer.YES, Answer.YES),
        SegmentStatus.PRE_DELETE: Allowed(Answer.NO, Answer.NO, Answer.NO),
        SegmentStatus.DELETING: Allowed(Answer.NO, Answer.NO, Answer.NO),
        SegmentStatus.UNAVAILABLE: Allowed(Answer.LATER, Answer.LATER, Answer.LATER),
    }
)


def allowed(status: str) -> Allowed:
    """Return what a segment allows by the word the metadata has for its state; a word that a newer
    node wrote allows nothing for now."""
    try:
        return ALLOWED[SegmentStatus(status)]
    except ValueError:
        return ALLOWED[SegmentStatus.UNAVAILABLE]
