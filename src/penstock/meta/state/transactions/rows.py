"""The tables of the transaction coordinators.

0x22 transactions   namespace, transactional id            → state
0x23 aborted        shard, first offset, producer id       → range
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.msgpack import Decoder, Encoder

from penstock.meta.state.keys import after_prefix, encode_key
from penstock.meta.state.transactions.commands import AbortedRange, TransactionState
from penstock.meta.state.view import Reader, View

TRANSACTIONS_TABLE: Final = 0x22
ABORTED_TABLE: Final = 0x23

_encoder: Final = Encoder()
_states: Final = Decoder(TransactionState)
_ranges: Final = Decoder(AbortedRange)


def read_transaction(
    view: Reader, namespace: str, transactional_id: str
) -> TransactionState | None:
    row = view.get(encode_key(TRANSACTIONS_TABLE, namespace, transactional_id))
    return None if row is None else _states.decode(row)


def write_transaction(view: View, state: TransactionState) -> None:
    key = encode_key(TRANSACTIONS_TABLE, state.namespace, state.transactional_id)
    view.put(key, _encoder.encode(state))


def delete_transaction(view: View, namespace: str, transactional_id: str) -> None:
    view.delete(encode_key(TRANSACTIONS_TABLE, namespace, transactional_id))


def scan_transactions(view: Reader) -> Iterator[TransactionState]:
    prefix = encode_key(TRANSACTIONS_TABLE)
    for _, row in view.scan(prefix, after_prefix(prefix)):
        yield _states.decode(row)


def write_aborted(view: View, aborted: AbortedRange) -> None:
    view.put(_aborted_key(aborted), _encoder.encode(aborted))


def delete_aborted(view: View, aborted: AbortedRange) -> None:
    view.delete(_aborted_key(aborted))


def scan_aborted(view: Reader) -> Iterator[AbortedRange]:
    prefix = encode_key(ABORTED_TABLE)
    for _, row in view.scan(prefix, after_prefix(prefix)):
        yield _ranges.decode(row)


def _aborted_key(aborted: AbortedRange) -> bytes:
    return encode_key(ABORTED_TABLE, aborted.shard, aborted.first_offset, aborted.producer_id)
