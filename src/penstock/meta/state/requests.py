"""Answers by request id, so that a retry changes nothing.

A client that lost an answer sends the same request id again and gets the first answer. The answers
of the last `REQUESTS_MAX` successful requests are stored; the oldest is evicted first. A rejection
is not stored: it changed nothing, and a retry is a new request.
"""

from __future__ import annotations

from typing import Final

from penstock.meta.state.answers import Head
from penstock.meta.state.keys import encode_key
from penstock.meta.state.view import Reader, View

REQUESTS_MAX: Final = 10_000

ANSWER_TABLE: Final = 0x02
ORDER_TABLE: Final = 0x03


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
