"""Reads the transactions of a node from its directory, without a lock, while the node runs.

The rows in the database may be older than the log, so the entries after the applied index are
applied here once more, in memory. In a cluster an entry at the end of the log may not be committed
yet, which is harmless: a transaction that is taken for begun only delays readers until they read
again, and one is finished only when its markers are in the log of its records already.

To learn which records of a shard are committed, read the end of the shard first, and the
transactions after that: every transaction with records before that end is then known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import MsgspecError, Struct
from rocksdict import AccessType, Options, Rdict

from penstock.errors import SetupError
from penstock.meta.state.keys import encode_key
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

_TABLES: Final = (encode_key(TRANSACTIONS_TABLE), encode_key(ABORTED_TABLE))
_GROUPS_MAX: Final = 1 << 16
_TRIES: Final = 3
"""The node may replace a file between the moment it is listed and the moment it is opened."""


class KnownTransactions(Struct, frozen=True):
    open: tuple[TransactionState, ...] = ()
    """Transactions whose outcome readers do not know yet."""
    aborted: tuple[AbortedRange, ...] = ()
    is_used: bool = False
    """Whether any transaction is known, ended ones included."""


def read_transactions(path: str) -> KnownTransactions:
    """Return what the metadata in `path` knows; raise `SetupError` when it cannot be read."""
    reason = ""
    for _ in range(_TRIES):
        try:
            return _read(path)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            reason = str(error)
    raise SetupError(f"the transactions in {path} cannot be read: {reason}")


def _read(path: str) -> KnownTransactions:
    families = {name: Options(raw_mode=True) for name in fmt.FAMILIES}
    database = Rdict(path, Options(raw_mode=True), families, AccessType.read_only(False))
    try:
        states: list[TransactionState] = []
        aborted: list[AbortedRange] = []
        rows, log = (
            database.get_column_family(each) for each in (fmt.OFFSET_STATE, fmt.OFFSET_LOG)
        )
        for group in _groups(log):
            view = MemoryView()
            applied = _load(rows, group, view)
            for command, time_ms in _commands_behind(log, group, applied):
                change_transaction(view, command, time_ms)
            states += scan_transactions(view)
            aborted += scan_aborted(view)
        is_open = tuple(one for one in states if _is_open(one))
        return KnownTransactions(is_open, tuple(aborted), bool(states))
    finally:
        database.close()


def _is_open(state: TransactionState) -> bool:
    return state.status != "empty" and not state.status.startswith("complete")


def _groups(log: Rdict) -> Iterator[int]:
    """Yield the numbers of the groups whose logs are here."""
    group = 0
    while group < _GROUPS_MAX:
        found = log.iter()
        found.seek(group.to_bytes(2, "big"))
        if not found.valid():
            return
        group = int.from_bytes(found.key()[:2], "big")
        yield group
        group += 1


def _load(rows: Rdict, group: int, view: MemoryView) -> int:
    """Fill a view with the rows that are written; return up to which entry they are applied."""
    row = rows.get(fmt.applied_key(group))
    if row is None:
        return 0
    applied, _, generation = fmt.APPLIED.unpack_from(row)
    for table in _TABLES:
        prefix = fmt.state_prefix(group, generation)
        found = rows.iter()
        found.seek(prefix + table)
        while found.valid() and found.key().startswith(prefix + table):
            view.put(found.key()[len(prefix) :], found.value())
            found.next()
    return int(applied)


def _commands_behind(
    log: Rdict, group: int, applied: int
) -> Iterator[tuple[TransactionCommand, int]]:
    """Yield the commands of transactions after an entry of the log, and their times."""
    first = fmt.entry_key(group, applied + 1)
    found = log.iter()
    found.seek(first)
    while found.valid() and found.key().startswith(first[:-8]):
        entry = fmt.decode_entry(fmt.entry_index(found.key()), found.value())
        found.next()
        if entry.kind != fmt.ENTRY_NORMAL or not entry.data:
            continue
        try:
            request = decode_request(entry.data)
        except MsgspecError:
            continue  # another kind of request
        if isinstance(request.command, TransactionCommand):
            yield request.command, request.time_ms
