"""What a node may say of its logs after a stop, a killed process, a power cut."""

from __future__ import annotations

import pytest

from penstock.engine.segment import RecoveryReport
from penstock.meta import StartProof
from penstock.node.directory import CLEAN_STOP, SESSION, NodeDirectory
from penstock.node.start_proof import StartFiles, lacks_records
from penstock.testing import FaultyDisk, ManualClock

PATH = "/data"
PROVEN = StartProof(is_proven=True, previous_epoch=7, cluster_id="C")


class Machine:
    """A directory on a disk that loses what was not synced, and a kernel that boots."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.disk.make_directory(PATH)
        self.boots = 0
        self.clock = BootedClock(self)

    @property
    def files(self) -> StartFiles:
        return StartFiles(NodeDirectory(PATH, self.disk), self.clock)

    def cut_power(self) -> None:
        self.disk.crash()
        self.boots += 1


class BootedClock(ManualClock):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def boot_id(self) -> str:
        return f"boot-{self._machine.boots}"


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_first_start_proves_nothing(machine: Machine) -> None:
    assert machine.files.consume("S") == StartProof()


def test_a_killed_process_has_lost_nothing_while_the_kernel_runs(machine: Machine) -> None:
    machine.files.write_session("C", "S", 7)
    assert machine.files.consume("S") == PROVEN


def test_a_power_cut_proves_nothing(machine: Machine) -> None:
    machine.files.write_session("C", "S", 7)
    machine.cut_power()
    assert machine.files.consume("S") == StartProof(previous_epoch=7, cluster_id="C")


def test_a_clean_stop_counts_after_a_power_cut(machine: Machine) -> None:
    machine.files.write_session("C", "S", 7)
    machine.files.write_clean_stop("C", "S", 7)
    machine.cut_power()
    assert machine.files.consume("S") == PROVEN


def test_a_start_that_is_cut_short_proves_nothing(machine: Machine) -> None:
    machine.files.write_session("C", "S", 7)
    machine.files.write_clean_stop("C", "S", 7)
    machine.files.consume("S")
    assert machine.files.consume("S") == StartProof()


def test_a_proof_is_removed_durably_before_anything_is_opened(machine: Machine) -> None:
    machine.files.write_clean_stop("C", "S", 7)
    machine.files.consume("S")
    machine.cut_power()
    assert machine.files.consume("S") == StartProof()


def test_the_files_of_another_store_prove_nothing(machine: Machine) -> None:
    machine.files.write_session("C", "S", 7)
    machine.files.write_clean_stop("C", "S", 7)
    assert machine.files.consume("other") == StartProof()


@pytest.mark.parametrize("name", [SESSION, CLEAN_STOP])
def test_a_flipped_bit_proves_nothing(machine: Machine, name: str) -> None:
    machine.files.write_session("C", "S", 7)
    written = machine.disk.open(f"{PATH}/{SESSION}", writable=False)
    data = bytearray(written.read_at(0, 1_000))
    written.close()
    machine.files.void()
    for position in range(len(data) - 1):
        flipped = bytearray(data)
        flipped[position] ^= 1
        machine.disk.replace(f"{PATH}/{name}", bytes(flipped))
        assert not machine.files.consume("S").is_proven, f"byte {position}"


def test_an_incomplete_record_at_the_end_is_no_loss() -> None:
    assert not lacks_records(RecoveryReport(clean_stop=False, bytes_cut=90, cut_reason="torn"))


def test_records_after_a_gap_are_a_loss() -> None:
    report = RecoveryReport(clean_stop=False, bytes_cut=90, records_behind_cut=3)
    assert "3 records after a gap" in lacks_records(report)
