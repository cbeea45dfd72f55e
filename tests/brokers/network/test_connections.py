"""Connections of clients that are slow, broken, hostile or many."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from dataclasses import replace

import pytest
from tests.brokers.network.serving import (
    LIMITS,
    LISTENER,
    Serving,
    read_all,
    read_exactly,
    serving,
    wait_until,
)

from penstock.brokers.network import Connection, NetworkServer
from penstock.errors import SetupError


def test_messages_may_come_byte_by_byte_and_many_in_one_packet() -> None:
    with serving() as one, one.connect() as client:
        for byte in b"first\n":
            client.sendall(bytes([byte]))
        assert read_exactly(client, 6) == b"first\n"
        client.sendall(b"more\n" * 10_000)
        assert read_exactly(client, 50_000) == b"more\n" * 10_000
        assert one.protocols[0].lines == [b"first"] + [b"more"] * 10_000


@pytest.mark.parametrize("seed", range(4))
def test_any_division_into_packets_gives_the_same_messages(seed: int) -> None:
    rng = random.Random(seed)
    lines = [rng.randbytes(rng.choice([0, 1, 100, 5_000, 70_000])) for _ in range(60)]
    lines = [line.replace(b"\n", b"") for line in lines]
    data = b"".join(line + b"\n" for line in lines)
    with serving() as one, one.connect() as client:
        client.setblocking(False)
        position, answers = 0, b""
        while len(answers) < len(data):
            end = min(len(data), position + rng.choice([1, 7, 1_000, 300_000]))
            with contextlib.suppress(BlockingIOError):
                position += client.send(data[position:end])
            with contextlib.suppress(BlockingIOError):
                answers += client.recv(1 << 20)
        assert answers == data
        assert one.protocols[0].lines == lines


def test_what_is_sent_in_one_turn_arrives_after_a_half_close() -> None:
    with serving() as one, one.connect() as client:
        client.sendall(b"a\nb\n")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) in {b"a\nb\n", b""}
        wait_until(lambda: one.protocols[0].reasons != [])
        assert one.protocols[0].lines == [b"a", b"b"]


def test_a_message_above_the_limit_ends_the_connection() -> None:
    limits = replace(LIMITS, message_size_max=100_000)
    with serving(limits) as one, one.connect() as client:
        client.sendall(b"x" * 99_999 + b"\n")
        assert read_exactly(client, 100_000)[-1:] == b"\n"
        client.sendall(b"x" * 200_001)
        assert read_all(client) == b""
        assert "100000" in one.end_reason()


def test_a_paused_connection_gets_its_messages_later_and_in_order() -> None:
    with serving() as one, one.connect() as client:
        client.sendall(b"pause 0.1\n" + b"x" * 300_000 + b"\nlast\n")
        expected = b"pause 0.1\n" + b"x" * 300_000 + b"\nlast\n"
        assert read_exactly(client, len(expected)) == expected


def test_the_last_bytes_arrive_although_the_client_still_sends() -> None:
    with serving() as one:
        for _ in range(20):
            with one.connect() as client:
                client.sendall(b"bye\n" + b"unread\n" * 50_000)
                assert read_all(client) == b"bye\n"
        wait_until(lambda: one.server.connection_count == 0)
        assert {reason for each in one.protocols for reason in each.reasons} == {"bye"}


def test_a_slow_client_receives_all_before_the_end() -> None:
    with serving() as one, one.connect() as client:
        client.sendall(b"large 8000000\nbye\n")
        time.sleep(3)  # longer than the wait for a client that has received everything
        assert read_all(client) == bytes(8_000_000) + b"bye\n"


def test_without_a_limit_slow_clients_are_waited_for() -> None:
    with serving(replace(LIMITS, slow_timeout_s=0)) as one, one.connect() as client:
        client.sendall(b"half a line")
        time.sleep(0.3)
        client.sendall(b"\n")
        assert read_exactly(client, 12) == b"half a line\n"


def test_an_error_of_the_protocol_ends_one_connection_only() -> None:
    with serving() as one, one.connect() as other, one.connect() as client:
        client.sendall(b"fail\n")
        assert read_all(client) == b""
        other.sendall(b"still here\n")
        assert read_exactly(other, 11) == b"still here\n"


def test_a_client_that_reads_nothing_is_not_served_further() -> None:
    limits = replace(LIMITS, unsent_high=100_000)
    with serving(limits) as one, one.connect() as client, one.connect() as other:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.sendall((b"y" * 9_999 + b"\n") * 20_000)
        other.sendall(b"other\n")
        assert read_exactly(other, 6) == b"other\n"
        slow = one.server.connections[0]
        assert slow.is_congested
        assert slow.unsent < 1 << 20
        client.settimeout(60)
        rest = len(one.protocols[0].lines) * 10_000
        while rest > 0:
            rest -= len(client.recv(min(rest, 1 << 20)))
        wait_until(lambda: one.protocols[0].writable_calls > 0)


def test_a_client_that_reads_too_slowly_is_disconnected() -> None:
    limits = replace(LIMITS, slow_timeout_s=0.3)
    with serving(limits) as one, one.connect() as client:
        client.sendall(b"large 20000000\n")
        wait_until(lambda: one.server.counters.closed_by_server["too slow"] == 1)
        assert one.server.connection_count == 0
        assert one.server.unsent_total == 0


def test_a_message_that_comes_too_slowly_ends_the_connection() -> None:
    limits = replace(LIMITS, slow_timeout_s=0.3)
    with serving(limits) as one, one.connect() as client, one.connect() as silent:
        client.settimeout(0.02)
        closed = False
        while not closed:
            try:
                client.sendall(b"z")
                closed = client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
        silent.sendall(b"nothing begun\n")
        assert read_exactly(silent, 14) == b"nothing begun\n"


def test_more_unsent_output_than_allowed_ends_the_connection() -> None:
    with serving(replace(LIMITS, unsent_max=1 << 20)) as one, one.connect() as client:
        client.sendall(b"large 50000000\n")
        wait_until(lambda: one.server.counters.closed_by_server["unsent output"] == 1)
        assert "1048576" in one.end_reason()
        assert one.server.unsent_total == 0


def test_unsent_output_of_all_clients_is_bounded() -> None:
    limits = replace(LIMITS, unsent_total_max=30_000_000)
    with serving(limits) as one:
        held = [one.connect() for _ in range(6)]
        for client in held:
            client.sendall(b"large 10000000\n")
        wait_until(lambda: one.server.counters.closed_by_server.total() > 0)
        wait_until(lambda: one.server.unsent_total <= 30_000_000)
        assert one.server.connection_count > 0
        for client in held:
            client.close()


def test_connections_above_the_limit_are_closed() -> None:
    with serving(replace(LIMITS, connections_max=2)) as one:
        with one.connect() as first, one.connect() as second, one.connect() as third:
            assert read_all(third) == b""
            first.sendall(b"1\n")
            assert read_exactly(first, 2) == b"1\n"
        wait_until(lambda: one.server.connection_count == 0)
        with one.connect() as again:
            again.sendall(b"2\n")
            assert read_exactly(again, 2) == b"2\n"
        assert second.fileno() == -1
        assert one.server.counters.refused["connections"] == 1


def test_connections_of_one_address_are_limited() -> None:
    with serving(replace(LIMITS, connections_per_address_max=1)) as one:
        with one.connect() as first, one.connect() as second:
            first.sendall(b"1\n")
            assert read_exactly(first, 2) == b"1\n"
            assert read_all(second) == b""
            source = ("127.0.0.2", 0)
            with socket.create_connection(("127.0.0.1", one.port), 60, source) as other:
                other.sendall(b"2\n")
                assert read_exactly(other, 2) == b"2\n"
        wait_until(lambda: one.server.connection_count == 0)
        with one.connect() as again:
            again.sendall(b"3\n")
            assert read_exactly(again, 2) == b"3\n"


def test_a_connection_without_a_first_message_is_closed() -> None:
    limits = replace(LIMITS, first_message_timeout_s=0.3)
    with serving(limits) as one, one.connect() as known, one.connect() as unknown:
        known.sendall(b"hello\n")
        unknown.sendall(b"other\n")
        assert read_all(unknown) == b"other\n"
        assert read_exactly(known, 6) == b"hello\n"
        known.sendall(b"still\n")
        assert read_exactly(known, 6) == b"still\n"


def test_clients_wait_in_the_backlog_while_too_many_are_unknown() -> None:
    limits = replace(LIMITS, first_message_timeout_s=60.0, unestablished_max=3)
    with serving(limits) as one:
        held = [one.connect() for _ in range(10)]
        held[9].sendall(b"hello\n")
        wait_until(lambda: one.server.connection_count == 3)
        for number, client in enumerate(held[:9]):
            assert one.server.connection_count == min(number + 3, 10)
            client.sendall(b"hello\n")
            assert read_exactly(client, 6) == b"hello\n"
            wait_until(lambda n=number: one.server.connection_count >= min(n + 4, 10))  # type: ignore[misc] # a default argument of a lambda
        assert read_exactly(held[9], 6) == b"hello\n"
        for client in held:
            client.close()


def test_idle_connections_are_closed_unless_they_wait_for_the_node() -> None:
    limits = replace(LIMITS, idle_timeout_s=0.3)
    with serving(limits) as one, one.connect() as idle, one.connect() as busy:
        busy.sendall(b"x\n")
        assert read_exactly(busy, 2) == b"x\n"
        for connection in one.server.connections:
            connection.is_busy = connection.last_received != 0 and bool(
                connection.peer.port == busy.getsockname()[1]
            )
        assert read_all(idle) == b""
        busy.sendall(b"y\n")
        assert read_exactly(busy, 2) == b"y\n"


def test_a_protocol_ends_silent_connections_itself() -> None:
    with serving() as one, one.connect() as client:
        client.sendall(b"x\n")
        assert read_exactly(client, 2) == b"x\n"
        one.server.connections[0].silence_max_s = 0.2
        assert read_all(client) == b""
        wait_until(lambda: one.protocols[0].reasons == ["silent"])


def test_a_reset_after_the_last_bytes_ends_the_connection() -> None:
    with serving() as one:
        for number in range(20):
            with one.connect() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                wait_until(lambda n=number: len(one.protocols) == n + 1)  # type: ignore[misc] # a default argument of a lambda
                client.sendall(b"unfinished")
        wait_until(lambda: one.server.connection_count == 0)


def test_a_reset_ends_a_paused_connection_after_its_last_messages() -> None:
    with serving() as one:
        with one.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sendall(b"pause 0.3\nnext\n")
            wait_until(lambda: [each.lines for each in one.protocols] == [[b"pause 0.3"]])
            client.sendall(b"last\n")
        wait_until(lambda: one.server.connection_count == 0)
        assert one.protocols[0].lines[:2] == [b"pause 0.3", b"next"]


def garbage(one: Serving, rng: random.Random) -> None:
    with one.connect() as client:
        for _ in range(rng.randint(1, 5)):
            try:
                client.sendall(rng.randbytes(rng.choice([1, 10, 5_000, 400_000])))
            except OSError:
                return
        if rng.random() < 0.5:
            # A reset instead of an ordinary end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_garbage_and_resets_leave_nothing_open() -> None:
    rng = random.Random(1)
    with serving() as one:
        for _ in range(40):
            garbage(one, rng)
        wait_until(lambda: one.server.connection_count == 0)
        wait_until(lambda: all(len(each.reasons) == 1 for each in one.protocols))
        assert one.server.unsent_total == 0


def test_a_port_in_use_is_reported_with_the_settings_to_change() -> None:
    with serving() as one:
        taken = replace(LISTENER, port=one.port, settings_names="test.port")
        with pytest.raises(SetupError, match=r"Test clients .*choose test\.port"):
            NetworkServer("test", [taken], lambda _: one.protocols[0], LIMITS)


def test_a_server_whose_start_fails_listens_no_more() -> None:
    async def fail(_: object) -> None:
        raise ValueError("no majority")

    def unused(_: Connection) -> object:
        raise AssertionError("no connection is accepted")

    server = NetworkServer("test", [LISTENER], unused, LIMITS, on_start=fail)  # type: ignore[arg-type] # it never returns
    with pytest.raises(SetupError, match="no majority"):
        server.start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.listeners[0].port), 5)


def test_on_stop_can_say_farewell() -> None:
    servers: list[NetworkServer] = []

    async def say_farewell(_: object) -> None:
        for connection in servers[0].connections:
            connection.send(b"farewell\n")
            connection.flush()

    protocols: list[object] = []
    from tests.brokers.network.serving import Lines

    server = NetworkServer(
        "test",
        [LISTENER],
        lambda connection: Lines(connection, protocols),  # type: ignore[arg-type] # not read
        LIMITS,
        on_stop=say_farewell,
    )
    servers.append(server)
    with server, socket.create_connection(("127.0.0.1", server.listeners[0].port), 60) as client:
        client.sendall(b"x\n")
        assert read_exactly(client, 2) == b"x\n"
        server.close()
        assert read_all(client) == b"farewell\n"
    assert server.connection_count == 0
