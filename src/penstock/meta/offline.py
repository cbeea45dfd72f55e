"""Reads a node's topics and transactions from its directory, without a lock, while the node runs.

The interface for readers of a node's files; other packages import from here. Nothing is changed.

Topics are those that the node had written at this moment. Of transactions the rows in the database
may be older than the log, so the entries after the applied index are applied here once more, in
memory. In a cluster an entry at the end of the log may not be committed yet, which is harmless: a
transaction that counts as begun only delays readers until they read again, and one is finished only
when its markers are in the log of its records already.

To learn which records of a shard are committed, read the end of the shard first, and the
transactions after that: every transaction with records before that end is then known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from msgspec import MsgspecError, Struct
from rocksdict import AccessType, Options, Rdict

from penstock.errors import SetupError
from penstock.meta.state.keys import encode_key
from penstock.meta.state.metadata.rows import list_topics
from penstock.meta.state.model import Topic
from penstock.meta.state.offsets.machine import decode_request
from penstock.meta.state.transactions.commands import (
    AbortedRange,
    TransactionCommand,
    TransactionState,
)
from penstock.meta.state.transactions.machine import change_transaction
from penstock.meta.state.transactions.rows import (
    ABORTED_TABLE,
    TRANSACTIONS_TABLE,
    scan_aborted,
    scan_transactions,
)
from penstock.meta.state.view import MemoryView
from penstock.meta.storage import log_format as fmt

T = TypeVar("T")

_METADATA_GROUP: Final = 0
_TRANSACTION_TABLES: Final = (encode_key(TRANSACTIONS_TABLE), encode_key(ABORTED_TABLE))
_GROUPS_MAX: Final = 1 << 16
_TRIES: Final = 3
"""The node may replace a file between the moment it is listed and the moment it is opened."""


class KnownTransactions(Struct, frozen=True):
    open: tuple[TransactionState, ...] = ()
    """Transactions whose outcome readers do not know yet."""
    aborted: tuple[AbortedRange, ...] = ()
    is_used: bool = False
    """Whether any transaction is known, ended ones included."""


def read_topics(path: str) -> list[Topic]:
    """Return the topics that the metadata in `path` knows; raise `SetupError` when it cannot be
    read."""
    return _read(path, "metadata", _topics)


def read_transactions(path: str) -> KnownTransactions:
    """Return what the metadata in `path` knows; raise `SetupError` when it cannot be read."""
    return _read(path, "transactions", _transactions)


def _read(path: str, subject: str, read: Callable[[Rdict], T]) -> T:
    reason = ""
    for _ in range(_TRIES):
        try:
            families = {name: Options(raw_mode=True) for name in fmt.FAMILIES}
            database = Rdict(path, Options(raw_mode=True), families, AccessType.read_only(False))
            try:
                return read(database)
            finally:
                database.close()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            reason = str(error)
    raise SetupError(f"the {subject} in {path} cannot be read: {reason}")


def _topics(database: Rdict) -> list[Topic]:
    view = MemoryView()
    _load(database.get_column_family(fmt.META_STATE), _METADATA_GROUP, (b"",), view)
    return list(list_topics(view, None))


def _transactions(database: Rdict) -> KnownTransactions:
    states: list[TransactionState] = []
    aborted: list[AbortedRange] = []
    rows = database.get_column_family(fmt.OFFSET_STATE)
    log = database.get_column_family(fmt.OFFSET_LOG)
    for group in _groups(log):
        view = MemoryView()
        applied = _load(rows, group, _TRANSACTION_TABLES, view)
        for command, time_ms in _commands_after(log, group, applied):
            change_transaction(view, command, time_ms)
        states += scan_transactions(view)
        aborted += scan_aborted(view)
    is_open = tuple(state for state in states if _is_open(state))
    return KnownTransactions(is_open, tuple(aborted), bool(states))


def _is_open(state: TransactionState) -> bool:
    return state.status != "empty" and not state.status.startswith("complete")


def _groups(log: Rdict) -> Iterator[int]:
    """Yield the numbers of the groups whose logs are here."""
    group = 0
    while group < _GROUPS_MAX:
        entries = log.iter()
        entries.seek(group.to_bytes(2, "big"))
        if not entries.valid():
            return
        group = int.from_bytes(entries.key()[:2], "big")
        yield group
        group += 1


def _load(rows: Rdict, group: int, tables: tuple[bytes, ...], view: MemoryView) -> int:
    """Fill a view with the rows of tables; return up to which entry they are applied."""
    row = rows.get(fmt.applied_key(group))
    if row is None:
        return 0
    applied, _, generation = fmt.APPLIED.unpack_from(row)
    prefix = fmt.state_prefix(group, generation)
    for table in tables:
        cursor = rows.iter()
        cursor.seek(prefix + table)
        while cursor.valid() and cursor.key().startswith(prefix + table):
            view.put(cursor.key()[len(prefix) :], cursor.value())
            cursor.next()
    return int(applied)


def _commands_after(
    log: Rdict, group: int, applied: int
) -> Iterator[tuple[TransactionCommand, int]]:
    """Yield the commands of transactions after an entry of the log, and their times."""
    first = fmt.entry_key(group, applied + 1)
    cursor = log.iter()
    cursor.seek(first)
    while cursor.valid() and cursor.key().startswith(first[:-8]):
        entry = fmt.decode_entry(fmt.entry_index(cursor.key()), cursor.value())
        cursor.next()
        if entry.kind != fmt.ENTRY_NORMAL or not entry.data:
            continue
        try:
            request = decode_request(entry.data)
        except MsgspecError:
            continue  # another kind of request
        if isinstance(request.command, TransactionCommand):
            yield request.command, request.time_ms
