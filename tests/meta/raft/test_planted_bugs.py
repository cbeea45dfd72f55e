"""Mistakes that lost metadata in other systems, planted into a group: random histories must find
each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from tests.meta.raft.random_history import RandomHistory
from tests.meta.raft.simulated_cluster import Append, Appended, Appends

from penstock.meta.raft.group.pending_requests import Proposal
from penstock.meta.raft.group.raft_group import RaftGroup

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

Plant = Callable[[pytest.MonkeyPatch], None]
Group = RaftGroup[Append, Appended]
SEEDS_MAX = 200
"""How many histories a planted bug may survive."""


def acknowledge_before_a_majority_has_it(patch: pytest.MonkeyPatch) -> None:
    """A topic would be usable before its metadata is replicated."""
    original = Group._hand_over

    def hand_over(self: Group, proposal: Proposal[Append, Appended]) -> bool:
        is_proposed = original(self, proposal)
        if is_proposed and self.is_leader and not proposal.changes:
            for one in proposal.members or [proposal]:
                if one.data:
                    one.done(Appended(Appends().decode(one.data).value, True))
        return is_proposed

    patch.setattr(RaftGroup, "_hand_over", hand_over)


def read_without_asking_a_majority(patch: pytest.MonkeyPatch) -> None:
    def read(self: Group, done: Callable[[None], None]) -> None:
        done(None)

    patch.setattr(RaftGroup, "read", read)


def answer_before_the_log_is_on_the_device(patch: pytest.MonkeyPatch) -> None:
    original = Group.collect

    def collect(self: Group, *arguments: object) -> bool:
        original(self, *arguments)  # type: ignore[arg-type]  # passed on unchanged
        return False

    patch.setattr(RaftGroup, "collect", collect)


@pytest.mark.parametrize(
    "plant",
    [
        acknowledge_before_a_majority_has_it,
        read_without_asking_a_majority,
        answer_before_the_log_is_on_the_device,
    ],
    ids=lambda plant: plant.__name__,
)
def test_random_histories_find_a_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            RandomHistory(seed).play(ticks=120)
        except AssertionError as violation:
            sys.stderr.write(f"{plant.__name__}: seed {seed}: {violation}\n")
            return
    pytest.fail(f"{SEEDS_MAX} histories passed with the bug")
