"""Both strategies of the offset manager, and what they promise each other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.meta.simulated_database import SimulatedDatabase
from tests.offsets.world import S0, S1, S2, World

from penstock.errors import (
    BadRequestError,
    DeadlineError,
    StaleWriteError,
    UnknownGroupError,
)
from penstock.meta.client import GroupName, GroupOffsets
from penstock.offsets.config import CACHE_FAMILY, OffsetConfig
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId


def test_a_commit_of_no_offsets_is_accepted_with_and_without_the_cache(world: World) -> None:
    for commit in (world.manager.cache.commit, world.manager.storage.commit):
        commit("default", "g", {S0: OffsetCommit(Offset(1))})
        commit("default", "g", {})


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
    assert world.manager.cache.pending_count == 0
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
    assert world.manager.cache.pending_count == 0  # the direct commit overtook the cached one
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
        assert world.manager.cache.pending_count == 1
        assert world.at("g", S0) == 1
    world.manager.commit_offset("g", S0, 2)  # while it fails, commits go on
    world.meta.fails = None
    world.manager.flush()
    assert world.saved("g", S0) == 2
    assert world.manager.cache.pending_count == 0


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
    assert world.manager.cache.pending_count == 0


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
    assert world.manager.cache.pending_count == 0


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
    assert world.manager.remove_topic("orders-1") == 1
    assert list(world.manager.get_offsets("g")) == [other]
