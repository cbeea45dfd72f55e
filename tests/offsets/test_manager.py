"""Both strategies of the offset manager, and what they promise each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.meta.simulated_database import SimulatedDatabase
from tests.offsets.flaky_meta import FlakyMeta

from penstock.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    DeadlineError,
    DiskFullError,
    RequestError,
    StaleWriteError,
    UnknownGroupError,
)
from penstock.meta.client import CommittedOffset, GroupName, GroupOffsets, OffsetEntry
from penstock.meta.solo_client import SoloMetaClient
from penstock.offsets.cache import OffsetCacheManager
from penstock.offsets.config import CACHE_FAMILY, OffsetConfig
from penstock.offsets.manager import OffsetManager
from penstock.offsets.persistent import OffsetStorageManager
from penstock.offsets.strategy import OffsetCommit, OffsetStrategy
from penstock.record import Offset, ShardId
from penstock.testing import ManualClock

S0, S1, S2 = (ShardId("orders-1", number) for number in range(3))
SMALL = OffsetConfig(pending_max=3, commit_timeout_ms=200)


class World:
    """A meta service, a local database and a manager without a thread: tests call `flush`."""

    def __init__(self, config: OffsetConfig | None = None) -> None:
        self.clock = ManualClock()
        self.meta = FlakyMeta(SimulatedDatabase(), self.clock)
        self.local = SimulatedDatabase(families=(CACHE_FAMILY,))
        self.config = config
        self.manager = self.new_manager()

    def new_manager(self) -> OffsetManager:
        return OffsetManager(self.meta, self.local, clock=self.clock, config=self.config)

    def kill(self) -> None:
        """The process of the manager dies and another one starts."""
        self.local = self.local.after_kill()
        self.manager = self.new_manager()

    def cut_power(self) -> None:
        self.local = self.local.after_power_cut()
        self.manager = self.new_manager()

    def at(self, group: str, shard: ShardId) -> int | None:
        found = self.manager.get_offset(group, shard)
        return None if found is None else found.offset

    def saved(self, group: str, shard: ShardId) -> int | None:
        found = self.meta.get_offset("default", group, shard.name)
        return None if found is None else found.offset


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.meta.close()


@pytest.fixture
def small_world() -> Iterator[World]:
    world = World(SMALL)
    yield world
    world.meta.close()


def test_both_managers_are_strategies(world: World) -> None:
    strategies: list[OffsetStrategy] = [world.manager.cache, world.manager.storage]
    assert [type(one) for one in strategies] == [OffsetCacheManager, OffsetStorageManager]
    for strategy in strategies:
        strategy.commit("default", "g", {S0: OffsetCommit(Offset(1))})
        strategy.commit("default", "g", {})


@pytest.mark.parametrize("enable_cache", [True, False])
def test_a_commit_is_read_back_with_all_that_was_said(world: World, enable_cache: bool) -> None:
    assert world.manager.get_offset("g", S0) is None
    assert world.manager.get_offsets("g") == {}
    world.manager.commit_offset(
        "g", S0, 17, metadata="né\0", leader_epoch=4, enable_cache=enable_cache
    )
    found = world.manager.get_offset("g", S0)
    assert found is not None
    assert (found.offset, found.metadata, found.leader_epoch) == (17, "né\0", 4)
    assert found.commit_timestamp_ms == world.clock.now_ms()
    world.manager.commit_offset("g", S0, 3, enable_cache=enable_cache)
    assert world.at("g", S0) == 3
    assert world.manager.get_offsets("other") == {}
    assert world.manager.get_offset("g", S0, namespace="other") is None


def test_a_cached_commit_reaches_the_meta_service_with_the_next_save(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    world.manager.commit_offset("g", S0, 2)
    world.manager.commit_offset("g", S1, 5)
    assert world.saved("g", S0) is None
    assert world.manager.flush() == 2
    assert (world.saved("g", S0), world.saved("g", S1)) == (2, 5)
    assert world.manager.pending_count == 0
    assert world.local.rows(CACHE_FAMILY) == []
    assert world.manager.flush() == 0
    assert world.meta.saves == [2]


def test_a_direct_commit_is_saved_when_it_returns(world: World) -> None:
    world.manager.commit_offset("g", S0, 9, enable_cache=False)
    assert world.saved("g", S0) == 9
    assert world.local.rows(CACHE_FAMILY) == []


def test_the_settings_choose_and_a_call_may_choose_otherwise() -> None:
    world = World(OffsetConfig(enable_cache=False))
    world.manager.commit_offset("g", S0, 1)
    assert world.saved("g", S0) == 1
    world.manager.commit_offset("g", S0, 2, enable_cache=True)
    assert (world.saved("g", S0), world.at("g", S0)) == (1, 2)
    world.manager.commit_offsets("g", {S0: OffsetCommit(Offset(3)), S1: OffsetCommit(Offset(4))})
    assert (world.saved("g", S0), world.saved("g", S1)) == (3, 4)
    assert world.manager.pending_count == 0  # the direct commit overtook the cached one
    world.meta.close()


def test_a_cached_commit_survives_a_kill_and_is_sent_again(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    world.manager.flush()
    world.manager.commit_offset("g", S0, 2, metadata="kept")
    world.kill()
    assert world.at("g", S0) == 2
    world.manager.flush()
    found = world.meta.get_offset("default", "g", S0.name)
    assert found is not None
    assert (found.offset, found.metadata) == (2, "kept")


def test_a_power_cut_loses_only_what_was_not_saved(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    world.manager.flush()
    world.manager.commit_offset("g", S0, 2)
    world.manager.commit_offset("g", S1, 9)
    world.cut_power()
    assert (world.at("g", S0), world.at("g", S1)) == (1, None)


def test_a_failed_save_keeps_its_entries(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    for failure in ("before", "after"):
        world.meta.fails = failure
        with pytest.raises(DeadlineError):
            world.manager.flush()
        assert world.manager.pending_count == 1
        assert world.at("g", S0) == 1
    world.manager.commit_offset("g", S0, 2)  # while it fails, commits go on
    world.meta.fails = None
    world.manager.flush()
    assert world.saved("g", S0) == 2
    assert world.manager.pending_count == 0


def test_a_commit_made_while_a_save_runs_is_not_forgotten_with_it(world: World) -> None:
    save = world.meta.save_offsets

    def slow_save(groups: list[GroupOffsets]) -> list[object]:
        world.manager.commit_offset("g", S0, 2)
        world.meta.save_offsets = save  # type: ignore[method-assign]  # only once
        return list(save(groups))

    world.manager.commit_offset("g", S0, 1)
    world.meta.save_offsets = slow_save  # type: ignore[method-assign,assignment]  # stands in
    world.manager.flush()
    assert (world.saved("g", S0), world.at("g", S0)) == (1, 2)
    world.kill()
    assert world.at("g", S0) == 2


def test_one_entry_that_cannot_be_stored_does_not_hold_up_the_others(world: World) -> None:
    for number in range(9):
        world.manager.commit_offset("g", ShardId("orders-1", number), number)
    save = world.meta.save_offsets

    def picky_save(groups: list[GroupOffsets]) -> list[object]:
        if any(entry.shard == "orders-1_4" for group in groups for entry in group.entries):
            raise BadRequestError("no, thank you")
        return list(save(groups))

    world.meta.save_offsets = picky_save  # type: ignore[method-assign,assignment]  # stands in
    world.manager.flush()
    assert sorted(world.meta.get_offsets("default", "g")) == [
        f"orders-1_{number}" for number in range(9) if number != 4
    ]
    assert world.manager.pending_count == 0


def test_a_reset_goes_backwards_and_nothing_older_undoes_it(world: World) -> None:
    world.manager.commit_offset("g", S0, 100)
    world.manager.commit_offset("g", S1, 200)
    world.manager.reset_offsets("g", {S0: OffsetCommit(Offset(5))})
    assert (world.at("g", S0), world.at("g", S1)) == (5, 200)
    world.kill()
    world.manager.flush()
    assert (world.saved("g", S0), world.saved("g", S1)) == (5, 200)
    world.manager.commit_offset("g", S0, 6)
    world.manager.flush()
    assert world.saved("g", S0) == 6


def test_compensation_does_not_undo_a_reset_made_while_the_node_was_down(world: World) -> None:
    world.manager.commit_offset("g", S0, 100)
    world.manager.commit_offset("g", S1, 200)
    other = OffsetManager(
        world.meta, SimulatedDatabase(families=(CACHE_FAMILY,)), clock=world.clock
    )
    other.reset_offsets("g", {S0: OffsetCommit(Offset(0))})
    world.kill()
    world.manager.flush()
    assert (world.saved("g", S0), world.saved("g", S1)) == (0, 200)
    assert world.at("g", S0) == 0
    assert world.manager.pending_count == 0


def test_a_commit_that_lost_its_group_takes_it_back_under_a_new_epoch(world: World) -> None:
    world.manager.commit_offset("g", S0, 1, enable_cache=False)
    other = OffsetManager(
        world.meta, SimulatedDatabase(families=(CACHE_FAMILY,)), clock=world.clock
    )
    other.commit_offset("g", S0, 50, enable_cache=False)
    with pytest.raises(StaleWriteError, match="taken over"):
        world.manager.commit_offset("g", S0, 2, enable_cache=False)
    assert world.saved("g", S0) == 50
    world.manager.commit_offset("g", S0, 51, enable_cache=False)
    assert world.saved("g", S0) == 51
    # Cached commits learn of it when they are saved.
    other.commit_offset("g", S0, 60)
    other.flush()
    assert world.saved("g", S0) == 51
    other.commit_offset("g", S0, 61)
    other.flush()
    assert world.saved("g", S0) == 61


def test_a_commit_that_waits_does_not_hide_a_newer_one_of_another_node(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    other = OffsetManager(
        world.meta, SimulatedDatabase(families=(CACHE_FAMILY,)), clock=world.clock
    )
    other.commit_offset("g", S0, 50, enable_cache=False)
    assert world.at("g", S0) == 50
    assert world.manager.get_offsets("g")[S0].offset == 50
    world.manager.flush()
    assert world.at("g", S0) == 50


def test_a_commit_after_a_removal_counts(world: World) -> None:
    world.manager.commit_offset("g", S0, 1, enable_cache=False)
    world.manager.delete_offsets("g", [S0])
    world.manager.commit_offset("g", S0, 2)
    world.manager.flush()
    assert world.saved("g", S0) == 2
    world.manager.delete_group("g")
    world.manager.commit_offset("g", S0, 3, enable_cache=False)
    assert world.saved("g", S0) == 3


def test_a_hand_over_saves_first_and_then_another_node_may_commit(world: World) -> None:
    world.manager.commit_offset("g", S0, 7)
    world.manager.hand_over("g")
    assert world.saved("g", S0) == 7
    other = OffsetManager(
        world.meta, SimulatedDatabase(families=(CACHE_FAMILY,)), clock=world.clock
    )
    other.commit_offset("g", S0, 8)
    other.flush()
    assert world.at("g", S0) == 8


def test_compare_and_set_counts_cached_commits_too(world: World) -> None:
    world.manager.compare_and_set("g", S0, 5, expected=None)
    world.manager.commit_offset("g", S0, 6)
    with pytest.raises(StaleWriteError):
        world.manager.compare_and_set("g", S0, 9, expected=5)
    world.manager.compare_and_set("g", S0, 9, expected=6, metadata="set")
    assert world.saved("g", S0) == 9
    with pytest.raises(StaleWriteError):
        world.manager.compare_and_set("g", S1, 9, expected=0)


def test_of_many_threads_that_compare_and_set_one_wins_each_round(world: World) -> None:
    world.manager.commit_offset("g", S0, 0)
    wins: list[int] = []

    def run() -> None:
        for _ in range(15):
            found = world.manager.get_offset("g", S0)
            assert found is not None
            try:
                world.manager.compare_and_set("g", S0, found.offset + 1, expected=found.offset)
            except StaleWriteError:
                continue
            wins.append(found.offset)

    run_in_threads(run, 4)
    assert sorted(wins) == list(range(len(wins)))
    assert world.at("g", S0) == len(wins)


def run_in_threads(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_removed_offsets_and_groups_do_not_come_back(world: World) -> None:
    world.manager.commit_offsets("g", {S0: OffsetCommit(Offset(1)), S1: OffsetCommit(Offset(2))})
    image = world.local.after_kill()  # what an old process would send again
    assert world.manager.delete_offsets("g", [S0, S2]) == 1
    assert list(world.manager.get_offsets("g")) == [S1]
    world.manager.delete_group("g")
    assert world.manager.get_offsets("g") == {}
    assert world.manager.get_group("g") is None
    with pytest.raises(UnknownGroupError):
        world.manager.delete_group("g")
    ghost = OffsetManager(world.meta, image, clock=world.clock)
    ghost.flush()
    assert world.manager.get_offsets("g") == {}
    world.manager.commit_offset("g", S1, 9)
    world.manager.flush()
    assert world.saved("g", S1) == 9


def test_what_an_earlier_process_left_is_sent_before_it_is_shown(world: World) -> None:
    world.manager.commit_offset("g", S0, 1)
    image = world.local.after_kill()
    world.manager.delete_group("g")
    assert OffsetManager(world.meta, image.after_kill(), clock=world.clock).get_offsets("g") == {}
    assert OffsetManager(world.meta, image, clock=world.clock).get_offset("g", S0) is None


def test_groups_are_listed_and_idle_ones_expire(world: World) -> None:
    world.manager.commit_offset("old", S0, 1)
    world.manager.commit_offset("kept", S0, 1)
    world.manager.flush()
    world.clock.advance(seconds=100)
    world.manager.commit_offset("new", S0, 1)
    assert [one.group for one in world.manager.list_groups()] == ["kept", "new", "old"]
    gone = world.manager.expire_idle_groups(50_000, keep=[GroupName("default", "kept")])
    assert gone == [GroupName("default", "old")]
    assert world.manager.get_offsets("old") == {}
    assert world.at("kept", S0) == 1
    assert world.manager.expire_idle_groups(50_000, keep=[GroupName("default", "kept")]) == []
    world.manager.commit_offset("old", S0, 5)
    world.manager.flush()
    assert world.saved("old", S0) == 5


def test_all_shards_are_there_after_a_restart(world: World) -> None:
    shards = [ShardId("orders-1", number) for number in range(300)]
    world.manager.commit_offsets("g", {shard: OffsetCommit(Offset(1)) for shard in shards[:200]})
    world.manager.flush()
    for number, shard in enumerate(shards[100:]):
        world.manager.commit_offset("g", shard, number)
    world.manager.stop()
    assert world.local.synced == len(world.local.batches)
    world.kill()
    found = world.manager.get_offsets("g")
    assert sorted(found) == shards
    assert found[shards[299]].offset == 199


def test_offsets_of_a_deleted_topic_are_forgotten(world: World) -> None:
    other = ShardId("other-1", 0)
    world.manager.commit_offset("g", S0, 1)
    world.manager.commit_offset("g", other, 1)
    assert world.manager.forget_topic("orders-1") == 1
    assert list(world.manager.get_offsets("g")) == [other]


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
    assert world.manager.pending_count == 3
    world.manager.flush()
    thread.join()
    assert world.at("g", late) == 5
    assert world.manager.pending_count == 1


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
    assert "3 offsets wait to be saved" in str(errors[0])
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
        with pytest.raises(BusyError, match=r"not done after 0\.2 s"):
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
    (epoch,) = world.meta.take_coordinator_epochs([GroupName("default", "g")])
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
        SoloMetaClient.open(str(tmp_path / "meta")) as meta,
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
