"""Proposals that wait together travel as one entry, and each gets its own answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import ValidationError
from tests.meta.raft.cluster_in_process import ClusterInProcess

from penstock.errors import ClosedError, DeadlineError
from penstock.meta.client import GroupName, GroupOffsets, OffsetEntry
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.raft.group.pending_requests import Proposal, Proposals
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.offsets.commands import OffsetRequest, SaveOffsets
from penstock.meta.state.offsets.machine import encode_request
from penstock.meta.storage import log_format as fmt

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

LEADER = (1, 1)


class Sent:
    """A group that takes proposals."""

    def __init__(self) -> None:
        self.proposals: Proposals[str, str] = Proposals(b"origin", deadline_ticks=5, group="g")
        self.entries: list[Proposal[str, str]] = []
        self.is_taking = True
        self.outcomes: dict[str, object] = {}

    def add(self, *texts: str, changes: tuple[tuple[int, int], ...] = ()) -> None:
        for text in texts:
            done = self._note(text)
            changed = partial(done, "changed")
            proposal: Proposal[str, str]
            proposal = Proposal(text.encode(), text, done, changes=changes, changed=changed)
            self.proposals.add(proposal)

    def _note(self, text: str) -> Callable[[object], None]:
        def done(outcome: object) -> None:
            assert text not in self.outcomes, "answered once"
            self.outcomes[text] = outcome

        return done

    def send(self, size_max: int = 100) -> bool:
        return self.proposals.send(LEADER, size_max, self._take)

    def _take(self, proposal: Proposal[str, str]) -> bool:
        if self.is_taking:
            self.entries.append(proposal)
        return self.is_taking

    @property
    def sent(self) -> list[list[bytes]]:
        return [fmt.unbundle(one.data) for one in self.entries]


def test_what_waits_at_the_same_moment_is_one_entry_and_each_is_answered() -> None:
    group = Sent()
    group.add("a", "b", "c")
    assert not group.send()
    group.add("d")
    group.send()
    assert group.sent == [[b"a", b"b", b"c"], [b"d"]]
    context = group.entries[0].context
    assert group.proposals.requests(context) == ["a", "b", "c"]
    group.proposals.answer(context, ["A", "B", "C"])
    assert group.proposals.requests(context) is None, "the same entry once more is a stranger's"
    assert group.outcomes == {"a": "A", "b": "B", "c": "C"}


def test_an_entry_has_a_bounded_size_and_changes_of_members_travel_alone() -> None:
    group = Sent()
    group.add("a" * 40, "b" * 40, "c" * 40, "d" * 300)
    assert group.send(), "the next turn goes on"
    assert [len(entry) for entry in group.sent] == [2]
    assert group.send()
    assert group.send() is False
    assert [len(entry) for entry in group.sent] == [2, 1, 1]
    group.add("x")
    group.add("change", changes=((0, 1),))
    group.add("y", "z")
    group.send()
    assert group.sent[3:] == [[b"x"], [b"change"], [b"y", b"z"]]
    for entry in group.entries[3:]:
        # Entries of other nodes, and requests of this one, are no changes that wait here.
        group.proposals.finish_change(entry.context)
        group.proposals.finish_change(b"of another node")
    assert group.outcomes == {"change": "changed"}
    group.proposals.refuse(ClosedError("the end"))
    assert group.outcomes["change"] == "changed"
    assert isinstance(group.outcomes["x"], ClosedError)


def test_what_nobody_takes_stays_together_and_is_sent_again_as_it_was() -> None:
    group = Sent()
    group.is_taking = False
    group.add("a", "b")
    assert not group.send()
    group.is_taking = True
    group.add("c")
    group.send()
    assert group.sent == [[b"a", b"b"], [b"c"]]
    group.proposals.tick((2, 3), is_leader=False)  # another leader: all may be lost
    group.send()
    assert group.sent[2:] == group.sent[:2]


def test_those_who_travel_together_are_refused_and_given_up_together() -> None:
    group = Sent()
    group.add("a", "b")
    group.send()
    for _ in range(6):
        group.proposals.tick(LEADER, is_leader=True)
    assert {type(one) for one in group.outcomes.values()} == {DeadlineError}
    group.outcomes.clear()
    group.add("c", "d")
    group.send()
    group.proposals.refuse(ClosedError("closed"))
    assert {type(one) for one in group.outcomes.values()} == {ClosedError}
    assert len(group.outcomes) == 2


def test_the_data_of_an_entry_is_one_request_or_several() -> None:
    for requests in ([b"\x93one"], [b"one", b"", b"two" * 1_000]):
        assert fmt.unbundle(fmt.bundle(requests)) == requests
    with pytest.raises(ValidationError, match="cut short"):
        fmt.unbundle(fmt.bundle([b"one", b"two"])[:-1])


def test_a_single_node_reads_entries_of_many_requests(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path, nodes=1) as cluster:
        cluster.start_all()
        client = cluster.clients[1]
        epoch = client.claim_groups([GroupName("default", "g")])[0].epoch
        before = client.raft_status[1].last
        groups = [
            GroupOffsets("default", "g", (OffsetEntry(f"s_{number}", number, epoch, 1, 1),))
            for number in range(50)
        ]
        requests = [encode_request(OffsetRequest(1, SaveOffsets((one,)))) for one in groups]
        reply = client.service().propose_many(pb.ProposeManyRequest(group=1, requests=requests))
        assert [one.error for one in reply.outcomes] == [""] * 50
        assert client.raft_status[1].last - before < 50, "they share entries"
    with StandaloneMetaClient.open(str(tmp_path / "node-1")) as single:
        found = single.get_offsets("default", "g")
    assert {shard: one.offset for shard, one in found.items()} == {
        f"s_{number}": number for number in range(50)
    }
