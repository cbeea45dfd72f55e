"""The internal port of a node without Raft: whom it accepts, and who accepts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.network.two_nodes import Inbox

from penstock.meta.raft.network.credentials import Credentials
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    PROTOCOL,
    ChannelName,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
)
from penstock.meta.raft.network.peer_checks import check_data_channel, open_connection
from penstock.meta.raft.network.transport import call_node
from penstock.meta.remote.data_port import DataListen, DataPort
from penstock.meta.state.constants import DATA_PEERS_ROLE, INTERNAL_LISTENER
from penstock.meta.state.model import Member, Node
from penstock.meta.storage.log_format import VERSION, Identity

SECRET = "the secret of all ports"


class Port(DataPort):
    """Node `number` in its run `boot`, registered under the epoch `epoch`."""

    def __init__(self, number: int, boot: str = "b1", secret: str = SECRET) -> None:
        self.number, self.epoch = number, 10
        self.credentials = Credentials(
            Identity(VERSION, "the cluster", number, 1, boot),
            (secret,),
            now_s=lambda: 0,
            entropy=os.urandom,
        )
        listen = DataListen("127.0.0.1", 0, "127.0.0.1", (secret,))
        super().__init__(self.credentials, listen, lambda: self.epoch)
        self.transport.start()
        self.inbox = Inbox(self.transport.data.channel("replicate"))

    @property
    def node(self) -> Node:
        return Node(
            node_id=self.number,
            address="",
            listeners={INTERNAL_LISTENER: f"127.0.0.1:{self.transport.port}"},
            roles=(DATA_PEERS_ROLE,),
            boot_id=self.credentials.identity.incarnation,
            epoch=self.epoch,
            status="online",
            registered_at_ms=0,
        )

    def answer_to(
        self, other: Port, *, channel: ChannelName = "replicate", epoch: int = 10
    ) -> HandshakeAccepted | HandshakeRejected:
        """Return what this port answers to a connection of another one."""
        member = Member(
            node_id=self.number,
            address="",
            incarnation=self.credentials.identity.incarnation,
        )
        opener = open_connection(other.credentials, member, channel, epoch)
        answer = call_node(f"127.0.0.1:{self.transport.port}", opener)
        assert isinstance(answer, HandshakeAccepted | HandshakeRejected)
        return answer


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    with ExitStack() as stack:
        made: list[Port] = []
        for number in (4, 5):
            made.append(Port(number))
            stack.callback(made[-1].transport.close)
        yield made


def introduce(*ports: Port) -> None:
    nodes = [port.node for port in ports]
    for port in ports:
        port.set_nodes(nodes, [])


def reason(answer: HandshakeAccepted | HandshakeRejected) -> str:
    return answer.reason if isinstance(answer, HandshakeRejected) else "accepted"


def test_two_nodes_without_raft_exchange_messages(ports: list[Port]) -> None:
    four, five = ports
    introduce(four, five)
    four.inbox.connect(5)
    four.transport.data.channel("replicate").send(5, b"a record")
    wait_until(lambda: (4, b"a record") in five.inbox.received, "it arrives")
    five.inbox.connect(4)
    assert four.transport.probe(5) == "up"
    five.transport.close()
    wait_until(lambda: four.transport.probe(5) == "refused", "its end is seen")


def test_only_a_known_run_under_its_last_registration_is_accepted(ports: list[Port]) -> None:
    four, five = ports
    assert "does not know this directory of node 5" in reason(four.answer_to(five))
    introduce(four, five)
    assert reason(four.answer_to(five)) == "accepted"
    assert "connects with the broker epoch 9; its last registration has 10" in reason(
        four.answer_to(five, epoch=9)
    )
    assert "takes part in no Raft group" in reason(four.answer_to(five, channel="raft"))
    five.epoch = 20
    introduce(four, five)
    assert "broker epoch 10; its last registration has 20" in reason(four.answer_to(five))


def test_a_stranger_and_a_node_that_joins_are_refused(ports: list[Port]) -> None:
    four, _ = ports
    stranger = Port(5, secret="another secret of 16")
    try:
        introduce(four, stranger)
        assert "does not know this cluster's key" in reason(four.answer_to(stranger))
    finally:
        stranger.transport.close()
    join = JoinRequest(PROTOCOL, 7, "127.0.0.1:1", "x", os.urandom(32))
    key = four.credentials.join_with()[2]
    answer = call_node(f"127.0.0.1:{four.transport.port}", Opener(join, key))
    assert answer == HandshakeRejected("node 4 has no role `meta`; ask a node that has it")


def test_connections_of_an_earlier_run_end_when_a_later_one_is_registered(
    ports: list[Port],
) -> None:
    four, five = ports
    introduce(four, five)
    five.inbox.connect(4)
    four.inbox.lost.clear()
    again = Port(5, boot="b2")
    try:
        again.epoch = 20
        introduce(four, again)
        wait_until(lambda: any(node == 5 for node, _ in four.inbox.lost), "the earlier one is cut")
        again.inbox.connect(4)
        refused = four.answer_to(five)
        assert "its last registration has 20" in reason(refused)
    finally:
        again.transport.close()


def test_a_run_that_is_newer_than_what_is_known_is_asked_to_wait() -> None:
    mine = Identity(VERSION, "c", 1, 1, "i")
    known = Member(node_id=4, address="", incarnation="b1")
    hello = ConnectRequest(PROTOCOL, "", 4, "b2", 1, "", b"", "replicate", 20)
    assert str(check_data_channel(mine, hello, known, 10)).endswith(" yet")
