"""A dispatcher is told of shards that moved: of all of them, and of no others."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import cast

import pytest
from tests.engine.segment.rig import EVENTS, LOGS, ORDERS, QUIET, Rig, create, everything, fill

from penstock.codec.select import Appender
from penstock.engine.segment.dispatch import worker as dispatch_worker
from penstock.engine.segment.dispatch.changed_shards import ChangedShards, changed_indexes
from penstock.record import QueueKind, ShardId, StoredRecord


def moves_of(rig: Rig, kind: QueueKind | None = None) -> ChangedShards:
    parts = rig.store._parts
    return ChangedShards(parts.table, parts.log.appender, kind)


@pytest.mark.parametrize("seed", range(20))
def test_changed_places_are_those_that_differ(seed: int) -> None:
    dice = random.Random(seed)
    before = [dice.randrange(-5, 5) for _ in range(dice.randrange(300))]
    now = [number if dice.random() < 0.95 else number + 1 for number in before]
    now += [0] * dice.randrange(200)
    tables = [
        b"".join(n.to_bytes(8, sys.byteorder, signed=True) for n in each) for each in (before, now)
    ]
    expected = [at for at, n in enumerate(now) if at >= len(before) or n != before[at]]
    assert list(changed_indexes(*tables)) == expected


def test_only_shards_that_moved_are_named() -> None:
    rig = Rig(QUIET)
    for shard in (ORDERS, EVENTS, LOGS):
        create(rig.store, shard)
        fill(rig.store, shard, 3)
    changes = moves_of(rig)
    assert sorted(changes.changed(())) == [(EVENTS, 0, 3), (LOGS, 0, 3), (ORDERS, 0, 3)]
    assert changes.changed(()) == []
    fill(rig.store, EVENTS, 2)
    assert changes.changed(()) == [(EVENTS, 0, 5)]
    rig.store.delete_before(LOGS, 2)
    assert changes.changed({LOGS}) == [(LOGS, 2, 3)]
    rig.store.delete_shard(LOGS)
    assert changes.changed({LOGS}) == []


def test_shards_of_another_kind_are_not_named() -> None:
    rig = Rig(QUIET)
    create(rig.store, ORDERS, kind=QueueKind.BATCH)
    create(rig.store, EVENTS)
    changes = moves_of(rig, QueueKind.BATCH)
    fill(rig.store, ORDERS, 1)
    fill(rig.store, EVENTS, 1)
    assert [shard for shard, _, _ in changes.changed({EVENTS})] == [ORDERS]


def test_a_shard_that_shows_less_than_it_holds_is_named_until_it_shows_all() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    rig.store.set_commit_offset(ORDERS, 1)
    fill(rig.store, ORDERS, 3)
    changes = moves_of(rig)
    assert changes.changed(()) == [(ORDERS, 0, 1)]
    assert changes.changed(()) == [(ORDERS, 0, 1)]
    rig.store.set_commit_offset(ORDERS, None)
    assert changes.changed(()) == [(ORDERS, 0, 3)]
    assert changes.changed(()) == []


class _Seen:
    name = "seen"

    def __init__(self) -> None:
        self.values: dict[tuple[ShardId, int], bytes | None] = {}

    def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None:
        self.values |= {(shard, each.offset): each.value for each in records}


def test_a_shard_that_was_cut_and_ends_where_it_did_is_looked_at_again() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    fill(rig.store, ORDERS, 5)
    seen = _Seen()
    rig.store.dispatch.register(seen)
    for _ in range(2):  # the first look is at all shards
        rig.store.dispatch.run_once()
    rig.store.truncate(ORDERS, 2)
    fill(rig.store, ORDERS, 3, first=100)
    rig.store.dispatch.run_once()
    held = {(ORDERS, each.offset): each.value for each in everything(rig.store, ORDERS)}
    assert seen.values == held


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_shards_a_dispatcher_gets_what_they_hold(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """It never looks at all shards but for the first time: what it is told must be enough."""
    monkeypatch.setattr(dispatch_worker, "LOOK_AT_ALL_EVERY_S", float("inf"))
    dice = random.Random(seed)
    rig = Rig(QUIET)
    store = rig.store
    shards = (ORDERS, EVENTS, LOGS)
    for shard in shards:
        create(store, shard)
    seen = _Seen()
    store.dispatch.register(seen)
    number = 0
    for _ in range(60):
        shard = dice.choice(shards)
        match dice.randrange(6):
            case 0:
                store.truncate(shard, dice.randrange(int(store.bounds(shard).next) + 1))
            case 1:
                store.delete_shard(shard)
                create(store, shard)
            case 2:
                end = int(store.bounds(shard).next)
                store.set_commit_offset(shard, dice.choice((end, end + 2, None)))
            case _:
                count = dice.randrange(1, 6)
                fill(store, shard, count, first=number)
                number += count
        if dice.random() < 0.6:
            store.dispatch.run_once()
    for shard in shards:
        store.set_commit_offset(shard, None)
    store.dispatch.run_once()
    assert set(store.dispatch.lag("seen").values()) == {0}
    for shard in shards:
        held = {(shard, each.offset): each.value for each in everything(store, shard)}
        assert held.items() <= seen.values.items()


@pytest.mark.parametrize("how", ["truncate", "delete"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_dispatcher_that_registers_late_gets_what_replaced_cut_records(
    how: str, restarted: bool
) -> None:
    """It was not there when the shard was cut: its position is of records that are no more."""
    rig = Rig(QUIET)
    create(rig.store)
    fill(rig.store, ORDERS, 5)
    rig.store.dispatch.register(_Seen())
    rig.store.dispatch.run_once()
    rig.restart()
    if how == "truncate":
        rig.store.truncate(ORDERS, 1)
    else:
        rig.store.delete_shard(ORDERS)
        create(rig.store)
    fill(rig.store, ORDERS, 7, first=100)
    if restarted:
        rig.kill()
    seen = _Seen()
    rig.store.dispatch.register(seen)
    rig.store.dispatch.run_once()
    held = {(ORDERS, each.offset): each.value for each in everything(rig.store, ORDERS)}
    kept = 1 if how == "truncate" else 0
    assert seen.values == {place: held[place] for place in held if place[1] >= kept}


def test_a_shard_made_again_before_its_deletion_was_told_is_handed_over_from_its_begin() -> None:
    """Its deletion may be under way still in another thread, or the process may have died in it."""
    rig = Rig(QUIET)
    create(rig.store)
    fill(rig.store, ORDERS, 3)
    rig.store.dispatch.register(_Seen())
    rig.store.dispatch.run_once()
    rig.restart().dispatch.register(_Seen())
    rig.store._lifecycle.delete(ORDERS)
    create(rig.store)
    fill(rig.store, ORDERS, 4, first=100)
    rig.kill()
    seen = _Seen()
    rig.store.dispatch.register(seen)
    rig.store.dispatch.run_once()
    assert sorted(offset for _, offset in seen.values) == [0, 1, 2, 3]


def test_a_dispatcher_that_fails_keeps_what_moved_while_others_go_on() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    failing, seen = _Failing(), _Seen()
    rig.store.dispatch.register(failing)
    rig.store.dispatch.register(seen)
    rig.store.dispatch.run_once()
    for first in range(0, 9, 3):
        fill(rig.store, ORDERS, 3, first=first)
        rig.store.dispatch.run_once()
        rig.clock.advance(dispatch_worker.RETRY_MAX_S)
    assert len(seen.values) == 9
    assert not failing.values
    failing.fails = False
    rig.store.dispatch.run_once()
    assert failing.values == seen.values


class _Failing(_Seen):
    name = "failing"
    fails = True

    def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None:
        if self.fails:
            raise OSError("not now")
        super().dispatch(shard, records)


def test_records_that_come_between_the_look_and_the_bounds_are_named_once_more() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    fill(rig.store, ORDERS, 1)
    parts = rig.store._parts

    class Late:
        """An appender in whose tables the newest records are missing."""

        more = 1

        def shown_offsets(self) -> bytes:
            offsets: bytes = parts.log.appender.shown_offsets()
            fill(rig.store, ORDERS, self.more)
            return offsets

    late = Late()
    changes = ChangedShards(parts.table, cast("Appender", late))
    for seen in range(2, 6):
        assert changes.changed(()) == [(ORDERS, 0, seen)]
    late.more = 0
    assert changes.changed(()) == [(ORDERS, 0, 5)]
    assert changes.changed(()) == []
