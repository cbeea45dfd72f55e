"""The transaction coordinators as a pure function over rows.

                 enlist               decide                   finish
    empty ────────────────▶ ongoing ─────────▶ prepare-commit ────────▶ complete-commit ─┐
      ▲                        ▲    └────────▶ prepare-abort  ────────▶ complete-abort  ─┤
      begin-producer           └────────────────────── enlist ───────────────────────────┘

Invariants:

  * the outcome of a transaction never changes once it is decided
  * the epoch of a transactional id only grows, under one producer id; a producer with an older one
    is fenced and can neither write nor decide
  * a producer whose decision bumped its epoch may ask for the same outcome again, until its next
    transaction begins
  * a caller that names a transaction by its beginning can neither decide nor finish another one
  * a decided transaction keeps its shards and offsets until it is finished, so that another
    coordinator can complete it after a crash
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from penstock.meta.state.answers import Rejected
from penstock.meta.state.offsets.entries import NewOffset
from penstock.meta.state.transactions.commands import (
    EPOCH_MAX,
    OFFSETS_MAX,
    PARTITIONS_MAX,
    BeginProducer,
    Decide,
    Enlist,
    Finish,
    ForgetAborted,
    ForgetTransactions,
    StagedOffsets,
    StageOffsets,
    TransactionCommand,
    TransactionResult,
    TransactionState,
)
from penstock.meta.state.transactions.rows import (
    delete_aborted,
    delete_transaction,
    read_transaction,
    write_aborted,
    write_transaction,
)
from penstock.meta.state.view import View

_DECIDED = frozenset({"prepare-commit", "prepare-abort"})
_AT_REST = frozenset({"empty", "complete-commit", "complete-abort"})


def change_transaction(
    view: View, command: TransactionCommand, time_ms: int
) -> TransactionResult | Rejected:
    match command:
        case BeginProducer():
            changed = _begin_producer(view, command)
        case Enlist() | StageOffsets() | Decide() | Finish():
            state = _find(view, command)
            changed = state if isinstance(state, Rejected) else _step(view, state, command, time_ms)
        case ForgetAborted():
            for aborted in command.ranges:
                delete_aborted(view, aborted)
            return TransactionResult()
        case ForgetTransactions():
            _remove_idle(view, command)
            return TransactionResult()
        case _:
            assert_never(command)
    if isinstance(changed, Rejected):
        return changed
    changed = replace(changed, updated_ms=max(changed.updated_ms, time_ms))
    write_transaction(view, changed)
    return TransactionResult(changed)


def _step(
    view: View,
    state: TransactionState,
    command: Enlist | StageOffsets | Decide | Finish,
    time_ms: int,
) -> TransactionState | Rejected:
    match command:
        case Enlist():
            return _enlist(state, command, time_ms)
        case StageOffsets():
            return _stage(state, command)
        case Decide():
            return _other_one(state, command) or _decide(state, command)
        case Finish():
            return _other_one(state, command) or _finish(view, state, command)
        case _:
            assert_never(command)


def _other_one(state: TransactionState, command: Decide | Finish) -> Rejected | None:
    if command.started_ms in {0, state.started_ms}:
        return None
    return Rejected("bad_state", f"the transaction of {command.started_ms} is over")


def _find(
    view: View, command: Enlist | StageOffsets | Decide | Finish
) -> TransactionState | Rejected:
    """Return the state if the producer that asks is the current one."""
    state = read_transaction(view, command.namespace, command.transactional_id)
    if state is not None and _is_repeated(state, command):
        return state
    if state is None or state.producer_id != command.producer_id:
        return Rejected(
            "unknown_transaction",
            f"producer {command.producer_id} does not have {command.transactional_id!r}",
        )
    if command.epoch != state.epoch:
        return Rejected("fenced", f"epoch {command.epoch} is not the current {state.epoch}")
    return state


def _is_repeated(state: TransactionState, command: Enlist | StageOffsets | Decide | Finish) -> bool:
    """Say whether the answer of a decision that bumped the epoch was lost."""
    return (
        isinstance(command, Decide)
        and command.bumps
        and state.was_ended_by(command.producer_id, command.epoch, commit=command.commit)
    )


def _begin_producer(view: View, command: BeginProducer) -> TransactionState | Rejected:
    state = read_transaction(view, command.namespace, command.transactional_id)
    if state is None:
        return TransactionState(
            namespace=command.namespace,
            transactional_id=command.transactional_id,
            producer_id=command.new_producer_id,
            epoch=0,
            timeout_ms=command.timeout_ms,
        )
    if state.status not in _AT_REST:
        return _in_progress(state)
    if command.expected_epoch >= 0:
        is_ours = command.expected_id == state.producer_id
        if is_ours and command.expected_epoch == state.previous_epoch:
            # This epoch was left already: by this very request, sent again, or by a timeout.
            return replace(state, timeout_ms=command.timeout_ms)
        if not is_ours or command.expected_epoch != state.epoch:
            return Rejected("fenced", f"epoch {command.expected_epoch} is not {state.epoch}")
    if state.epoch >= EPOCH_MAX:
        return replace(
            state,
            producer_id=command.new_producer_id,
            epoch=0,
            previous_epoch=-1,
            timeout_ms=command.timeout_ms,
            status="empty",
        )
    return replace(
        state,
        epoch=state.epoch + 1,
        previous_epoch=command.expected_epoch,
        timeout_ms=command.timeout_ms,
        status="empty",
    )


def _enlist(state: TransactionState, command: Enlist, time_ms: int) -> TransactionState | Rejected:
    if state.status in _DECIDED:
        return _in_progress(state)
    if state.status in _AT_REST:
        # Greater than that of the last one, whatever the clock says.
        started_ms = max(time_ms, state.started_ms + 1)
        state = replace(
            state,
            status="ongoing",
            started_ms=started_ms,
            previous_epoch=-1,
            previous_producer_id=-1,
        )
    partitions = {item.shard: item for item in state.partitions}
    for item in command.partitions:
        partitions.setdefault(item.shard, item)
    if len(partitions) > PARTITIONS_MAX:
        return Rejected("bad_request", f"a transaction writes to at most {PARTITIONS_MAX} shards")
    groups = {item.group: item for item in state.offsets}
    for group in command.groups:
        groups.setdefault(group, StagedOffsets(group))
    return replace(state, partitions=tuple(partitions.values()), offsets=tuple(groups.values()))


def _stage(state: TransactionState, command: StageOffsets) -> TransactionState | Rejected:
    if state.status in _DECIDED:
        return _in_progress(state)
    groups = {item.group: item for item in state.offsets}
    if state.status != "ongoing" or command.group not in groups:
        return Rejected("bad_state", f"group {command.group!r} is not part of the transaction")
    staged: dict[str, NewOffset] = {item.shard: item for item in groups[command.group].offsets}
    staged.update((item.shard, item) for item in command.offsets)
    if len(staged) > OFFSETS_MAX:
        return Rejected("bad_request", f"a transaction commits at most {OFFSETS_MAX} offsets")
    groups[command.group] = StagedOffsets(command.group, tuple(staged.values()))
    return replace(state, offsets=tuple(groups.values()))


def _decide(state: TransactionState, command: Decide) -> TransactionState | Rejected:
    if _is_repeated(state, command):
        return state
    outcome = "commit" if command.commit else "abort"
    if command.bumps and state.status in _AT_REST and not command.commit:
        # Nothing was written: an error came before the first record.
        return _bump(replace(state, status="complete-abort"), command, is_over=True)
    if state.status == f"complete-{outcome}":
        return state  # asked again: the answer was lost
    if state.status == f"prepare-{outcome}":
        return _in_progress(state)
    if state.status != "ongoing":
        return Rejected("bad_state", f"the transaction is {state.status} and cannot {outcome}")
    decided = replace(state, status="prepare-commit" if command.commit else "prepare-abort")
    if command.bumps:
        return _bump(decided, command, is_over=False)
    if command.fence:
        return replace(decided, epoch=state.epoch + 1, previous_epoch=state.epoch)
    return decided


def _bump(
    state: TransactionState, command: Decide, *, is_over: bool
) -> TransactionState | Rejected:
    """Give a producer its next epoch; after the last one another id, once no marker with the old
    one is left to write."""
    if state.epoch > EPOCH_MAX or (state.epoch == EPOCH_MAX and command.new_producer_id < 0):
        return Rejected("fenced", f"no epoch is left after {state.epoch}")
    bumped = replace(state, epoch=state.epoch + 1, previous_epoch=state.epoch)
    if state.epoch < EPOCH_MAX:
        return bumped
    bumped = replace(bumped, next_producer_id=command.new_producer_id)
    return _renamed(bumped) if is_over else bumped


def _renamed(state: TransactionState) -> TransactionState:
    if state.next_producer_id < 0:
        return state
    return replace(
        state,
        producer_id=state.next_producer_id,
        epoch=0,
        previous_epoch=-1,
        next_producer_id=-1,
        previous_producer_id=state.producer_id,
    )


def _finish(view: View, state: TransactionState, command: Finish) -> TransactionState | Rejected:
    if state.status in {"complete-commit", "complete-abort"}:
        return state
    if state.status not in _DECIDED:
        return Rejected("bad_state", f"a transaction that is {state.status} cannot be finished")
    for aborted in command.aborted:
        write_aborted(view, aborted)
    is_commit = state.status == "prepare-commit"
    finished = replace(
        state,
        status="complete-commit" if is_commit else "complete-abort",
        partitions=(),
        offsets=(),
    )
    return _renamed(finished)


def _remove_idle(view: View, command: ForgetTransactions) -> None:
    for transactional_id in command.transactional_ids:
        state = read_transaction(view, command.namespace, transactional_id)
        if state is not None and state.status in _AT_REST and state.updated_ms < command.before_ms:
            delete_transaction(view, command.namespace, transactional_id)


def _in_progress(state: TransactionState) -> Rejected:
    return Rejected("in_progress", f"the transaction is {state.status}; try again soon")
