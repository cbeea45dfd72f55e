"""Three processes that are killed, stopped and wiped under load: nothing acknowledged is lost.

The run of a minute waits most of the time. It begins before the first test, in processes of its own
(`conftest`), and its test comes last and asks for the outcome.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.conftest import torture_directory
from tests.meta.raft.torture import torture

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


@pytest.mark.timeout(600)
@pytest.mark.at_the_end
def test_nothing_acknowledged_is_lost_when_processes_die_for_a_minute() -> None:
    outcome = torture_directory() / "outcome"
    wait_until(outcome.exists, "the run ends", seconds=500)
    assert outcome.read_text() == "ok"
    shutil.rmtree(torture_directory())


@pytest.mark.soak
@pytest.mark.timeout(1_500)
def test_ten_minutes_of_trouble(tmp_path: Path) -> None:
    writers = torture(tmp_path, seconds=600, seed=2)
    assert all(writer.longest_s < 60 for writer in writers)
