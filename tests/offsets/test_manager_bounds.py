"""The offset manager at its limits: full, refused, misused, stopped, and in many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.meta.simulated_database import SimulatedDatabase
from tests.offsets.flaky_meta import FlakyMeta
from tests.offsets.world import S0, S1, World

from penstock.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    DeadlineError,
    DiskFullError,
    RequestError,
)
from penstock.meta.client import CommittedOffset, GroupName, GroupOffsets, OffsetEntry
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.offsets.config import OffsetConfig
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId
from penstock.testing import ManualClock


def test_at_the_limit_new_offsets_wait_and_waiting_ones_go_on(small_world: World) -> None:
    world = small_world
    for number in range(3):
        world.manager.commit_offset("g", ShardId("orders-1", number), 1)
    world.manager.commit_offset("g", S0, 2)  # replaces
    late = ShardId("orders-1", 9)
    thread = threading.Thread(target=world.manager.commit_offset, args=("g", late, 5))
    thread.start()
    while world.clock.waiting == 0:
        pass
    assert world.manager.cache.pending_count == 3
    world.manager.flush()
    thread.join()
    assert world.at("g", late) == 5
    assert world.manager.cache.pending_count == 1


def test_a_commit_that_finds_no_room_in_time_fails_and_changes_nothing(
    small_world: World,
) -> None:
    world = small_world
    for number in range(3):
        world.manager.commit_offset("g", ShardId("orders-1", number), 1)
    world.meta.fails = "before"
    errors: list[BusyError] = []

    def commit() -> None:
        try:
            world.manager.commit_offset("g", ShardId("orders-1", 9), 5)
        except BusyError as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    while world.clock.waiting == 0:
        pass
    world.clock.advance(milliseconds=201)
    thread.join()
    assert "3 offsets are not saved" in str(errors[0])
    assert world.at("g", ShardId("orders-1", 9)) is None
    with pytest.raises(BadRequestError, match="at most 3"):
        world.manager.commit_offsets(
            "g", {ShardId("orders-1", n): OffsetCommit(Offset(1)) for n in range(4)}
        )


def test_on_a_full_disk_commits_are_refused_and_go_on_when_there_is_room(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    world.local.is_full = True
    with pytest.raises(DiskFullError):
        world.manager.commit_offset("g", S1, 5)
    assert (world.at("g", S0), world.at("g", S1)) == (1, None)
    world.manager.flush()  # what was accepted is saved, and its rows are removed
    assert world.saved("g", S0) == 1
    world.local.is_full = False
    world.manager.commit_offset("g", S1, 5)
    assert world.at("g", S1) == 5


BAD_CALLS: dict[str, Callable[[OffsetManager], object]] = {
    "negative offset": lambda m: m.commit_offset("g", S0, -1),
    "negative offset, direct": lambda m: m.commit_offset("g", S0, -1, enable_cache=False),
    "an immense offset": lambda m: m.commit_offset("g", S0, 1 << 63),
    "a text for an offset": lambda m: m.commit_offset("g", S0, "7"),  # type: ignore[arg-type]  # on purpose
    "a truth for an offset": lambda m: m.commit_offset("g", S0, True),
    "a text for a shard": lambda m: m.commit_offset("g", "orders_0", 7),  # type: ignore[arg-type]  # on purpose
    "a shard without a topic": lambda m: m.commit_offset("g", ShardId("", 0), 7),
    "a negative partition": lambda m: m.commit_offset("g", ShardId("t", -1), 7),
    "an empty group": lambda m: m.commit_offset("", S0, 7),
    "an empty namespace": lambda m: m.commit_offset("g", S0, 7, namespace=""),
    "half a surrogate pair": lambda m: m.commit_offset("g\ud800", S0, 7),
    "such metadata": lambda m: m.commit_offset("g", S0, 7, metadata="\ud800"),
    "long metadata": lambda m: m.commit_offset("g", S0, 7, metadata="x" * 4_097),
    "bytes as metadata": lambda m: m.commit_offset("g", S0, 7, metadata=b"x"),  # type: ignore[arg-type]  # on purpose
    "an immense leader epoch": lambda m: m.commit_offset("g", S0, 7, leader_epoch=1 << 70),
    "an empty reset": lambda m: m.reset_offsets("g", {}),
    "a negative reset": lambda m: m.reset_offsets("g", {S0: OffsetCommit(Offset(-5))}),
    "a negative expectation": lambda m: m.compare_and_set("g", S0, 1, expected=-1),
    "reading an empty group": lambda m: m.get_offset("", S0),
}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_and_changes_nothing(world: World, name: str, is_known: bool) -> None:
    if is_known:
        world.manager.commit_offset("g", S0, 3)
    with pytest.raises(RequestError):
        BAD_CALLS[name](world.manager)
    assert world.at("g", S0) == (3 if is_known else None)
    world.manager.commit_offset("g", S0, 4)
    world.manager.flush()
    assert world.saved("g", S0) == 4


def test_a_stopped_manager_takes_no_more_commits(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    world.manager.stop()
    for enable_cache in (True, False):
        with pytest.raises(ClosedError):
            world.manager.commit_offset("g", S0, 2, enable_cache=enable_cache)
        with pytest.raises(ClosedError):
            world.manager.commit_offset("new", S0, 2, enable_cache=enable_cache)
    assert world.saved("g", S0) == 1


def test_a_group_that_stays_held_is_not_waited_for_for_ever(small_world: World) -> None:
    world = small_world
    world.manager.commit_offset("g", S0, 1)
    with world.manager._table.hold("default", "g"):
        with pytest.raises(BusyError, match=r"more than 0\.2 s"):
            world.manager.commit_offset("g", S0, 2)
        with pytest.raises(BusyError):
            world.manager.reset_offsets("g", {S0: OffsetCommit(Offset(0))})
        world.manager.commit_offset("other", S0, 2)
    world.manager.commit_offset("g", S0, 3)
    assert world.at("g", S0) == 3


def test_a_commit_waits_while_its_group_is_held_and_then_counts(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    with world.manager._table.hold("default", "g"):
        thread = threading.Thread(target=world.manager.commit_offset, args=("g", S0, 2))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join()
    assert world.at("g", S0) == 2


def test_offsets_under_names_of_others_are_left_alone(world: World) -> None:
    world.manager.commit_offset("g", S0, 1, enable_cache=False)
    epoch = world.meta.claim_groups([GroupName("default", "g")])[0].epoch
    entry = OffsetEntry("no shard of ours", 5, epoch, 1, 1)
    world.meta.save_offsets([GroupOffsets("default", "g", (entry,))])
    assert list(world.manager.get_offsets("g")) == [S0]


def test_names_may_hold_any_characters(world: World) -> None:
    names = ["a", "a\0", "a/b", "\0\x01", "€", " ", "a_0"]
    for number, name in enumerate(names):
        world.manager.commit_offset(name, ShardId(name, 0), number, namespace=name)
    world.kill()
    world.manager.flush()
    for number, name in enumerate(names):
        found = world.manager.get_offsets(name, namespace=name)
        assert {shard: one.offset for shard, one in found.items()} == {ShardId(name, 0): number}


def test_an_epoch_that_cannot_be_had_fails_the_first_commit_only(world: World) -> None:
    world.meta.fails = "before"
    with pytest.raises(DeadlineError):
        world.manager.commit_offset("g", S0, 1)
    world.meta.fails = None
    world.manager.commit_offset("g", S0, 1)
    world.meta.fails = "before"
    world.manager.commit_offset("g", S0, 2)  # the group is known, the meta service not needed
    assert world.at("g", S0) == 2


# -- with its thread, on a real RocksDB ----------------------------------------------------------


def test_the_thread_saves_by_itself_and_goes_on_after_failures(tmp_path: Path) -> None:
    clock = ManualClock()
    meta = FlakyMeta(SimulatedDatabase(), clock)
    with OffsetManager.open(str(tmp_path / "offsets"), meta, clock=clock) as manager:
        manager.commit_offset("g", S0, 1)
        wait_until_saved(clock, meta, "g", 1)
        meta.fails = "before"
        manager.commit_offset("g", S0, 2)
        failed = len(meta.saves)
        while len(meta.saves) < failed + 3:
            clock.advance(milliseconds=10)
        meta.fails = None
        wait_until_saved(clock, meta, "g", 2)
        manager.commit_offset("g", S0, 3)
    found = meta.get_offset("default", "g", S0.name)
    assert found is not None
    assert found.offset == 3
    manager.stop()
    meta.close()


def wait_until_saved(clock: ManualClock, meta: FlakyMeta, group: str, offset: int) -> None:
    while True:
        clock.advance(milliseconds=100)
        found = meta.get_offset("default", group, S0.name)
        if found is not None and found.offset == offset:
            return


def test_a_stop_that_cannot_save_leaves_it_to_the_next_start(tmp_path: Path) -> None:
    clock = ManualClock()
    meta = FlakyMeta(SimulatedDatabase(), clock)
    with OffsetManager.open(str(tmp_path / "offsets"), meta, clock=clock) as manager:
        manager.commit_offset("g", S0, 8)
        meta.fails = "before"
    assert meta.get_offset("default", "g", S0.name) is None
    meta.fails = None
    with OffsetManager.open(str(tmp_path / "offsets"), meta, clock=clock) as manager:
        found = manager.get_offset("g", S0)
        assert found is not None
        assert found.offset == 8
    saved = meta.get_offset("default", "g", S0.name)
    assert saved is not None
    assert saved.offset == 8
    meta.close()


def test_many_threads_commit_and_read_and_nothing_goes_backwards(tmp_path: Path) -> None:
    config = OffsetConfig(flush_interval_ms=5)
    with (
        StandaloneMetaClient.open(str(tmp_path / "meta")) as meta,
        OffsetManager.open(str(tmp_path / "offsets"), meta, config=config) as manager,
    ):
        problems: list[tuple[int, CommittedOffset | None]] = []

        def run(shard: ShardId, enable_cache: bool) -> None:
            for offset in range(120):
                manager.commit_offset("g", shard, offset, enable_cache=enable_cache)
                found = manager.get_offset("g", shard)
                if found is None or found.offset != offset:
                    problems.append((offset, found))

        threads = [
            threading.Thread(target=run, args=(ShardId("orders-1", number), number % 3 > 0))
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert {one.offset for one in manager.get_offsets("g").values()} == {119}
