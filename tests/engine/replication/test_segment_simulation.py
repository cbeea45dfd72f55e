"""The simulation of replication over real segment stores on simulated disks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from tests.engine.replication.seed_runs import run_long, run_seeds
from tests.engine.replication.segment_logs import SegmentLog, SegmentNode
from tests.engine.replication.simulated_node import Log, MakeLogs
from tests.engine.replication.simulator import simulate

from penstock.record import QueueKind

PARTS: Final = 2
SEEDS: Final = 200
SEEDS_OF_A_PART: Final = 45
"""The same on every machine; the long run tries the others."""
SECONDS: Final = 20.0
"""For each part; what is not done then is left to longer runs."""


def make_logs_of(seed: int) -> MakeLogs:
    kind = QueueKind.BATCH if seed % 3 == 0 else QueueKind.SIMPLE

    def make_logs(node_id: int, *, is_sync: bool) -> Sequence[Log]:
        node = SegmentNode(is_sync=is_sync, kind=kind, seed=seed * 10 + node_id)
        return [SegmentLog(node, stream, is_sync=is_sync) for stream in range(2)]

    return make_logs


def run(seed: int) -> None:
    simulate(seed, make_logs_of(seed))


@pytest.mark.parametrize("part", range(PARTS))
def test_no_fault_loses_or_changes_a_committed_record_of_a_store(part: int) -> None:
    first = part * SEEDS // PARTS
    run_seeds(run, range(first, first + SEEDS_OF_A_PART), SECONDS)


def test_replicas_are_in_sync_after_the_first_record_of_an_epoch_was_given_up() -> None:
    run_seeds(run, [159])


@pytest.mark.soak
@pytest.mark.timeout(12 * 3600)
def test_no_fault_loses_or_changes_a_committed_record_of_a_store_in_a_long_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_long(run, 5_000, capsys)
