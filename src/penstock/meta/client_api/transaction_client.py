"""`TransactionClient`: the coordinators of transactions, over the logs of the offset groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable
from zlib import crc32

from penstock.meta.client_api.offset_client import OffsetGroup
from penstock.meta.client_api.proposer import Proposer
from penstock.meta.rejections import encode_checked, error_of
from penstock.meta.state.answers import Rejected
from penstock.meta.state.keys import encode_key
from penstock.meta.state.offsets import commands as cmd
from penstock.meta.state.transactions import commands as txn
from penstock.meta.state.transactions.rows import read_transaction, scan_aborted, scan_transactions
from penstock.platform.clock import Clock


@runtime_checkable
class TransactionClient(Protocol):
    """What a coordinator needs to keep. As with `MetaClient`: synchronous, from any thread, and
    what was changed is on the device when the call returns."""

    def change_transaction(self, command: txn.TransactionCommand) -> txn.TransactionState | None:
        """Apply a command and return the state that it leads to. Raises
        `TransactionRefusedError`."""
        ...

    def find_transaction(
        self, namespace: str, transactional_id: str
    ) -> txn.TransactionState | None: ...

    def list_transactions(self) -> list[txn.TransactionState]: ...

    def list_aborted(self) -> list[txn.AbortedRange]: ...


class LogTransactionClient(Proposer):
    """See `TransactionClient`."""

    def __init__(self, groups: Sequence[OffsetGroup], *, node_id: int, clock: Clock) -> None:
        Proposer.__init__(self, node_id=node_id, clock=clock)
        self._transaction_groups: Final = tuple(groups)

    def change_transaction(self, command: txn.TransactionCommand) -> txn.TransactionState | None:
        groups = self._transaction_groups
        if isinstance(command, txn.ForgetTransactions | txn.ForgetAborted):
            homes = groups  # what is not in a group is not forgotten there
        else:
            homes = (self._home_of(command.namespace, command.transactional_id),)
        now_ms, request_id = self._clock.now_ms(), self._request_id()
        request = cmd.OffsetRequest(now_ms, command, request_id)
        state = None
        for home in homes:
            answer = home.propose(encode_checked(request))
            if isinstance(answer, Rejected):
                raise error_of(answer)
            assert isinstance(answer.result, txn.TransactionResult), "the answer to such a command"
            state = answer.result.state
        return state

    def _home_of(self, namespace: str, transactional_id: str) -> OffsetGroup:
        groups = self._transaction_groups
        return groups[crc32(encode_key(0, namespace, transactional_id)) % len(groups)]

    def find_transaction(
        self, namespace: str, transactional_id: str
    ) -> txn.TransactionState | None:
        home = self._home_of(namespace, transactional_id)
        return read_transaction(home.reader, namespace, transactional_id)

    def list_transactions(self) -> list[txn.TransactionState]:
        return [
            state for home in self._transaction_groups for state in scan_transactions(home.reader)
        ]

    def list_aborted(self) -> list[txn.AbortedRange]:
        return [
            aborted for home in self._transaction_groups for aborted in scan_aborted(home.reader)
        ]
