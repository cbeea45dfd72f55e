"""Directories outside of a store's own have one owner: another is refused, and does no harm."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.engine.segment.rig import ORDERS, QUIET, Rig, create, fill, offsets, record

from penstock.engine.segment.inspect import files, rebuild, verify
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import LockedError, NotAStoreError, SettingsError
from penstock.testing import PowerCut

PLACES = {
    "commit_log_path": "disk1/log",
    "consume_queue_path": "disk2/queues",
    "index_path": "disk3/index",
}
ELSEWHERE = msgspec.structs.replace(QUIET, **PLACES)


def settings_with(**places: str) -> SegmentSettings:
    return msgspec.structs.replace(QUIET, **places)


def filled(settings: SegmentSettings = ELSEWHERE) -> Rig:
    rig = Rig(settings)
    create(rig.store)
    fill(rig.store, ORDERS, 50)
    rig.store.run_upkeep()
    return rig


def check(rig: Rig) -> None:
    assert offsets(rig.store, ORDERS) == list(range(50))
    assert len(rig.store.query_by_key(ORDERS, b"key-3")) == 10


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_a_directory_of_another_store_is_refused_and_nothing_is_changed(
    place: str, is_open: bool
) -> None:
    rig = filled()
    if not is_open:
        rig.close()
    before = rig.disk.files()
    other = settings_with(**{place: PLACES[place]})
    with pytest.raises(SettingsError) as raised:
        SegmentStore.open("other", other, disk=rig.disk, clock=rig.clock)
    for named in (PLACES[place], "/store, not to other", place):
        assert named in str(raised.value)
    assert rig.disk.files() == before
    assert not rig.disk.exists("other")
    check(rig)
    rig.restart()
    check(rig)


@pytest.mark.parametrize("place", PLACES)
def test_a_store_that_is_reconfigured_does_not_get_a_directory_of_another(place: str) -> None:
    rig = filled()
    other = Rig(disk=rig.disk, clock=rig.clock, root="other")
    create(other.store)
    fill(other.store, ORDERS, 5)
    other.close()
    before = rig.disk.files()
    for attempt in (SegmentStore.open, rebuild):
        with pytest.raises(SettingsError, match="belongs to the store"):
            attempt("other", settings=settings_with(**{place: PLACES[place]}), disk=rig.disk)
    assert rig.disk.files() == before
    check(rig)
    assert offsets(other.store, ORDERS) == list(range(5))


def test_a_part_of_another_stores_own_directory_is_refused() -> None:
    rig = filled(QUIET)
    before = rig.disk.files()
    for place, name in (("commit_log_path", "commitlog"), ("index_path", "index")):
        other = settings_with(**{place: f"store/{name}"})
        with pytest.raises(SettingsError, match=f"store/{name} belongs to the store .*store, not"):
            SegmentStore.open("other", other, disk=rig.disk, clock=rig.clock)
    assert rig.disk.files() == before


def test_a_store_does_not_take_back_what_it_left_to_another() -> None:
    rig = filled(settings_with(commit_log_path="other/commitlog"))
    with pytest.raises(SettingsError, match="other/commitlog belongs to the store"):
        SegmentStore.open("other", QUIET, disk=rig.disk, clock=rig.clock)
    check(rig)


def test_the_directories_of_an_open_store_are_locked_whatever_they_say() -> None:
    rig = filled()
    for place, directory in PLACES.items():
        rig.disk.remove(f"{directory}/.penstock/owner")
        taken = settings_with(**{place: directory})
        taken = msgspec.structs.replace(taken, sizes=None)
        with pytest.raises((LockedError, NotAStoreError), match=directory):
            SegmentStore.open("other", taken, disk=rig.disk, clock=rig.clock)
    check(rig)


def test_the_own_directory_may_be_named_in_the_settings() -> None:
    rig = filled(QUIET)
    rig.close()
    same = settings_with(commit_log_path="store/commitlog", index_path="store/index")
    named = Rig(same, disk=rig.disk, clock=rig.clock)
    check(named)
    assert not any(".penstock" in path for path in rig.disk.files())


def test_a_store_may_be_moved_and_so_may_its_directories(tmp_path: Path) -> None:
    def settings(log: str) -> SegmentSettings:
        return settings_with(
            commit_log_path=f"{tmp_path}/{log}", consume_queue_path=f"{tmp_path}/queues"
        )

    with SegmentStore.open(f"{tmp_path}/store", settings("log")) as store:
        create(store)
    moves = [("store", "moved", "log"), ("log", "log2", "log2"), ("moved", "store", "log2")]
    for number, (old, new, log) in enumerate(moves):
        shutil.move(tmp_path / old, tmp_path / new)
        root = "store" if number == 2 else "moved"
        with SegmentStore.open(f"{tmp_path}/{root}", settings(log)) as store:
            assert store.append(ORDERS, record(number)) == number
        with pytest.raises(SettingsError, match=f"belongs to the store {tmp_path}/{root}, not"):
            SegmentStore.open(f"{tmp_path}/other", settings(log))


def test_directories_without_a_mark_are_taken_over() -> None:
    rig = filled()
    rig.close()
    for directory in PLACES.values():
        rig.disk.remove_tree(f"{directory}/.penstock")
    check(rig)
    with pytest.raises(SettingsError, match="belongs to the store"):
        SegmentStore.open("other", ELSEWHERE, disk=rig.disk, clock=rig.clock)


def test_a_log_without_a_store_becomes_one_of_its_own() -> None:
    rig = filled(settings_with(commit_log_path="disk1/log"))
    rig.close()
    rig.disk.remove_tree("store")
    rig.disk.remove_tree("disk1/log/.penstock")
    settings = SegmentSettings(commit_log_path="disk1/log", background=False)
    for _ in range(2):
        with SegmentStore.open("other", settings, disk=rig.disk, clock=rig.clock) as store:
            assert offsets(store, ORDERS) == list(range(50))
    with pytest.raises(SettingsError, match=r"belongs to the store .*/other, not to store"):
        _ = rig.store


@pytest.mark.parametrize("lost", ["store.properties", "penstock", "penstock/store.properties"])
def test_a_store_knows_its_directories_again_though_it_lost_something(lost: str) -> None:
    rig = filled()
    rig.close()
    rig.disk.remove_tree(f"store/{lost}")
    check(rig)


@pytest.mark.parametrize("place", ["consume_queue_path", "index_path"])
def test_a_new_store_does_not_begin_in_a_directory_with_something_in_it(place: str) -> None:
    rig = filled()
    rig.close()
    for directory in PLACES.values():
        rig.disk.remove_tree(f"{directory}/.penstock")
    before = rig.disk.files()
    with pytest.raises(NotAStoreError, match=f"{PLACES[place]} holds files of a store.*{place}"):
        SegmentStore.open("other", settings_with(**{place: PLACES[place]}), disk=rig.disk)
    assert rig.disk.files() == before


def test_what_is_no_queue_is_left_alone_when_queues_are_built_anew() -> None:
    rig = filled()
    rig.close()
    others = ["disk2/queues/letters.txt", "disk2/queues/photos/2026/1.jpg", "disk2/queues/orders/x"]
    for path in others:
        rig.disk.replace(path, b"mine")
    rebuild("store", settings=ELSEWHERE, disk=rig.disk, clock=rig.clock)
    check(rig)
    assert all(rig.disk.files()[path] == b"mine" for path in others)


def test_a_log_that_is_not_mounted_is_refused_and_nothing_is_made_in_its_place() -> None:
    rig = filled()
    rig.close()
    rig.disk.remove_tree("disk1")
    before = rig.disk.files()
    with pytest.raises(Exception, match="is its disk mounted"):
        _ = rig.store
    assert rig.disk.files() == before


def test_a_power_cut_at_any_call_of_a_creation_leaves_a_store_that_opens() -> None:
    for call in range(200):
        rig = Rig(ELSEWHERE)
        rig.disk.stop_at_call(call)
        try:
            create(rig.store)
        except PowerCut:
            rig.abandon()
            rig.disk.crash(random.Random(call))
            create(rig.store)
            fill(rig.store, ORDERS, 50)
            check(rig)
        else:
            assert call > 20
            return
    pytest.fail("a creation takes fewer calls")


def test_the_marks_are_no_files_of_the_store() -> None:
    rig = filled()
    rig.close()
    with ReadOnlyStore.open("store", settings=ELSEWHERE, disk=rig.disk, clock=rig.clock) as view:
        # To open the file of a lock, and to close it, would end the lock.
        assert not any(".penstock" in each.path for each in files(view))
        assert len(view.read(ORDERS, 0)) == 50
    assert verify("store", settings=ELSEWHERE, disk=rig.disk, clock=rig.clock).findings == []
