"""How fast are MQTT clients served, here and by Mosquitto (and amqtt, if it is installed)?

Sketch first: a publish of 100 bytes that is received, stored and acknowledged in a batch costs
about a microsecond; a delivery less, because a run is encoded once for all its subscribers. With
one message in flight the system calls of both sides are the limit, at some 15,000 a second.

    python bench/mqtt.py --messages 100000 --rounds 3
    python bench/mqtt.py --only publish,deliver --mosquitto /usr/sbin/mosquitto

The client sends encoded packets over a socket, with no library in the way. All brokers get the same
messages in turn; the one that begins alternates. For every row the table has the median of the
rounds, the ratio to the first broker of the table, and the CPU time that the broker took for a
message. Penstock stores every message, Mosquitto and amqtt none.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

TIMEOUT_S = 120.0
START_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
WINDOW = 200
IDS = 1_000
"""Packet ids in use; more than the window."""
HEADER_SIZE = 4
CASES = ("connect", "publish", "deliver", "fan-out", "shared", "one-in-flight", "latency", "memory")


@dataclass
class Peer:
    """A running broker."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / TICKS

    def memory_kb(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1])
        return 0

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


# Packets of MQTT 3.1.1


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + varint(len(body)) + body


def publish_packet(topic: str, payload: bytes, qos: int, packet_id: int) -> bytes:
    number = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1, text(topic) + number + payload)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def connect(port: int, client_id: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text(client_id)))
    connack = receive(connection, 4)
    assert connack[0] == 0x20, connack
    assert connack[3] == 0, connack
    return connection


def subscribe(connection: socket.socket, topic_filter: str, qos: int) -> None:
    connection.sendall(packet(0x82, b"\x00\x01" + text(topic_filter) + bytes([qos])))
    suback = receive(connection, 5)
    assert suback[0] == 0x90, suback
    assert suback[4] <= 2, suback


# Clients


def publish(connection: socket.socket, topic: str, payload: bytes, count: int, qos: int) -> None:
    """Publish; return when the broker has acknowledged all. With QoS 0 it answers a PINGREQ."""
    if not qos:
        chunk = publish_packet(topic, payload, 0, 0) * 100
        for _ in range(count // 100):
            connection.sendall(chunk)
        connection.sendall(b"\xc0\x00")
        assert receive(connection, 2) == b"\xd0\x00"
        return
    packets = [publish_packet(topic, payload, qos, number) for number in range(1, IDS + 1)]
    sent = done = 0
    received = out = b""
    connection.setblocking(False)
    while done < count:
        while sent - done < WINDOW and sent < count and len(out) < 65_536:
            out += packets[sent % IDS]
            sent += 1
        readable, writable, _ = select.select(
            [connection], [connection] if out else [], [], TIMEOUT_S
        )
        if not readable and not writable:
            raise TimeoutError(f"{done} of {count} publishes were acknowledged")
        if writable:
            with contextlib.suppress(BlockingIOError):
                out = out[connection.send(out) :]
        if readable:
            received += connection.recv(65_536)
            whole = len(received) // HEADER_SIZE * HEADER_SIZE
            for at in range(0, whole, HEADER_SIZE):
                if received[at] == 0x50:
                    out += b"\x62\x02" + received[at + 2 : at + 4]
                else:
                    done += 1
            received = received[whole:]
    connection.setblocking(True)


@dataclass
class Wanted:
    """What a subscriber process waits for."""

    port: int
    topic_filter: str
    qos: int
    count: int
    packet_size: int
    size: int
    """Of a payload."""
    connections: int = 1
    is_timed: bool = False


class Receiver:
    """Splits the stream of one connection into packets, and acknowledges them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.buffer = b""
        self.got = self.released = 0
        self.latencies: list[float] = []

    def feed(self, data: bytes) -> bytes:
        """Count what was received; return the acknowledgements."""
        data = self.buffer + data
        now = time.monotonic_ns()
        at, acks = 0, bytearray()
        while len(data) - at >= HEADER_SIZE:
            is_message = data[at] >> 4 == 3
            end = at + (self.wanted.packet_size if is_message else HEADER_SIZE)
            if end > len(data):
                break
            if is_message:
                acks += self._message(data, end, now)
            elif data[at] == 0x62:
                acks += b"\x70\x02" + data[at + 2 : end]
                self.released += 1
            at = end
        self.buffer = data[at:]
        return bytes(acks)

    def _message(self, data: bytes, end: int, now: int) -> bytes:
        self.got += 1
        wanted = self.wanted
        if wanted.is_timed:
            self.latencies.append((now - int.from_bytes(data[end - 8 : end], "big")) / 1e6)
        if not wanted.qos:
            return b""
        id_end = end - wanted.size
        kind = b"\x40\x02" if wanted.qos == 1 else b"\x50\x02"
        return kind + data[id_end - 2 : id_end]


def subscriber(wanted: Wanted, results: Queue[object]) -> None:
    """Receive in a process of its own; put the time of the last message, or all latencies."""
    receivers: dict[socket.socket, Receiver] = {}
    for number in range(wanted.connections):
        connection = connect(wanted.port, f"s{os.getpid()}-{number}")
        subscribe(connection, wanted.topic_filter, wanted.qos)
        receivers[connection] = Receiver(wanted)
    results.put("ready")
    left = wanted.count * (2 if wanted.qos == 2 else 1)
    while left > 0:
        readable, _, _ = select.select(list(receivers), [], [], TIMEOUT_S)
        if not readable:
            break
        for connection in readable:
            acks = receivers[connection].feed(connection.recv(1 << 18))
            if acks:
                connection.sendall(acks)
        left = wanted.count * (2 if wanted.qos == 2 else 1) - sum(
            one.got + one.released for one in receivers.values()
        )
    ended = time.perf_counter()
    latencies = [one for receiver in receivers.values() for one in receiver.latencies]
    results.put(latencies if wanted.is_timed else ended)
    for connection in receivers:
        connection.close()


@contextlib.contextmanager
def subscribed(*wanted: Wanted) -> Iterator[Queue[object]]:
    results: Queue[object] = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=subscriber, args=(one, results)) for one in wanted]
    for process in processes:
        process.start()
    for _ in processes:
        assert results.get(timeout=TIMEOUT_S) == "ready"
    try:
        yield results
    finally:
        for process in processes:
            process.join(TIMEOUT_S)
            process.kill()


# Cases: each yields rows (name, value, unit, CPU microseconds for a message or None)

Row = tuple[str, float, str, float | None]


@dataclass
class Bench:
    messages: int
    size: int
    tag: str

    def payload(self) -> bytes:
        return b"x" * self.size

    def topic(self, name: str) -> str:
        return f"b/{self.tag}/{name}"

    def rate(self, peer: Peer, count: int, work: Callable[[], float | None]) -> tuple[float, float]:
        """Return messages a second and CPU microseconds a message."""
        cpu, begun = peer.cpu_s(), time.perf_counter()
        ended = work() or time.perf_counter()
        return count / (ended - begun), (peer.cpu_s() - cpu) / count * 1e6

    def connect(self, peer: Peer) -> Iterator[Row]:
        count = max(200, self.messages // 100)

        def work() -> None:
            for number in range(count):
                connect(peer.port, f"c{self.tag}-{number}").close()

        rate, cpu = self.rate(peer, count, work)
        yield "connect, one after the other", rate, "1/s", cpu

    def publish(self, peer: Peer) -> Iterator[Row]:
        for qos in (0, 1, 2):
            count = self.messages // (2 if qos == 2 else 1) // 100 * 100
            with contextlib.closing(connect(peer.port, f"p{self.tag}")) as connection:
                publish(connection, self.topic("p"), self.payload(), 100, qos)

                def work(
                    connection: socket.socket = connection, count: int = count, qos: int = qos
                ) -> None:
                    publish(connection, self.topic("p"), self.payload(), count, qos)

                rate, cpu = self.rate(peer, count, work)
            yield f"publish QoS {qos}", rate, "msg/s", cpu

    def _delivered(
        self, peer: Peer, topic: str, count: int, qos: int, *wanted: Wanted
    ) -> tuple[float, float]:
        with (
            subscribed(*wanted) as results,
            contextlib.closing(connect(peer.port, f"d{self.tag}")) as connection,
        ):

            def work() -> float:
                publish(connection, topic, self.payload(), count, qos)
                return max(float(str(results.get(timeout=TIMEOUT_S))) for _ in wanted)

            return self.rate(peer, count, work)

    def deliver(self, peer: Peer) -> Iterator[Row]:
        for qos in (0, 1, 2):
            count = self.messages // (2 if qos == 2 else 1) // 100 * 100
            topic = self.topic(f"d{qos}")
            size = len(publish_packet(topic, self.payload(), qos, 1))
            wanted = Wanted(peer.port, topic, qos, count, size, self.size)
            rate, cpu = self._delivered(peer, topic, count, qos, wanted)
            yield f"publish and deliver QoS {qos}, 1 to 1", rate, "msg/s", cpu

    def fan_out(self, peer: Peer, subscribers: int = 100) -> Iterator[Row]:
        count = max(100, self.messages // 25 // 100 * 100)
        topic = self.topic("f")
        size = len(publish_packet(topic, self.payload(), 0, 0))
        wanted = Wanted(
            peer.port, topic, 0, count * subscribers, size, self.size, connections=subscribers
        )
        rate, cpu = self._delivered(peer, topic, count, 0, wanted)
        name = f"fan-out QoS 0, 1 to {subscribers}: deliveries"
        yield name, rate * subscribers, "msg/s", cpu / subscribers

    def shared(self, peer: Peer, members: int = 4) -> Iterator[Row]:
        count = self.messages // 100 * 100
        topic = self.topic("s")
        size = len(publish_packet(topic, self.payload(), 1, 1))
        topic_filter = f"$share/g{self.tag}/{topic}"
        wanted = Wanted(peer.port, topic_filter, 1, count, size, self.size, connections=members)
        rate, cpu = self._delivered(peer, topic, count, 1, wanted)
        yield f"shared QoS 1, {members} members", rate, "msg/s", cpu

    def one_in_flight(self, peer: Peer) -> Iterator[Row]:
        count = max(500, self.messages // 20)
        with contextlib.closing(connect(peer.port, f"o{self.tag}")) as connection:
            data = publish_packet(self.topic("o"), self.payload(), 1, 1)

            def work() -> None:
                for _ in range(count):
                    connection.sendall(data)
                    receive(connection, 4)

            work()
            rate, cpu = self.rate(peer, count, work)
        yield "publish QoS 1, one in flight", rate, "msg/s", cpu

    def latency(self, peer: Peer, per_s: int = 1_000, seconds: int = 3) -> Iterator[Row]:
        for qos in (0, 1):
            count = per_s * seconds
            topic = self.topic(f"l{qos}")
            size = len(publish_packet(topic, self.payload(), qos, 1))
            wanted = Wanted(peer.port, topic, qos, count, size, self.size, is_timed=True)
            with (
                subscribed(wanted) as results,
                contextlib.closing(connect(peer.port, f"l{self.tag}")) as connection,
            ):
                begun = time.perf_counter()
                for number in range(count):
                    pause = begun + number / per_s - time.perf_counter()
                    if pause > 0:
                        time.sleep(pause)
                    payload = self.payload()[:-8] + time.monotonic_ns().to_bytes(8, "big")
                    connection.sendall(publish_packet(topic, payload, qos, number % IDS + 1))
                    while qos and select.select([connection], [], [], 0)[0]:
                        connection.recv(65_536)
                found = results.get(timeout=TIMEOUT_S)
            assert isinstance(found, list)
            ordered = sorted(found[per_s // 2 :])
            yield f"latency QoS {qos}, {per_s}/s: p50", ordered[len(ordered) // 2], "ms", None
            yield (
                f"latency QoS {qos}, {per_s}/s: p99",
                ordered[len(ordered) * 99 // 100],
                "ms",
                None,
            )

    def memory(self, peer: Peer, connections: int = 1_000) -> Iterator[Row]:
        before = peer.memory_kb()
        idle = [connect(peer.port, f"m{self.tag}-{number}") for number in range(connections)]
        time.sleep(0.5)
        used = (peer.memory_kb() - before) * 1024 / connections
        for connection in idle:
            connection.close()
        yield "memory of an idle connection", used, "bytes", None

    def case(self, name: str, peer: Peer) -> Iterator[Row]:
        cases: dict[str, Callable[[Peer], Iterator[Row]]] = {
            "connect": self.connect,
            "publish": self.publish,
            "deliver": self.deliver,
            "fan-out": self.fan_out,
            "shared": self.shared,
            "one-in-flight": self.one_in_flight,
            "latency": self.latency,
            "memory": self.memory,
        }
        yield from cases[name](peer)


# Brokers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(name: str, port: int, command: list[str], environment: dict[str, str]) -> Peer:
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return Peer(name, port, process)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    raise SystemExit(f"{name} does not listen on port {port}")


def start_penstock(directory: Path) -> Peer:
    port = free_port()
    settings = {
        "MQTT__PORT": str(port),
        "MQTT__WEBSOCKET": "false",
        "SERVER__PORT": "0",
        "SERVER__HTTP_PORT": "0",
        "KAFKA__ENABLED": "false",
        "LOG__LEVEL": "error",
    }
    environment = {f"PENSTOCK_{name}": value for name, value in settings.items()}
    data = ["--data", str(directory / "penstock")]
    command = [sys.executable, "-m", "penstock", "serve", *data]
    return started("penstock", port, command, environment)


def start_mosquitto(binary: str, directory: Path) -> Peer:
    port = free_port()
    file = directory / "mosquitto.conf"
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0"]
    lines += ["max_inflight_messages 1000", "set_tcp_nodelay true", ""]
    file.write_text("\n".join(lines))
    return started("mosquitto", port, [binary, "-c", str(file)], {})


def start_amqtt(directory: Path) -> Peer:
    port = free_port()
    file = directory / "amqtt.yaml"
    file.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    command = [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(file)]
    return started("amqtt", port, command, {})


def start_all(options: argparse.Namespace, directory: Path) -> list[Peer]:
    peers = [start_penstock(directory)]
    if options.mosquitto:
        peers.append(start_mosquitto(options.mosquitto, directory))
    if importlib.util.find_spec("amqtt") is not None:
        peers.append(start_amqtt(directory))
    return peers


# Table


def table(rows: dict[str, dict[str, list[Row]]], names: list[str]) -> Iterator[str]:
    """Yield lines: for each row and broker the median, the ratio, the CPU time."""
    yield f"{'':<42}" + "".join(f"{name:>28}" for name in names)
    for row, by_peer in rows.items():
        cells, first = [], 0.0
        for name in names:
            found = by_peer.get(name, [])
            if not found:
                cells.append("")
                continue
            value = statistics.median(one[1] for one in found)
            first = first or value
            cpu = [one[3] for one in found if one[3] is not None]
            shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
            cell = f"{shown} {found[0][2]}"
            if cpu:
                cell += f" {statistics.median(cpu):.1f} µs"
            if name != names[0]:
                cell += f" x{value / first:.2f}"
            cells.append(cell)
        yield f"{row:<42}" + "".join(f"{cell:>28}" for cell in cells)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    parser.add_argument("--mosquitto", default=found, help="binary of Mosquitto; empty: without")
    return parser.parse_args()


def main() -> None:
    options = parse()
    cases = options.only.split(",")
    if unknown := set(cases) - set(CASES):
        raise SystemExit(f"unknown cases {sorted(unknown)}; there are {', '.join(CASES)}")
    rows: dict[str, dict[str, list[Row]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        peers = start_all(options, Path(directory))
        try:
            for number in range(options.rounds):
                order = peers if number % 2 == 0 else peers[::-1]
                for case in cases:
                    for peer in order:
                        tag = f"{os.getpid():x}{number}"
                        for row in Bench(options.messages, options.size, tag).case(case, peer):
                            rows.setdefault(row[0], {}).setdefault(peer.name, []).append(row)
                        sys.stderr.write(f"round {number + 1}: {case}, {peer.name}\n")
        finally:
            for peer in peers:
                peer.stop()
    sys.stdout.write("\n".join(table(rows, [peer.name for peer in peers])) + "\n")


if __name__ == "__main__":
    main()
