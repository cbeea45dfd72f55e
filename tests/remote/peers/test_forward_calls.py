"""Calls over the channel `forward`: replies, errors, deadlines and bounds."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.protobuf.message import Message as WireMessage
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.network.two_nodes import TwoNodes, in_thread

from penstock.errors import (
    BadRequestError,
    BusyError,
    DeadlineError,
    NotLeaderError,
    NotSupportedError,
    StoreError,
)
from penstock.remote import storage_pb2 as pb
from penstock.remote.peers import forward_calls
from penstock.remote.peers.forward_calls import ForwardCalls


class Served:
    """What node 2 serves."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.begun = threading.Semaphore(0)
        self.count = 0

    def echo(self, data: bytes) -> WireMessage:
        self.count += 1
        return pb.JsonReply.FromString(data)

    def refuse(self, _data: bytes) -> WireMessage:
        raise NotLeaderError("orders_0", leader="3")

    def wait(self, data: bytes) -> WireMessage:
        self.begun.release()
        self.release.wait(60)
        return self.echo(data)

    def grow(self, _data: bytes) -> WireMessage:
        return pb.JsonReply(json="x" * (forward_calls.MESSAGE_SIZE_MAX + 1))


class Calls:
    def __init__(self) -> None:
        self.nodes = TwoNodes()
        self.served = Served()
        channels = {
            node: transport.data.channel("forward")
            for node, transport in self.nodes.transports.items()
        }
        methods = {
            "Echo": self.served.echo,
            "Refuse": self.served.refuse,
            "Wait": self.served.wait,
            "Grow": self.served.grow,
        }
        self.channel = channels[1]
        self.there = ForwardCalls(channels[2], methods, ThreadPoolExecutor(8))
        self.here = ForwardCalls(channels[1], {}, ThreadPoolExecutor(1))

    def connect(self) -> None:
        assert self.here.call(2, "Echo", b"", 5) is None, "the first call opens the connection"
        wait_until(lambda: self.channel.is_connected(2), "the channel stands")
        wait_until(lambda: self.there._channel.is_connected(1), "the other node knows it, too")

    def close(self) -> None:
        self.served.release.set()
        self.here.close()
        self.there.close(10)
        self.nodes.close()


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    made.connect()
    yield made
    made.close()


def packed(text: str) -> bytes:
    return pb.JsonReply(json=text).SerializeToString()


def test_replies_reach_their_callers(calls: Calls) -> None:
    def ask(number: int) -> bool:
        return calls.here.call(2, "Echo", packed(f"{number}"), 30) == packed(f"{number}")

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(500)))
    assert calls.here._pending == {}
    wait_until(lambda: calls.there._served == 0, "all threads are free")


def test_errors_keep_their_types_and_fields(calls: Calls) -> None:
    with pytest.raises(NotLeaderError, match="leader: 3") as found:
        calls.here.call(2, "Refuse", b"", 30)
    assert found.value.leader == "3"
    with pytest.raises(NotSupportedError, match="does not serve the forwarded method"):
        calls.here.call(2, "Unknown", b"", 30)
    with pytest.raises(BadRequestError, match="malformed request"):
        calls.here.call(2, "Echo", b"\xff", 30)
    with pytest.raises(NotSupportedError, match="the limit of a forwarded one is 32505856"):
        calls.here.call(2, "Grow", b"", 30)


def test_a_message_that_is_too_large_is_not_sent(calls: Calls) -> None:
    large = bytes(forward_calls.MESSAGE_SIZE_MAX + 1)
    assert calls.here.call(2, "Echo", large, 30) is None
    largest = packed("x" * (forward_calls.MESSAGE_SIZE_MAX - 100))
    assert calls.here.call(2, "Echo", largest, 60) == largest


def test_a_call_without_an_answer_in_time_has_an_unknown_outcome(calls: Calls) -> None:
    with pytest.raises(DeadlineError, match=r"node 2 did not answer within 0\.1 s; the outcome is"):
        calls.here.call(2, "Wait", packed("late"), 0.1)
    assert calls.here._pending == {}
    calls.served.release.set()  # the late answer finds no caller
    assert calls.here.call(2, "Echo", packed("next"), 30) == packed("next")


def test_a_request_whose_caller_has_given_up_is_not_served(calls: Calls) -> None:
    head = struct.pack(">BQIB", 1, 7_000, 0, 4)
    assert calls.channel.send(2, head + b"Echo" + packed("x"))
    assert calls.here.call(2, "Echo", packed("y"), 30) == packed("y")
    assert calls.served.count == 1


def test_a_lost_connection_ends_its_pending_calls(calls: Calls) -> None:
    errors: list[StoreError] = []

    def ask() -> None:
        try:
            calls.here.call(2, "Wait", packed("x"), 100)
        except StoreError as error:
            errors.append(error)

    threads = [in_thread(ask) for _ in range(3)]
    for _ in threads:
        assert calls.served.begun.acquire(timeout=30)
    calls.nodes.transports[2].close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in errors] == [DeadlineError] * 3
    assert "the connection with node 2 was lost; the outcome is unknown" in str(errors[0])
    assert calls.here.call(2, "Echo", packed("x"), 30) is None, "gRPC is to be used"


def test_served_calls_are_bounded(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_calls, "SERVED_MAX", 2)
    threads = [in_thread(lambda: _ask(calls)) for _ in range(2)]
    for _ in threads:
        assert calls.served.begun.acquire(timeout=30)
    with pytest.raises(BusyError, match="2 forwarded requests, the limit; try again"):
        calls.here.call(2, "Echo", packed("x"), 30)
    calls.served.release.set()
    for thread in threads:
        thread.join(30)
    wait_until(lambda: calls.there._served == 0, "the threads are free")
    assert calls.here.call(2, "Echo", packed("x"), 30) == packed("x")


def _ask(calls: Calls) -> None:
    calls.here.call(2, "Wait", packed("x"), 60)


def test_malformed_messages_harm_no_call(calls: Calls) -> None:
    for data in (b"\x01", b"\x09" + bytes(8), b"\x02" + bytes(8), b"\x03" + bytes(8) + b"\xff"):
        assert calls.channel.send(2, data)
        assert calls.there._channel.send(1, data)
    assert calls.channel.send(2, struct.pack(">BQIB", 1, 9_000, 1_000, 200) + b"Ec")
    assert calls.here.call(2, "Echo", packed("x"), 30) == packed("x")


def test_a_node_that_stops_refuses_new_calls_and_answers_those_it_serves(calls: Calls) -> None:
    replies: list[bytes | None] = []
    asking = in_thread(lambda: replies.append(calls.here.call(2, "Wait", packed("x"), 60)))
    assert calls.served.begun.acquire(timeout=30)
    stopping = in_thread(lambda: calls.there.close(30))
    wait_until(calls.there._stopping.is_set, "it stops")
    with pytest.raises(BusyError, match="the node stops"):
        calls.here.call(2, "Echo", packed("y"), 30)
    calls.served.release.set()
    asking.join(30)
    stopping.join(30)
    assert replies == [packed("x")]
