"""`penstock serve` whose machine's clock was set ten days ahead, and `penstock clock`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from tests.cli.conftest import Run

import penstock

pytestmark = pytest.mark.timeout(200)
WAIT_S = 60.0
SHIFTED = """
import sys, time
shift_ns, real = int(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + shift_ns
from penstock.cli import main
main()
"""
DAYS_NS = 10 * 86_400 * 10**9


class Served:
    def __init__(self, data: Path, shift_ns: int) -> None:
        options = ["--port", "0", "--http-port", "0", "--set", "kafka.enabled=false"]
        options += ["--set", f"broker.commit_log_file_size={16 << 20}"]
        options += ["--set", "engine.upkeep_interval_ms=100"]
        options += ["--set", "engine.compact_interval_ms=200"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHIFTED, str(shift_ns), "serve", "--data", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        greeting = ""
        for line in self.process.stdout:
            greeting += line
            if "Ctrl-C" in line:
                break
        ports = re.search(r"storage API +(\S+)\n[^$]*?(http://\S+)/metrics", greeting)
        assert ports is not None, greeting
        self.address, self.http = ports[1], ports[2]

    def left(self) -> tuple[int, int]:
        """Return how many records and groups there are after some rounds of upkeep."""
        time.sleep(1.5)
        with penstock.connect(self.address) as store:
            return sum(1 for _ in store.topic("hour")), len(store.groups())

    def health(self) -> dict[str, object]:
        with urlopen(f"{self.http}/health", timeout=WAIT_S) as answer:
            return msgspec.json.decode(answer.read(), type=dict[str, object])


@contextmanager
def serving(data: Path, shift_ns: int = 0) -> Iterator[Served]:
    running = Served(data, shift_ns)
    try:
        yield running
        running.process.send_signal(signal.SIGTERM)
        running.process.communicate(timeout=WAIT_S)
        assert running.process.returncode == 0
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate(timeout=WAIT_S)


def test_a_clock_ten_days_ahead_deletes_nothing_until_the_operator_confirms_it(
    run: Run, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with serving(data) as right, penstock.connect(right.address) as store:
        store.create_topic("hour", retention_ms=3_600_000).write_many([b"v" * 100] * 100)
        with store.consumer("readers", ["hour"]) as consumer:
            consumer.poll(1)
            consumer.commit()
        assert run("clock", "confirm", "-s", right.address).code == 0
        assert right.left() == (100, 1)
    with serving(data, DAYS_NS) as ahead:
        assert ahead.left() == (100, 1)
        shown = run("clock", "status", "-s", ahead.address)
        assert "held" in shown.out
        assert "10.0 d ahead" in shown.out
        assert "clock" in str(ahead.health())
        with urlopen(f"{ahead.http}/metrics", timeout=WAIT_S) as answer:
            assert b"penstock_clock_held 1.0" in answer.read()
    with serving(data) as right_again:
        assert right_again.left() == (100, 1)
        assert '"held":false' in run("clock", "status", "--json", "-s", right_again.address).out
    with serving(data, DAYS_NS) as ahead:
        assert run("clock", "confirm", "--yes", "-s", ahead.address).code == 0
        deadline = time.monotonic() + WAIT_S
        while ahead.left() != (0, 0) and time.monotonic() < deadline:
            pass
        assert ahead.left() == (0, 0)
