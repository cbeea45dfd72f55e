"""The channels `replicate` and `forward` between two transports with real sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial

import pytest
from msgspec import Struct, msgpack
from tests.meta.raft.cluster_in_process import send_to, wait_until
from tests.meta.raft.network.two_nodes import KEY, Host, Inbox, TwoNodes, in_thread

from penstock.engine.replication import PeerChannel
from penstock.errors import BadRequestError
from penstock.meta.raft.network import connections, peer_link
from penstock.meta.raft.network.handshake import Acceptor, Opener
from penstock.meta.raft.network.messages import (
    DATA_FRAME_SIZE_MAX,
    FRAME_VERSION,
    NONCE_SIZE,
    PROTOCOL,
    Answer,
    ConnectRequest,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    decode_handshake,
    pack_frame,
)
from penstock.meta.raft.network.transport import Transport
from penstock.meta.state.model import Member


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    made = TwoNodes()
    yield made
    made.close()


def bodies(inbox: Inbox) -> list[bytes]:
    return [data for _, data in list(inbox.received) if data != b"hello"]


def greet(
    port: int, channel: str, *, node: int = 1, version: int = FRAME_VERSION, incarnation: str = "x"
) -> tuple[socket.socket, Opener]:
    """Do the handshake of a node by hand."""
    nonce = os.urandom(NONCE_SIZE)
    hello = ConnectRequest(PROTOCOL, "c", node, incarnation, 2, "x", nonce, channel, 1, version)
    opener = Opener(hello, KEY)
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(pack_frame(opener.first))
    reader = FrameReader()
    while opener.answer is None:
        for frame in reader.feed(connection.recv(65_536)):
            following = opener.receive(frame)
            if following is not None:
                connection.sendall(pack_frame(following))
    return connection, opener


def is_cut(connection: socket.socket) -> bool:
    connection.settimeout(20)
    with suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_messages_pass_both_ways_and_the_first_send_opens_the_connection(nodes: TwoNodes) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    channel: PeerChannel = one.channel
    assert not channel.send(2, b"first")
    wait_until(lambda: one.connected == [2], "the connection stands")
    assert channel.send(2, b"fetch")
    wait_until(lambda: two.received == [(1, b"fetch")], "the message arrives")
    two.connect(1)
    assert two.channel.send(1, b"reply")
    wait_until(lambda: bodies(one) == [b"reply"], "the reply arrives")
    assert not one.channel.send(7, b"unknown node")


@pytest.mark.parametrize("size", [0, 1, 65_535, 131_060, 131_061, 262_144, 300_000, 9_000_001])
def test_messages_of_every_size_arrive_whole_and_in_order(nodes: TwoNodes, size: int) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    sent = [os.urandom(size), b"between", os.urandom(size), b"", os.urandom(7)]
    for data in sent:
        assert one.channel.send(2, data)
    wait_until(lambda: len(bodies(two)) == len(sent), "all arrive")
    assert bodies(two) == sent


def test_messages_of_many_threads_arrive_whole_and_in_the_order_of_each(nodes: TwoNodes) -> None:
    """Threads write to the socket themselves while nothing waits for it."""
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    sizes = (10, 70_000, 3, 900_000, 30, 300_000)

    def send(thread: int) -> None:
        for number in range(120):
            data = b"%d-%03d-" % (thread, number) + bytes(sizes[(thread + number) % len(sizes)])
            while not one.channel.send(2, data):
                time.sleep(0.001)

    threads = [in_thread(partial(send, thread)) for thread in range(4)]
    for thread in threads:
        thread.join(60)
    wait_until(lambda: len(bodies(two)) == 480, "all arrive", 60)
    found = bodies(two)
    for thread_number in range(4):
        own = [data for data in found if data.startswith(b"%d-" % thread_number)]
        assert [data[2:5] for data in own] == [b"%03d" % number for number in range(120)]
        assert all(not data[6:].strip(b"\0") for data in own)
    wait_until(lambda: not one.channel._links[2]._is_busy, "threads may write again")
    assert one.channel._links[2]._size == 0


def test_the_largest_message_arrives_and_a_larger_one_is_refused(nodes: TwoNodes) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    largest = bytes(DATA_FRAME_SIZE_MAX)
    assert one.channel.send(2, largest)
    wait_until(lambda: bodies(two) == [largest], "it arrives")
    with pytest.raises(BadRequestError, match="the limit of the channel 'replicate' is 33554432"):
        one.channel.send(2, largest + b"\0")


def test_ten_thousand_frames_arrive_in_order_while_another_channel_is_saturated(
    nodes: TwoNodes,
) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    busy, sink = nodes.inbox(1, "forward"), nodes.inbox(2, "forward")
    sink.channel.on_receive = lambda _node, _data: None
    one.connect(2)
    busy.connect(2)
    is_done = threading.Event()
    block = bytes(1 << 20)

    def saturate() -> None:
        while not is_done.is_set():
            if not busy.channel.send(2, block):
                time.sleep(0.001)

    thread = in_thread(saturate)
    try:
        for number in range(10_000):
            while not one.channel.send(2, b"%d" % number):
                time.sleep(0.001)
        wait_until(lambda: len(bodies(two)) == 10_000, "all arrive")
    finally:
        is_done.set()
        thread.join()
    assert bodies(two) == [b"%d" % number for number in range(10_000)]
    assert sink.channel.traffic.received > 0


def test_a_peer_that_stops_reading_costs_64_mb_at_most_and_raft_goes_on(nodes: TwoNodes) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    nodes.connect_raft()
    two.channel.pause(1)
    wait_until(lambda: two.received[-1:] == [(1, b"hello")], "the greeting is through")
    block = bytes(1 << 20)
    taken = refused = 0
    while taken < 300 and refused < 50:
        if one.channel.send(2, b"%3d" % taken + block):
            taken, refused = taken + 1, 0
        else:  # soon the sockets' buffers are full as well
            refused += 1
            time.sleep(0.01)
    link = one.channel._links[2]
    assert link._size <= peer_link.BUFFERED_MAX
    assert sum(map(len, link._outbox)) + len(link._rest) == link._size
    assert taken < 200
    assert one.channel.traffic.dropped > 0
    # The largest message finds no room either, and does not wait for it.
    assert not one.channel.send(2, bytes(DATA_FRAME_SIZE_MAX))
    for number in range(100):
        nodes.transports[1].send(2, b"%d" % number)
    wait_until(lambda: len(nodes.hosts[2].received) == 100, "Raft goes on")
    two.channel.resume(1)
    wait_until(lambda: len(bodies(two)) == taken, "what was taken arrives")
    assert [data[:3] for data in bodies(two)] == [b"%3d" % number for number in range(taken)]


def test_a_paused_node_is_delivered_no_message_until_it_resumes(nodes: TwoNodes) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)

    def take(node: int, data: bytes) -> None:
        two.received.append((node, data))
        two.channel.pause(node)

    def has_count(count: int) -> bool:
        return len(bodies(two)) == count

    wait_until(lambda: two.received == [(1, b"hello")], "the greeting is through")
    two.channel.on_receive = take
    sent = [b"%d" % number for number in range(50)]
    assert all(one.channel.send(2, data) for data in sent)
    for count in range(1, 6):
        wait_until(partial(has_count, count), "one more")
        time.sleep(0.05)
        assert bodies(two) == sent[:count]
        two.channel.resume(1)
    # A new connection of the same node is paused as well.
    wait_until(lambda: len(bodies(two)) == 6, "the sixth")
    connected = len(one.connected)
    two.channel._network.run_on_loop(lambda: two.channel._incoming[1].abort())
    wait_until(lambda: len(one.connected) > connected, "it is connected again")
    assert one.channel.send(2, b"after")
    time.sleep(0.1)
    assert len(bodies(two)) == 6
    two.channel.resume(1)
    wait_until(lambda: bodies(two)[6:] == [b"after"], "the rest went with its connection")


def test_the_end_of_a_peer_is_reported_at_once_and_its_return_too(nodes: TwoNodes) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    two.connect(1)
    nodes.connect_raft()
    nodes.transports[2].close()
    wait_until(lambda: bool(one.lost) and bool(nodes.hosts[1].lost), "the loss is reported")
    assert one.lost[0][0] == 2
    assert nodes.hosts[1].lost[0][0] == 2
    wait_until(lambda: not one.channel.send(2, b"x"), "messages are dropped")
    assert nodes.transports[1].probe(2) == "refused"
    connected = len(one.connected)
    port = nodes.transports[2].port
    nodes.start(2, port).set_members([nodes.member(1)])
    again = nodes.inbox(2)
    wait_until(lambda: len(one.connected) > connected, "it is connected again")
    assert one.channel.send(2, b"again")
    wait_until(lambda: bodies(again) == [b"again"], "it arrives")
    assert nodes.transports[1].probe(2) == "up"


def test_a_probe_says_silent_of_an_address_that_does_not_answer(nodes: TwoNodes) -> None:
    assert nodes.transports[1].probe(9) == "silent"
    with closing(socket.socket()) as full:
        # A listener whose queue is full: the kernel leaves further connections unanswered.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        member = Member(node_id=5, address=f"127.0.0.1:{address[1]}", incarnation="x")
        nodes.transports[1].set_members([nodes.member(2), member])
        wait_until(lambda: 5 in nodes.transports[1]._peers, "the member is known")
        assert nodes.transports[1].probe(5) == "silent"
        for one in waiting:
            one.close()


def test_a_flipped_byte_in_any_place_of_a_frame_closes_the_connection(nodes: TwoNodes) -> None:
    two = nodes.inbox(2)
    whole = pack_frame(b"one message of a peer", FRAME_VERSION)
    for place in range(len(whole)):
        connection, opener = greet(nodes.transports[2].port, "replicate")
        with closing(connection):
            assert isinstance(opener.answer, HandshakeAccepted)
            damaged = bytearray(whole)
            damaged[place] ^= 0x10
            connection.sendall(damaged + whole)
            assert is_cut(connection), f"byte {place}"
    assert two.received == []


def test_a_flipped_byte_in_a_frame_of_raft_closes_the_connection(nodes: TwoNodes) -> None:
    for version in (1, FRAME_VERSION):
        whole = pack_frame(b"one message of a peer", version)
        for place in range(len(whole)):
            if version == 1 and place in {1, 2, 3}:
                continue  # a greater size: an earlier release waits for the rest of it
            connection, opener = greet(nodes.transports[2].port, "raft", version=version)
            with closing(connection):
                assert isinstance(opener.answer, HandshakeAccepted)
                assert opener.answer.frame_version == version
                damaged = bytearray(whole)
                damaged[place] ^= 0x10
                connection.sendall(damaged + whole)
                assert is_cut(connection), f"version {version}, byte {place}"
    assert nodes.hosts[2].received == []


def test_garbage_after_a_handshake_and_before_it_harms_no_other_connection(
    nodes: TwoNodes,
) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    address = f"127.0.0.1:{nodes.transports[2].port}"
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"\xff" * 64, b"\0" * 64, os.urandom(4096)):
        send_to(address, garbage)
    assert one.channel.send(2, b"still here")
    wait_until(lambda: bodies(two) == [b"still here"], "the connection stands")
    connection, _ = greet(nodes.transports[2].port, "replicate")
    with closing(connection):
        connection.sendall(os.urandom(4096))
        assert is_cut(connection)
    # What is sent before the node knows that its connection is gone may be lost.
    wait_until(
        lambda: one.channel.send(2, b"back") and b"back" in bodies(two), "messages arrive again"
    )


def test_an_unknown_channel_is_refused_with_a_sentence(nodes: TwoNodes) -> None:
    nodes.inbox(2)
    for name, sentence in (
        ("gossip", "node 2 does not know the channel 'gossip' of the internal port, only raft, "),
        ("forward", "node 2 does not serve the channel 'forward' yet"),
    ):
        connection, opener = greet(nodes.transports[2].port, name)
        with closing(connection):
            assert isinstance(opener.answer, HandshakeRejected)
            assert sentence in opener.answer.reason
            assert is_cut(connection)
    connection, opener = greet(nodes.transports[2].port, "replicate", version=1)
    with closing(connection):
        assert "has frames of version 2; node 1 writes version 1" in repr(opener.answer)


def test_a_node_or_a_directory_that_is_not_a_member_gets_no_message_through(
    nodes: TwoNodes,
) -> None:
    two = nodes.inbox(2)
    for node, incarnation in ((9, "x"), (1, "w")):
        connection, opener = greet(
            nodes.transports[2].port, "replicate", node=node, incarnation=incarnation
        )
        with closing(connection):
            assert isinstance(opener.answer, HandshakeAccepted)  # this host checks nothing
            with suppress(ConnectionError):
                connection.sendall(pack_frame(b"a forged acknowledgement", FRAME_VERSION))
            assert is_cut(connection)
    assert two.received == []


def test_a_second_connection_of_a_node_replaces_the_first(nodes: TwoNodes) -> None:
    two = nodes.inbox(2)
    first, _ = greet(nodes.transports[2].port, "replicate")
    with closing(first):
        first.sendall(pack_frame(b"1", FRAME_VERSION))
        wait_until(lambda: bodies(two) == [b"1"], "the first is received")
        second, _ = greet(nodes.transports[2].port, "replicate")
        with closing(second):
            assert is_cut(first)
            second.sendall(pack_frame(b"2", FRAME_VERSION))
            wait_until(lambda: bodies(two) == [b"1", b"2"], "the second is received")


def test_connections_of_a_removed_member_are_closed(nodes: TwoNodes) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    two.connect(1)
    nodes.transports[2].set_members([])
    wait_until(lambda: not two.channel.send(1, b"x"), "nothing is sent to it")
    wait_until(lambda: not two.channel._incoming, "nothing is received from it")
    wait_until(lambda: bool(one.lost), "the other side notices")


def test_a_frame_that_waits_is_dropped_and_counted_when_the_connection_ends(
    nodes: TwoNodes,
) -> None:
    one, two = nodes.inbox(1), nodes.inbox(2)
    one.connect(2)
    two.channel.pause(1)
    block = bytes(8 << 20)
    while one.channel.send(2, block):
        pass
    dropped = one.channel.traffic.dropped
    nodes.transports[2].close()
    wait_until(lambda: bool(one.lost), "the loss is reported")
    wait_until(lambda: one.channel.traffic.dropped > dropped, "what waited is counted")
    assert one.channel._links[2]._size == 0


class OldConnectRequest(Struct, frozen=True, array_like=True, tag=20):
    """As earlier releases had it."""

    protocol: int
    cluster: str
    node_id: int
    incarnation: str
    to_node: int
    to_incarnation: str
    nonce: bytes


class OldHandshakeAccepted(Struct, frozen=True, array_like=True, tag=26):
    cluster_id: str = ""
    offset_groups: int = 0
    key: bytes = b""


def test_earlier_releases_read_the_handshake_and_theirs_is_read() -> None:
    hello = ConnectRequest(PROTOCOL, "c", 1, "x", 2, "x", b"n" * 32, "replicate", 7, 2)
    old = msgpack.decode(msgpack.encode(hello), type=OldConnectRequest)
    assert (old.node_id, old.to_node, old.nonce) == (1, 2, b"n" * 32)
    again = decode_handshake(msgpack.encode(old))
    assert isinstance(again, ConnectRequest)
    assert (again.channel, again.broker_epoch, again.frame_version) == ("raft", 0, 1)
    accepted = HandshakeAccepted(channel="replicate", frame_version=2)
    assert msgpack.decode(msgpack.encode(accepted), type=OldHandshakeAccepted).cluster_id == ""
    back = decode_handshake(msgpack.encode(OldHandshakeAccepted("c", 3, b"k")))
    assert back == HandshakeAccepted("c", 3, b"k", "raft", 1)


def test_a_node_of_an_earlier_release_is_connected_for_raft_only(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a node takes every connection for one of Raft, and its answer names no channel."""
    one, _ = nodes.inbox(1), nodes.inbox(2)
    seal = Acceptor.seal

    def seal_as_before(acceptor: Acceptor, answer: Answer) -> bytes:
        is_accepted = isinstance(answer, HandshakeAccepted)
        return seal(acceptor, HandshakeAccepted() if is_accepted else answer)

    monkeypatch.setattr(Acceptor, "seal", seal_as_before)
    monkeypatch.setattr(connections, "FRAME_VERSION", 1)
    monkeypatch.setattr(Transport, "check_channel", lambda *_: None)
    nodes.transports[1].set_members([])  # the connections from before
    nodes.introduce()
    nodes.connect_raft()
    nodes.transports[1].send(2, b"frame of version 1")
    wait_until(lambda: (1, b"frame of version 1") in nodes.hosts[2].received, "Raft passes")
    assert not one.channel.send(2, b"x")
    refusals: list[str] = []

    def is_refused() -> bool:
        link = one.channel._links.get(2)
        connection = None if link is None else link._connection
        refusals[:] = [] if connection is None else [connection.refusal]
        return refusals != [] and refusals[0] != ""

    wait_until(is_refused, "the channel is not used")
    assert refusals[0] == (
        "the node does not know the channel 'replicate' of its internal port: it runs an earlier "
        "release; update it"
    )
    assert one.connected == []


def test_a_node_that_writes_frames_of_version_1_is_understood(nodes: TwoNodes) -> None:
    nodes.hosts[1] = old = Host(1, frame_version=1)
    nodes.transports[1].host = old
    nodes.transports[1].set_members([])
    nodes.introduce()
    nodes.connect_raft()
    nodes.transports[1].send(2, b"old")
    wait_until(lambda: (1, b"old") in nodes.hosts[2].received, "it arrives")
    peer = nodes.transports[1]._peers[2]
    assert peer.connection is not None
    assert peer.connection.frame_version == 1
