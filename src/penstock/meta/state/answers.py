"""What both state machines answer with, and the rows at their head.

A rejection is a value: it is what every replica answers to the same command, and it changes
nothing. The head row counts revisions, events, requests and the numbers handed out, so that one
read and one write per command keep all of them.

A client that lost an answer sends the same request id again and gets the first answer. The answers
of the last `REQUESTS_MAX` successful requests are stored; the oldest is evicted first. A rejection
is not stored: it changed nothing, and a retry is a new request.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from penstock.meta.state.keys import encode_key
from penstock.meta.state.view import Reader, View
from penstock.platform.layout import Field, Layout

HEAD_TABLE: Final = 0x01
ANSWER_TABLE: Final = 0x02
ORDER_TABLE: Final = 0x03

REQUESTS_MAX: Final = 10_000

HEAD: Final = Layout(
    "head row of a state machine",
    Field("revision", "u64", "commands applied with success"),
    Field("counter", "u64", "last number handed out: producer id (metadata), epoch (offset)"),
    Field("requests", "u64", "requests remembered since the beginning"),
    Field("events", "u64", "event rows held"),
    Field("horizon", "u64", "events of revisions above this one are all held"),
    size=40,
)

_HEAD_KEY: Final = encode_key(HEAD_TABLE)

RejectCode = Literal[
    "bad_request",
    "exists",
    "unknown_topic",
    "unknown_shard",
    "unknown_group",
    "unknown_node",
    "stale",
    "held",
    "fenced",
    "unknown_transaction",
    "in_progress",
    "bad_state",
]


class Rejected(Struct, frozen=True, tag="rejected"):
    code: RejectCode
    reason: str
    subject: str = ""
    """The topic, shard or group that is meant, for a typed error."""


class Head(Struct):
    """The counters; see `HEAD` for their meaning."""

    revision: int = 0
    counter: int = 0
    requests: int = 0
    events: int = 0
    horizon: int = 0


def read_head(view: Reader) -> Head:
    row = view.get(_HEAD_KEY)
    return Head() if row is None else Head(*HEAD.unpack(row))


def write_head(view: View, head: Head) -> None:
    row = HEAD.pack(head.revision, head.counter, head.requests, head.events, head.horizon)
    view.put(_HEAD_KEY, row)


def find_answer(view: Reader, request_id: str) -> bytes | None:
    """Return the encoded answer that this request got, or None."""
    return view.get(encode_key(ANSWER_TABLE, request_id)) if request_id else None


def store_answer(view: View, head: Head, request_id: str, answer: bytes) -> None:
    if not request_id:
        return
    view.put(encode_key(ANSWER_TABLE, request_id), answer)
    view.put(encode_key(ORDER_TABLE, head.requests), request_id.encode())
    if head.requests >= REQUESTS_MAX:
        oldest = encode_key(ORDER_TABLE, head.requests - REQUESTS_MAX)
        evicted = view.get(oldest)
        assert evicted is not None, "the oldest request is stored until here"
        view.delete(encode_key(ANSWER_TABLE, evicted.decode()))
        view.delete(oldest)
    head.requests += 1
