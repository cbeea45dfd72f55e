"""The transport by itself: what is sent while a connection stands arrives, whoever sends it."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.network.two_nodes import Host, TwoNodes

from penstock.meta.raft.network.transport import Transport


@pytest.fixture
def pair() -> Iterator[tuple[Transport, Host, Host]]:
    nodes = TwoNodes()
    yield nodes.transports[1], nodes.hosts[1], nodes.hosts[2]
    nodes.close()


def test_frames_of_many_threads_all_arrive_in_their_order(
    pair: tuple[Transport, Host, Host],
) -> None:
    transport, _, receiver = pair

    def is_connected() -> bool:
        transport.send(2, b"hello")
        return bool(receiver.received)

    wait_until(is_connected, "the connection stands")
    wait_until(lambda: receiver.received[-1] == (1, b"hello"), "greetings are through")
    del receiver.received[:]

    def send(thread: int) -> None:
        for number in range(5_000):
            transport.send(2, b"%d-%d" % (thread, number))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(
        lambda: len([one for one in receiver.received if one[1] != b"hello"]) == 20_000,
        "all frames arrive",
    )
    for thread_number in range(4):
        prefix = b"%d-" % thread_number
        own = [data for _, data in receiver.received if data.startswith(prefix)]
        assert own == [b"%d-%d" % (thread_number, number) for number in range(5_000)]


def test_a_peer_that_is_not_there_is_reported(pair: tuple[Transport, Host, Host]) -> None:
    transport, sender, _ = pair
    transport.send(9, b"nobody")
    wait_until(lambda: sender.unreached > 0, "the loss is reported")


def test_a_connection_that_comes_while_the_node_closes_is_closed_too() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(30):
            transport = Transport(Host(1), ("127.0.0.1", 0))
            transport.start()
            with ExitStack() as clients:
                for _ in range(4):
                    clients.enter_context(socket.create_connection(("127.0.0.1", transport.port)))
                transport.close()
            del transport
        gc.collect()
    assert [str(one.message) for one in told if one.category is ResourceWarning] == []
