"""Where the leaders of the Raft groups go, decided from what a leader knows of its members."""

from __future__ import annotations

from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.members.membership import promotions, transfers
from penstock.meta.storage import log_format as fmt

Progress = tuple[int, int, int, str, bool]


def led(
    name: str,
    progress: list[Progress],
    *,
    learners: tuple[int, ...] = (),
    last: int = 500,
) -> RaftStatus:
    voters = tuple(node for node in (1, 2, 3) if node not in learners)
    return RaftStatus(
        name=name,
        role="leader",
        term=2,
        leader=1,
        commit=last,
        applied=last,
        first=1,
        last=last,
        configuration=fmt.Configuration(voters=voters, learners=learners),
        progress=tuple(progress),
    )


def of(node: int, matched: int, state: str, *, is_active: bool = True) -> Progress:
    return node, matched, matched + 1, state, is_active


ITSELF = of(1, 500, "replicate")


def test_an_idle_offset_group_leaves_the_metadata_leader_for_a_member_that_is_probed() -> None:
    metadata = led("metadata", [ITSELF, of(2, 500, "replicate"), of(3, 500, "replicate")])
    offsets = led("offset-0", [ITSELF, of(2, 500, "probe"), of(3, 0, "probe", is_active=False)])
    assert transfers(1, [metadata, offsets]) == [("offset-0", 2)]


def test_a_member_that_lacks_entries_is_not_given_the_lead_while_it_is_probed() -> None:
    metadata = led("metadata", [ITSELF, of(2, 500, "replicate"), of(3, 500, "replicate")])
    offsets = led("offset-0", [ITSELF, of(2, 499, "probe"), of(3, 499, "snapshot")])
    assert transfers(1, [metadata, offsets]) == []
    nearly = led("offset-0", [ITSELF, of(2, 499, "replicate"), of(3, 100, "replicate")])
    assert transfers(1, [metadata, nearly]) == [("offset-0", 2)]


def test_a_learner_with_the_whole_log_votes_even_while_it_is_probed() -> None:
    status = led("offset-0", [ITSELF, of(2, 500, "probe")], learners=(2, 3))
    assert promotions(status) == [2]
