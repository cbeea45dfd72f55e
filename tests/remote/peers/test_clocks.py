"""A node that doubts its clock asks the others of its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.remote.peers.test_forwarding import HERE, THERE, Pair

from penstock.errors import DeadlineError
from penstock.platform.clock import SystemClock
from penstock.platform.clock_guard import GuardedClock
from penstock.remote.peers.clocks import PeerClocks
from penstock.remote.peers.connections import ClientConnectionManager
from penstock.testing import FaultyDisk, ManualClock

DAY_MS = 86_400_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def after_ten_days(now_ms: int) -> GuardedClock:
    """Return the clock of a machine that was off for ten days, if `now_ms` is right."""
    disk = FaultyDisk()
    disk.make_directory("data")
    GuardedClock(ManualClock(now_ms - 10 * DAY_MS), disk, "data/clock").save()
    clock = GuardedClock(ManualClock(now_ms), disk, "data/clock")
    assert clock.status().held
    return clock


def test_another_node_vouches_for_a_time_that_is_right(pair: Pair) -> None:
    clock = after_ten_days(SystemClock().now_ms())
    with closing(PeerClocks(clock, pair.forwarder, HERE, interval_s=3_600)) as peers:
        assert pair.forwarder.nodes() == [THERE]
        peers.compare()
    assert not clock.status().held


def test_another_node_does_not_vouch_for_a_time_that_is_wrong(pair: Pair) -> None:
    clock = after_ten_days(SystemClock().now_ms() + 10 * DAY_MS)
    with closing(PeerClocks(clock, pair.forwarder, HERE, interval_s=3_600)) as peers:
        peers.compare()
    assert clock.status().held


def test_nodes_that_do_not_answer_decide_nothing() -> None:
    class Silent(ClientConnectionManager):
        def nodes(self) -> list[int]:
            return [HERE, THERE]

        def clock_of(self, node_id: int) -> None:  # type: ignore[override]  # it never returns
            raise DeadlineError(f"node {node_id} does not answer")

    clock = after_ten_days(SystemClock().now_ms())
    with closing(PeerClocks(clock, Silent(), HERE, interval_s=3_600)) as peers:
        peers.compare()
    assert clock.status().held
