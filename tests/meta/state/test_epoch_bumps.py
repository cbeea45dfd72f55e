"""The end of a transaction that gives its producer the next epoch, or the next id."""

from __future__ import annotations

import pytest

from penstock.meta.state.answers import Rejected
from penstock.meta.state.transactions.commands import (
    EPOCH_MAX,
    Decide,
    Enlist,
    Finish,
    TransactionCommand,
    TransactionPartition,
    TransactionState,
)
from penstock.meta.state.transactions.machine import change_transaction
from penstock.meta.state.transactions.rows import write_transaction
from penstock.meta.state.view import MemoryView

KEY = ("default", "t")
OLD, NEW = 7, 8


def at_epoch(epoch: int) -> MemoryView:
    view = MemoryView()
    state = TransactionState(
        namespace="default", transactional_id="t", producer_id=OLD, epoch=epoch, timeout_ms=1
    )
    write_transaction(view, state)
    return view


def change(view: MemoryView, command: TransactionCommand) -> TransactionState:
    changed = change_transaction(view, command, 1_000)
    assert not isinstance(changed, Rejected), changed
    assert changed.state is not None
    return changed.state


def begin(view: MemoryView, producer_id: int, epoch: int) -> TransactionState:
    return change(view, Enlist(*KEY, producer_id, epoch, (TransactionPartition("orders_0", 3),)))


@pytest.mark.parametrize("commit", [True, False])
def test_after_the_last_epoch_the_producer_goes_on_with_another_id(commit: bool) -> None:
    view = at_epoch(EPOCH_MAX)
    begin(view, OLD, EPOCH_MAX)
    end = Decide(*KEY, OLD, EPOCH_MAX, commit, bumps=True, new_producer_id=NEW)
    decided = change(view, end)
    # The markers have the old id, and an epoch that fences what comes late.
    assert (decided.producer_id, decided.epoch) == (OLD, EPOCH_MAX + 1)
    assert decided.next_producer == (NEW, 0)
    assert change(view, end) == decided, "asked again"
    finished = change(view, Finish(*KEY, OLD, EPOCH_MAX + 1))
    assert (finished.producer_id, finished.epoch) == (NEW, 0)
    assert change(view, end).next_producer == (NEW, 0), "asked again"
    begin(view, NEW, 0)
    refused = change_transaction(view, end, 1_000)
    assert isinstance(refused, Rejected)
    assert refused.code == "unknown_transaction", "the next transaction has begun"


def test_an_abort_without_records_may_use_up_the_epochs() -> None:
    view = at_epoch(EPOCH_MAX)
    end = Decide(*KEY, OLD, EPOCH_MAX, False, bumps=True, new_producer_id=NEW)
    ended = change(view, end)
    assert (ended.producer_id, ended.epoch, ended.status) == (NEW, 0, "complete-abort")
    assert change(view, end) == ended, "asked again"
    without = Decide(*KEY, NEW, 0, False, bumps=True)
    assert change(view, without).epoch == 1


def test_no_epoch_is_left_without_another_id() -> None:
    view = at_epoch(EPOCH_MAX)
    begin(view, OLD, EPOCH_MAX)
    refused = change_transaction(view, Decide(*KEY, OLD, EPOCH_MAX, True, bumps=True), 1_000)
    assert isinstance(refused, Rejected)
    assert refused.code == "fenced"


def test_a_timeout_lets_the_producer_abort_and_go_on_but_not_commit() -> None:
    view = at_epoch(3)
    begin(view, OLD, 3)
    change(view, Decide(*KEY, OLD, 3, False, fence=True))
    change(view, Finish(*KEY, OLD, 4))
    refused = change_transaction(view, Decide(*KEY, OLD, 3, True, bumps=True), 1_000)
    assert isinstance(refused, Rejected)
    assert refused.code == "fenced"
    assert change(view, Decide(*KEY, OLD, 3, False, bumps=True)).next_producer == (OLD, 4)
