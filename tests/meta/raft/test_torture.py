"""Three processes that are killed, stopped and wiped under load: nothing acknowledged is lost.

The run of a minute waits most of the time. It begins before the first test, in processes of its own
(`conftest`), and its test comes last and asks for the outcome.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.conftest import torture_directory
from tests.meta.raft.torture import Acknowledged, Loss, failover_times, torture

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


def test_a_failover_ends_with_the_first_write_that_was_begun_behind_it() -> None:
    losses = [
        Loss("killed", "metadata", 10.0),
        Loss("killed", "offset-0", 10.0),
        Loss("killed", "metadata", 20.0),
        Loss("killed", "metadata", 30.0),
        Loss("stopped", "metadata", 40.0),
    ]
    acknowledged = [
        Acknowledged("metadata", 9.9, 10.1),  # may have been on its way when the leader died
        Acknowledged("metadata", 10.1, 12.0),
        Acknowledged("metadata", 10.1, 11.0),
        Acknowledged("offset-0", 10.5, 12.0),
        Acknowledged("metadata", 21.0, 33.0),  # two failovers in one: it counts for none
        Acknowledged("metadata", 31.0, 36.0),
        Acknowledged("metadata", 40.0, 40.5),
    ]
    assert failover_times(losses, acknowledged) == [
        "killed: first write acknowledged after 2.00 s (median), 6.00 s (longest) of 3",
        "stopped: first write acknowledged after 0.50 s (median), 0.50 s (longest) of 1",
    ]


@pytest.mark.timeout(600)
@pytest.mark.at_the_end
def test_nothing_acknowledged_is_lost_when_processes_die_for_a_minute(
    record_property: Callable[[str, object], None],
) -> None:
    outcome = torture_directory() / "outcome"
    wait_until(outcome.exists, "the run ends", seconds=500)
    assert outcome.read_text() == "ok"
    for line in (torture_directory() / "report").read_text().splitlines():
        record_property("measured", line)
    shutil.rmtree(torture_directory())


@pytest.mark.soak
@pytest.mark.timeout(1_500)
def test_ten_minutes_of_trouble(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    writers, report = torture(tmp_path, seconds=600, seed=2)
    for line in report:
        record_property("measured", line)
    assert all(writer.longest_s < 60 for writer in writers)
