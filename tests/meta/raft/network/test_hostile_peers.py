"""Strangers, forgers and old machines at the internal port of a real cluster."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from zlib import crc32

import pytest
from msgspec import msgpack
from tests.meta.raft.cluster_in_process import ClusterInProcess, send_to, wait_until

from penstock.errors import BadRequestError, DeadlineError, SettingsError
from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.raft.network import connections
from penstock.meta.raft.network.credentials import draw_incarnation, load_stored, put_stored
from penstock.meta.raft.network.handshake import Opener, cluster_tag, mac_of
from penstock.meta.raft.network.messages import (
    HANDSHAKE_SIZE_MAX,
    NONCE_SIZE,
    PROTOCOL,
    Answer,
    Challenge,
    ConnectRequest,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    PeerStatus,
    StatusRequest,
    decode_handshake,
    pack_frame,
    pack_handshake,
)
from penstock.meta.raft.network.transport import PENDING_MAX, call_node
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import RocksDatabase
from penstock.platform.rocksdb.changes import Batch

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterInProcess]:
    """Three nodes that were given no secret."""
    with ClusterInProcess(tmp_path, secrets=()) as made:
        made.start_all()
        yield made


def old_frame(message: list[object]) -> bytes:
    data = msgpack.encode(message)
    return struct.pack(">II", len(data), crc32(data)) + data


def nonce() -> bytes:
    return os.urandom(NONCE_SIZE)


def public_ask(address: str) -> PeerStatus:
    key = b"penstock: no secret is configured"
    answer = call_node(address, Opener(StatusRequest(PROTOCOL, 99, nonce()), key))
    assert isinstance(answer, PeerStatus)
    return answer


def stranger_joins(address: str, node: int, at: str = "127.0.0.1:1") -> Answer:
    """Do what a fresh node without a token does."""
    incarnation, seed = draw_incarnation(time.time_ns() // 1_000_000, os.urandom)
    request = JoinRequest(PROTOCOL, node, at, incarnation, nonce(), "", seed)
    return call_node(address, Opener(request, mac_of(seed, b"seed")), seconds=20)


def refusals_of_a_stranger(cluster: ClusterInProcess, node: int, at: str) -> list[str]:
    found = [
        stranger_joins(cluster.addresses[other], node, at)
        for other in cluster.clients
        if other != node
    ]
    assert all(isinstance(one, HandshakeRejected) for one in found)
    return [one.reason for one in found if isinstance(one, HandshakeRejected)]


def incarnations(cluster: ClusterInProcess, node: int) -> dict[int, str]:
    return {one.node_id: one.incarnation for one in cluster.clients[node].members}


def known_members(cluster: ClusterInProcess, node: int) -> dict[int, str]:
    """Return the members as a node knows them when all of them are recorded."""
    wait_until(lambda: all(incarnations(cluster, node).values()), "the members are recorded")
    return incarnations(cluster, node)


def check_untouched(cluster: ClusterInProcess, before: dict[int, str]) -> None:
    for node, client in cluster.clients.items():
        assert known_members(cluster, node) == before
        for status in client.raft_status:
            assert set(status.configuration.voters) == {1, 2, 3}


def test_a_stranger_cannot_expel_a_live_member(cluster: ClusterInProcess) -> None:
    leader = cluster.leader()
    before = known_members(cluster, leader)
    victim = next(node for node in (3, 2) if node != leader)
    # As a release spoke that knew no keys.
    for address in cluster.addresses.values():
        for message in ([13, 1, 99], [15, 1, "c", victim, "127.0.0.1:1", "evil"]):
            answered = send_to(address, old_frame(list(message)))
            (frame,) = FrameReader().feed(answered)
            refusal = decode_handshake(frame)
            assert isinstance(refusal, HandshakeRejected)
            assert "protocol 2" in refusal.reason
    # As this release speaks.
    for at in ("127.0.0.1:1", cluster.addresses[victim]):
        reasons = refusals_of_a_stranger(cluster, victim, at)
        assert any("is a live member" in reason for reason in reasons)
    check_untouched(cluster, before)
    cluster.clients[leader].create_topic("still-there")


def test_a_stranger_cannot_take_the_place_of_a_member_that_is_away(
    cluster: ClusterInProcess,
) -> None:
    leader = cluster.leader()
    before = known_members(cluster, leader)
    victim = next(node for node in (3, 2) if node != leader)
    cluster.stop(victim)

    def is_found_silent() -> bool:
        reasons = refusals_of_a_stranger(cluster, victim, cluster.addresses[victim])
        return any("was a member with another data directory" in reason for reason in reasons)

    wait_until(is_found_silent, "the member is known to be away")
    cluster.start(victim)
    check_untouched(cluster, before)


def test_a_stranger_cannot_become_a_new_member(cluster: ClusterInProcess) -> None:
    reasons = refusals_of_a_stranger(cluster, 4, "127.0.0.1:1")
    assert any("not among the node.peers of this cluster" in reason for reason in reasons)
    assert any("penstock cluster add 4 127.0.0.1:1" in reason for reason in reasons)
    status = public_ask(cluster.addresses[1])
    assert status.is_bootstrapped
    cluster_id = cluster.clients[1].node.identity.cluster_id
    # What a stranger may ask reveals neither the cluster's id nor a key.
    assert cluster_id not in repr(status)


def test_a_configured_peer_is_taken_in_only_from_its_own_address(tmp_path: Path) -> None:
    """A single node grows. A stranger is faster than the second node, and elsewhere."""
    with ClusterInProcess(tmp_path, nodes=2, secrets=()) as cluster:
        first = cluster.start(1, peers=(cluster.peers[0],))
        first.close()
        cluster.clients.clear()
        cluster.start(1)
        cluster.wait_for_voters({1})
        wait_until(lambda: cluster.leader() == 1, "it leads")
        reasons = refusals_of_a_stranger(cluster, 2, cluster.addresses[2])
        assert "does not answer as the node that wants to join" in reasons[0]
        cluster.start(2)
        cluster.wait_for_voters({1, 2})


def test_a_wiped_node_joins_again_with_a_token_and_not_without(cluster: ClusterInProcess) -> None:
    cluster.clients[1].create_topic("orders")
    cluster.stop(3)
    shutil.rmtree(cluster.directory / "node-3")
    stopping = threading.Event()
    refused: list[BaseException] = []

    def start_without() -> None:
        place = Place(node_id=3, peers=cluster.peers)
        try:
            RaftMetaClient.open(str(cluster.directory / "node-3"), place, stopping=stopping)
        except DeadlineError as error:
            refused.append(error)

    thread = threading.Thread(target=start_without)
    thread.start()
    time.sleep(4)
    stopping.set()
    thread.join(30)
    assert len(refused) == 1
    token, problem = cluster.clients[1].make_join_token(3, cluster.addresses[3])
    assert problem
    back = cluster.start(3, token=token)
    cluster.wait_for_voters({1, 2, 3})
    assert back.get_topic("orders") is not None
    # The token is used up.
    cluster.stop(3)
    shutil.rmtree(cluster.directory / "node-3")
    public, _, secret = token.rpartition(".")

    def is_used_up() -> bool:
        incarnation, _ = draw_incarnation(time.time_ns() // 1_000_000, os.urandom)
        request = JoinRequest(PROTOCOL, 3, cluster.addresses[3], incarnation, nonce(), public)
        found = [
            call_node(cluster.addresses[node], Opener(request, bytes.fromhex(secret)), seconds=20)
            for node in (1, 2)
        ]
        assert all(isinstance(one, HandshakeRejected) for one in found)
        return any("was used already" in repr(one) for one in found)

    wait_until(is_used_up, "the old incarnation is silent")


def test_an_old_machine_beside_its_replacement_is_refused(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        cluster.stop(3)
        shutil.move(tmp_path / "node-3", tmp_path / "old-3")
        cluster.start(3)
        cluster.wait_for_voters({1, 2, 3})
        incarnations = {one.node_id: one.incarnation for one in cluster.clients[1].members}
        with closing(RocksDatabase.open(str(tmp_path / "old-3"), fmt.FAMILIES)) as database:
            row = database.get(fmt.META_LOG, fmt.IDENTITY_KEY)
            assert row is not None
            old = fmt.decode_identity(row)
        assert old.incarnation < incarnations[3]
        hello = ConnectRequest(
            PROTOCOL,
            cluster_tag(old.cluster_id),
            3,
            old.incarnation,
            1,
            incarnations[1],
            nonce(),
        )
        key = cluster.clients[1]._credentials.hello_key
        answer = call_node(cluster.addresses[1], Opener(hello, key))
        assert isinstance(answer, HandshakeRejected)
        assert "another data directory of node 3 has taken its place" in answer.reason
        cluster.clients[1].create_topic("goes-on")


def test_connections_of_a_directory_that_was_replaced_are_cut(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        client = cluster.clients[1]
        mine = client.node.identity
        stale = ConnectRequest(PROTOCOL, cluster_tag(mine.cluster_id), 9, "A", 1, "", nonce())
        opener = Opener(stale, client._credentials.hello_key)
        host, _, port = cluster.addresses[1].rpartition(":")
        with closing(socket.create_connection((host, int(port)), 10)) as ghost:
            ghost.sendall(pack_frame(opener.first))
            reader = FrameReader()
            while opener.answer is None:
                for frame in reader.feed(ghost.recv(65_536)):
                    following = opener.receive(frame)
                    if following is not None:
                        ghost.sendall(pack_frame(following))
            assert isinstance(opener.answer, HandshakeAccepted)
            client.membership._record(
                type(client.members[0])(node_id=9, address="127.0.0.1:1", incarnation="B")
            )
            ghost.settimeout(20)
            with suppress(ConnectionError):
                assert ghost.recv(1) == b""


def test_forged_oversized_and_half_frames_harm_no_node(cluster: ClusterInProcess) -> None:
    client, address = cluster.clients[1], cluster.addresses[1]
    hello = ConnectRequest(PROTOCOL, "x" * 32, 2, "B", 1, "", nonce())
    large = pack_frame(b"\0" * (HANDSHAKE_SIZE_MAX + 1))
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n" * 9,
        b"\xff" * 64,
        pack_frame(b"\xc1"),
        b"\0" * 8,
        large,
        struct.pack(">II", 0xFFFFFFFF, 0),
        pack_handshake(Challenge(nonce())),
        pack_handshake(HandshakeAccepted("c", 1)),
        pack_handshake(hello) * 2,
        pack_handshake(hello) + pack_frame(b"no proof"),
        pack_handshake(hello)[:-1] + b"\0",
    ):
        send_to(address, garbage)
    with ExitStack() as stack:
        host, _, port = address.rpartition(":")
        for _ in range(5):
            half = stack.enter_context(socket.create_connection((host, int(port)), 10))
            half.sendall(pack_handshake(hello)[:20])
        client.create_topic("still-there")
    assert client.failure is None


def test_idle_handshakes_are_closed_and_do_not_keep_members_out(
    cluster: ClusterInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 1.0)
    address = cluster.addresses[1]
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection((host, int(port)), 10))
            for _ in range(PENDING_MAX * 2)
        ]
        assert public_ask(address).is_bootstrapped
        assert len(cluster.clients[1]._transport.pending) <= PENDING_MAX
        idle[-1].settimeout(20)
        with suppress(ConnectionError):
            assert idle[-1].recv(1) == b""
        # A handshake that is dripped in does not last longer.
        slow = stack.enter_context(socket.create_connection((host, int(port)), 10))
        wait_until(lambda: not _takes(slow), "it is closed", 30)


def _takes(connection: socket.socket) -> bool:
    time.sleep(0.2)
    try:
        connection.sendall(b"\0")
    except ConnectionError:
        return False
    return True


def test_a_node_without_the_secret_is_kept_out(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        key = b"penstock: no secret is configured"
        answer = call_node(cluster.addresses[1], Opener(StatusRequest(PROTOCOL, 9, nonce()), key))
        assert isinstance(answer, HandshakeRejected)
        assert "node.secret_file must be the same on all nodes" in answer.reason
        with pytest.raises(BadRequestError, match="has a secret"):
            cluster.clients[1]._credentials.make_token(4, "h:1", "")
        assert cluster.clients[1].make_join_token(4, "127.0.0.1:1")[0] == ""
        with pytest.raises(SettingsError):
            cluster.clients[1].make_join_token(4, "x")


def test_a_cluster_from_before_there_were_keys_goes_on(cluster: ClusterInProcess) -> None:
    cluster.clients[1].create_topic("orders")
    for node in (1, 2, 3):
        cluster.stop(node)
        path = str(cluster.directory / f"node-{node}")
        with closing(RocksDatabase.open(path, fmt.FAMILIES)) as database:
            assert load_stored(database).key
            batch = Batch()
            put_stored(batch, type(load_stored(database))())
            database.write(batch)
            database.sync()
    cluster.start_all()
    for client in cluster.clients.values():
        assert client.get_topic("orders") is not None
        assert client._credentials.is_weak
    victim = next(node for node in (3, 2) if node != cluster.leader())
    reasons = refusals_of_a_stranger(cluster, victim, cluster.addresses[victim])
    assert any("is a live member" in reason for reason in reasons)
