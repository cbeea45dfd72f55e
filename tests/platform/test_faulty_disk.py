"""The faults that `FaultyDisk` claims to inject, each seen to happen, and those it must not."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LockedError
from penstock.testing import CHANGES, FOREVER, FaultyDisk, ManualClock, PowerCut

PAGE = 4096


def outcomes(prepare: Callable[[FaultyDisk], None], rounds: int = 200) -> set[bytes | None]:
    """Return every content that `file` may have after a power cut; None: there is no file."""
    found: set[bytes | None] = set()
    for seed in range(rounds):
        disk = FaultyDisk(seed)
        prepare(disk)
        disk.crash()
        found.add(disk.files().get("file"))
    return found


def test_synced_bytes_survive_every_power_cut() -> None:
    def prepare(disk: FaultyDisk) -> None:
        file = disk.open("file", create=True)
        disk.sync_directory(".")
        file.write_at(0, b"a" * (3 * PAGE))
        file.sync()

    assert outcomes(prepare) == {b"a" * (3 * PAGE)}


def test_unsynced_pages_survive_or_revert_one_by_one() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.replace("file", b"a" * (3 * PAGE))
        mapping = disk.open("file").map(writable=True)
        mapping.buffer[:] = b"b" * (3 * PAGE)

    found = outcomes(prepare)
    pages = {
        b"".join(letter * PAGE for letter in letters)
        for letters in ((x, y, z) for x in (b"a", b"b") for y in (b"a", b"b") for z in (b"a", b"b"))
    }
    assert found == pages


def test_an_unsynced_size_may_revert_or_stay_with_zeros() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.replace("file", b"a")
        disk.open("file").write_at(1, b"bb")

    assert {b"a", b"abb", b"a\0\0"} <= outcomes(prepare)


def test_an_unsynced_cut_comes_back_with_the_old_bytes() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.replace("file", b"a" * (2 * PAGE))
        disk.open("file").truncate(PAGE)

    found = outcomes(prepare)
    assert {b"a" * PAGE, b"a" * (2 * PAGE)} <= found
    assert all(content is not None and not content.strip(b"a") for content in found)


def test_an_unsynced_creation_may_be_undone_though_the_file_was_synced() -> None:
    def prepare(disk: FaultyDisk) -> None:
        file = disk.open("file", create=True)
        file.write_at(0, b"abc")
        file.sync()

    assert outcomes(prepare) == {None, b"abc"}


def test_an_unsynced_removal_may_be_undone() -> None:
    def remove(disk: FaultyDisk) -> None:
        disk.replace("file", b"abc")
        disk.remove("file")

    def remove_and_sync(disk: FaultyDisk) -> None:
        remove(disk)
        disk.sync_directory(".")

    assert outcomes(remove) == {None, b"abc"}
    assert outcomes(remove_and_sync) == {None}


def test_a_durable_replacement_survives_and_another_may_be_old_new_or_torn() -> None:
    def durable(disk: FaultyDisk) -> None:
        disk.replace("file", b"old")
        disk.replace("file", b"new")

    def lazy(disk: FaultyDisk) -> None:
        disk.replace("file", b"old")
        disk.replace("file", b"new", durable=False)

    assert outcomes(durable) == {b"new"}
    assert {b"old", b"new", b""} <= outcomes(lazy)


def test_a_removed_tree_may_come_back_in_part() -> None:
    found = set()
    for seed in range(100):
        disk = FaultyDisk(seed)
        disk.replace("tree/a", b"a")
        disk.replace("tree/b", b"b")
        disk.remove_tree("tree")
        disk.crash()
        found.add(tuple(disk.files()))
    assert found == {(), ("tree/a",), ("tree/b",), ("tree/a", "tree/b")}


def test_the_same_seed_crashes_the_same_way() -> None:
    def history(seed: int) -> dict[str, bytes]:
        disk = FaultyDisk(seed)
        for name in "abc":
            disk.open(name, create=True).write_at(0, bytes(range(256)) * 64)
            disk.crash()
        return disk.files()

    assert history(7) == history(7)
    assert len({str(history(seed)) for seed in range(20)}) > 1


def test_a_crash_may_be_driven_from_outside() -> None:
    disk = FaultyDisk()
    disk.open("file", create=True).write_at(0, b"abc")
    disk.crash(random.Random(3))
    assert disk.files() in ({}, {"file": b""}, {"file": b"a"}, {"file": b"ab"}, {"file": b"abc"})


@given(seed=st.integers(0, 2**32), writes=st.lists(st.tuples(st.integers(0, 99), st.binary())))
def test_after_a_crash_everything_seen_is_durable(
    seed: int, writes: list[tuple[int, bytes]]
) -> None:
    disk = FaultyDisk(seed, page_size=16)
    file = disk.open("file", create=True)
    for position, data in writes:
        file.write_at(position, data)
    disk.crash()
    seen = disk.files()
    disk.crash()
    assert disk.files() == seen


@pytest.mark.parametrize("end", ["crash", "kill"])
def test_handles_mappings_and_locks_end_with_the_process(end: str) -> None:
    disk = FaultyDisk()
    disk.replace("file", b"abc")
    file = disk.open("file")
    view = file.map(writable=True).buffer
    lock = disk.lock("lock")
    getattr(disk, end)()
    with pytest.raises(OSError) as caught:
        file.write_at(0, b"x")
    assert caught.value.errno == errno.ESTALE
    view[0] = ord("x")
    assert disk.files()["file"] == b"abc"
    again = disk.lock("lock")
    lock.release()
    with pytest.raises(LockedError):
        disk.lock("lock")
    again.release()


def test_a_killed_process_loses_no_byte() -> None:
    disk = FaultyDisk()
    file = disk.open("new/file", create=True)
    file.write_at(0, b"abc")
    file.map(writable=True).buffer[1] = ord("x")
    disk.kill()
    assert disk.files() == {"new/file": b"axc"}


def test_a_rule_fails_the_calls_it_names_and_counts_them() -> None:
    disk = FaultyDisk()
    rule = disk.fail("sync", "*/log", errno.EIO, after=1, times=2)
    log, other = disk.open("a/log", create=True), disk.open("a/other", create=True)
    log.sync()
    for _ in range(2):
        other.sync()
        with pytest.raises(OSError) as caught:
            log.sync()
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, "a/log")
    log.sync()
    assert rule.failures == 2


def test_every_operation_can_fail() -> None:
    disk = FaultyDisk()
    file = disk.open("file", create=True)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open("file"),
        "read": lambda: file.read_at(0, 1),
        "write": lambda: file.write_at(0, b"x"),
        "truncate": lambda: file.truncate(0),
        "allocate": lambda: file.allocate(10),
        "map": lambda: file.map(writable=True),
        "sync": file.sync,
        "sync_directory": lambda: disk.sync_directory("."),
        "make_directory": lambda: disk.make_directory("directory"),
        "replace": lambda: disk.replace("file", b"new"),
        "remove": lambda: disk.remove("file"),
        "lock": lambda: disk.lock("lock"),
    }
    for number in range(len(calls)):
        disk.fail_at_call(number, errno.EIO)
    for call in calls.values():
        with pytest.raises(OSError):
            call()
    assert disk.files() == {"file": b""}
    assert [call.operation for call in disk.calls][1:] == list(calls)
    for call in calls.values():
        call()


def test_a_short_write_lands_in_part() -> None:
    disk = FaultyDisk()
    file = disk.open("file", create=True)
    disk.fail("write", error_number=errno.ENOSPC, landed=2)
    with pytest.raises(OSError) as caught:
        file.write_at(0, b"abc")
    assert caught.value.errno == errno.ENOSPC
    assert disk.files() == {"file": b"ab"}


def test_after_a_failed_sync_the_next_one_lies() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.replace("file", b"old")
        file = disk.open("file")
        file.write_at(0, b"new")
        disk.fail("sync")
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert file.read_at(0, 3) == b"new"

    def write_again(disk: FaultyDisk) -> None:
        prepare(disk)
        file = disk.open("file")
        file.write_at(0, b"NEW")
        file.sync()

    assert outcomes(prepare) == {b"old", b"new"}
    assert outcomes(write_again) == {b"NEW"}


def test_when_the_directory_sync_of_a_replacement_fails_the_new_bytes_are_there() -> None:
    def prepare(disk: FaultyDisk) -> None:
        disk.replace("file", b"old")
        disk.fail("sync_directory")
        with pytest.raises(OSError):
            disk.replace("file", b"new")
        assert disk.files() == {"file": b"new"}

    assert outcomes(prepare) == {b"old", b"new"}


def test_a_stopped_machine_does_nothing_until_it_restarts() -> None:
    disk = FaultyDisk()
    file = disk.open("file", create=True)
    disk.stop_at_call(1, operations=CHANGES)
    file.write_at(0, b"a")
    assert file.read_at(0, 1) == b"a"
    with pytest.raises(PowerCut):
        file.write_at(0, b"b")
    for call in (lambda: file.read_at(0, 1), lambda: disk.list("."), lambda: disk.lock("lock")):
        with pytest.raises(PowerCut):
            call()
    disk.kill()
    assert disk.open("file").read_at(0, 1) == b"a"
    disk.replace("file", b"runs again")


def test_every_call_of_a_procedure_can_be_made_to_fail() -> None:
    def procedure(disk: FaultyDisk) -> None:
        disk.replace("a/state", b"1")
        file = disk.open("a/log", create=True)
        file.allocate(10)
        file.sync()
        file.close()

    trial = FaultyDisk()
    procedure(trial)
    for number in range(trial.call_count()):
        disk = FaultyDisk()
        disk.fail_at_call(number, times=FOREVER)
        with pytest.raises(OSError):
            procedure(disk)
        assert disk.call_count() == number + 1
        disk.heal()
        procedure(disk)
    assert trial.call_count(CHANGES) == trial.call_count() - trial.counts["open"]


def test_a_full_disk_takes_the_part_that_fits() -> None:
    disk = FaultyDisk(capacity=3 * PAGE)
    file = disk.open("file", create=True)
    with pytest.raises(OSError) as caught:
        file.write_at(10, b"x" * (4 * PAGE))
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 3 * PAGE
    file.write_at(0, b"y" * PAGE)
    with pytest.raises(OSError):
        disk.replace("other", b"x")
    with pytest.raises(OSError):
        file.allocate(4 * PAGE)
    assert file.size() == 3 * PAGE
    usage = disk.usage("file")
    assert (usage.total, usage.used, usage.ratio) == (3 * PAGE, 3 * PAGE, 1.0)
    disk.remove("file")
    disk.replace("other", b"x")
    assert disk.usage(".").used == PAGE


def test_a_hole_takes_no_space_until_it_is_written() -> None:
    disk = FaultyDisk(capacity=2 * PAGE)
    file = disk.open("file", create=True)
    file.truncate(100 * PAGE)
    assert disk.usage(".").used == 0
    file.write_at(50 * PAGE, b"x")
    assert disk.usage(".").used == PAGE
    file.truncate(0)
    assert disk.usage(".").used == 0


def test_storing_into_a_hole_of_a_full_disk_is_noticed() -> None:
    disk = FaultyDisk(capacity=PAGE)
    file = disk.open("file", create=True)
    file.truncate(2 * PAGE)
    file.map(writable=True).buffer[:] = b"x" * (2 * PAGE)
    with pytest.raises(AssertionError, match="hole"):
        file.sync()


def test_others_may_fill_the_disk() -> None:
    disk = FaultyDisk(capacity=100 * PAGE)
    disk.occupy(90 * PAGE)
    assert disk.usage(".").ratio == pytest.approx(0.9)


def test_a_flipped_bit_stays_flipped() -> None:
    disk = FaultyDisk()
    disk.replace("file", b"\0\0\0")
    disk.flip_bit("file", 8 + 3)
    assert disk.files() == {"file": b"\0\x08\0"}
    disk.crash()
    assert disk.files() == {"file": b"\0\x08\0"}


def test_a_copy_is_independent_and_durable() -> None:
    disk = FaultyDisk()
    disk.open("a/file", create=True).write_at(0, b"abc")
    other = disk.copy()
    disk.open("a/file").write_at(0, b"xyz")
    other.crash()
    assert other.files() == {"a/file": b"abc"}


def test_modification_times_come_from_the_clock() -> None:
    clock = ManualClock()
    disk = FaultyDisk(clock=clock)
    disk.replace("file", b"abc")
    first = disk.modified_ms("file")
    clock.advance(5)
    mapping = disk.open("file").map(writable=True)
    mapping.buffer[0] = 1
    disk.open("file").sync()
    assert disk.modified_ms("file") == first + 5000


def test_what_is_synced_together_survives_a_power_cut() -> None:
    for seed in range(20):
        disk = FaultyDisk()
        disk.make_directory("a/b", durable=False)
        file = disk.open("a/b/file", create=True)
        file.write_at(0, b"bytes")
        file.close()
        disk.sync_together(["a/b/file"], ["a/b", "a", "."])
        disk.crash(random.Random(seed))
        assert disk.files() == {"a/b/file": b"bytes"}


def test_a_directory_that_was_not_made_durably_may_go_with_the_power() -> None:
    left = set()
    for seed in range(20):
        disk = FaultyDisk()
        disk.make_directory("a", durable=False)
        disk.crash(random.Random(seed))
        left.add(disk.is_directory("a"))
    assert left == {False, True}
