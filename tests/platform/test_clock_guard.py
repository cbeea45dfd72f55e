"""A step of the wall clock is told from elapsed time, while running and across starts."""

from __future__ import annotations

import errno

import pytest
from prometheus_client import CollectorRegistry

from penstock.platform.clock import SystemClock, shows_system_time
from penstock.platform.clock_guard import GuardedClock, PeerTime
from penstock.platform.clock_metrics import ClockMetrics
from penstock.testing import FaultyDisk, ManualClock
from penstock.testing.faults import FOREVER

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000
PATH = "data/clock"


class Machine:
    """A machine with a disk and a clock; `start` is that of a process."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.disk.make_directory("data")
        self.clock = ManualClock(NOW_MS)

    def start(self) -> GuardedClock:
        return GuardedClock(self.clock, self.disk, PATH)

    def reboot(self, *, off_ms: int = 0, step_ms: int = 0) -> GuardedClock:
        self.clock = ManualClock(self.clock.now_ms() + off_ms + step_ms)
        return self.start()

    def step(self, step_ms: int) -> None:
        self.clock.set_now_ms(self.clock.now_ms() + step_ms)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_time_that_passes_is_believed_however_long(machine: Machine) -> None:
    clock = machine.start()
    for _ in range(400):
        machine.clock.advance(86_400)
        clock.tick()
        assert clock.expiry_ms() == machine.clock.now_ms()
    assert not clock.status().held


@pytest.mark.parametrize("step_ms", [10 * DAY_MS, HOUR_MS, -HOUR_MS, -10 * DAY_MS])
def test_a_step_holds_the_clock_at_once_and_until_it_is_undone(
    machine: Machine, step_ms: int
) -> None:
    clock = machine.start()
    machine.clock.advance(100)
    before = clock.expiry_ms()
    machine.step(step_ms)
    held_at = clock.expiry_ms()
    assert held_at == min(before, before + step_ms)
    machine.clock.advance(3_600)
    assert clock.expiry_ms() == held_at
    status = clock.status()
    assert status.held
    assert status.offset_ms == step_ms
    assert status.reason
    machine.step(-step_ms)
    clock.tick()
    assert clock.expiry_ms() == machine.clock.now_ms()


def test_a_small_correction_is_taken_and_many_of_them_are_not(machine: Machine) -> None:
    clock = machine.start()
    machine.step(5 * MINUTE_MS)
    assert clock.expiry_ms() == machine.clock.now_ms()
    for _ in range(3):
        machine.clock.advance(1)
        clock.tick()
        machine.step(5 * MINUTE_MS)
    assert clock.status().held


def test_a_restart_on_the_same_boot_measures_the_time_between(machine: Machine) -> None:
    machine.start().save()
    machine.clock.advance(30 * 86_400)
    assert not machine.start().status().held
    machine.step(DAY_MS)
    clock = machine.start()
    assert clock.status().held
    assert clock.expiry_ms() == NOW_MS + 30 * DAY_MS
    assert machine.start().status().held, "the file keeps the time that was trusted"


def test_a_short_gap_across_a_boot_is_believed_and_a_long_one_waits(machine: Machine) -> None:
    machine.start().save()
    assert not machine.reboot(off_ms=48 * HOUR_MS).status().held
    machine.start().save()
    clock = machine.reboot(off_ms=10 * DAY_MS)
    assert clock.status().held
    assert clock.expiry_ms() == NOW_MS + 48 * HOUR_MS
    confirmed = clock.confirm()
    assert not confirmed.held
    assert clock.expiry_ms() == machine.clock.now_ms()
    machine.clock.advance(60)
    assert not machine.start().status().held


def test_a_machine_that_boots_with_a_wrong_time_is_believed_when_that_was_set_right(
    machine: Machine,
) -> None:
    machine.start().save()
    for step_ms in (-3 * 365 * DAY_MS, 365 * DAY_MS):
        clock = machine.reboot(off_ms=MINUTE_MS, step_ms=step_ms)
        assert clock.status().held
        machine.clock.advance(30)
        machine.step(-step_ms)
        clock.tick()
        assert not clock.status().held
        clock.save()


def test_a_confirmation_is_kept_also_when_the_power_fails(machine: Machine) -> None:
    machine.start().save()
    machine.step(10 * DAY_MS)
    clock = machine.start()
    clock.confirm()
    machine.disk.crash()
    assert not machine.start().status().held


def test_a_full_disk_keeps_the_last_time_and_refuses_a_confirmation(machine: Machine) -> None:
    clock = machine.start()
    clock.save()
    machine.clock.advance(100)
    machine.disk.fail("replace", error_number=errno.ENOSPC, times=FOREVER)
    clock.save()
    machine.step(10 * DAY_MS)
    clock.tick()
    with pytest.raises(OSError, match="space"):
        clock.confirm()
    assert clock.status().held


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b'{"wall_ms": "x"}', b"{" * 9_000])
def test_a_damaged_file_is_that_of_a_first_start(machine: Machine, data: bytes) -> None:
    machine.disk.replace(PATH, data)
    clock = machine.start()
    assert not clock.status().held
    clock.save()
    machine.step(DAY_MS)
    assert machine.start().status().held


def peers(*offsets_ms: int, held: bool = False) -> list[PeerTime]:
    return [PeerTime(node, offset, held) for node, offset in enumerate(offsets_ms, 2)]


def test_other_nodes_vouch_for_a_clock_unless_theirs_are_held(machine: Machine) -> None:
    machine.start().save()
    clock = machine.reboot(off_ms=10 * DAY_MS)
    clock.compare([])
    clock.compare(peers(100, -100, held=True))
    clock.compare(peers(100, DAY_MS))
    assert clock.status().held
    clock.compare(peers(100, -100, DAY_MS))
    assert not clock.status().held


def test_a_node_that_all_others_contradict_is_held_until_they_agree(machine: Machine) -> None:
    clock = machine.start()
    clock.compare(peers(DAY_MS))
    assert not clock.status().held, "one other node may be the one that is wrong"
    clock.compare(peers(DAY_MS, DAY_MS + 5))
    assert clock.status().held
    clock.tick()
    assert clock.status().held
    clock.compare(peers(3, 4))
    assert not clock.status().held
    clock.compare(peers(DAY_MS, DAY_MS))
    clock.confirm()
    clock.compare(peers(DAY_MS, DAY_MS))
    assert not clock.status().held, "the operator's word counts more"


def test_a_scrape_shows_a_hold(machine: Machine) -> None:
    registry = CollectorRegistry()
    clock = machine.start()
    ClockMetrics(clock, registry)
    assert registry.get_sample_value("penstock_clock_held") == 0
    machine.step(HOUR_MS)
    assert registry.get_sample_value("penstock_clock_held") == 1
    assert registry.get_sample_value("penstock_clock_offset_seconds") == 3_600


def test_native_code_stamps_records_also_behind_a_guard() -> None:
    assert shows_system_time(GuardedClock(SystemClock()))
    assert not shows_system_time(GuardedClock(ManualClock()))
    clock = SystemClock()
    assert clock.boot_id() == SystemClock().boot_id()
    assert clock.uptime_ms() <= clock.uptime_ms()
