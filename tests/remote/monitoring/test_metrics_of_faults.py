"""Faults move the metrics that a healthy node leaves at 0."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.remote.monitoring.test_metrics import FAULTS, SETTINGS, WAIT_S, scrape

import penstock
from penstock.engine.segment.engine import SegmentEngine
from penstock.errors import DiskFailedError, DiskFullError, StoreError, TierDamageError
from penstock.platform.clock import SystemClock
from penstock.remote.server.node_server import Server
from penstock.settings import merge_settings
from penstock.tiered.upload.dispatcher import TieredDispatcher

TORN: Final = b"\x7f" * 64
MARK: Final = b"to be damaged "
STEP_MS: Final = 30 * 24 * 3_600_000
CHUNK_SIZE_MIN: Final = 4096
NEVER: Final = {"python_gc_objects_uncollectable"}
"""What no fault of ours moves."""


def segment_engine(server: Server) -> SegmentEngine:
    engines = server.node.engines.opened().values()
    (engine,) = [engine for engine in engines if isinstance(engine, SegmentEngine)]
    return engine


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def log_file(data: Path, position: int) -> Path:
    size = SETTINGS.broker.commit_log_file_size
    return data / "segment" / "commitlog" / f"{position // size * size:020}"


def leave_a_killed_store(running: Path, killed: Path) -> None:
    """Fill a store, and copy its files while it is open, with a torn tail and without queues."""
    with Server(str(running), SETTINGS) as server:
        with penstock.connect(f"127.0.0.1:{server.port}") as store:
            cold = store.create_topic("cold", tiering=penstock.TieringPolicy(local_retention_ms=1))
            for _ in range(5):
                cold.write_many([b"v" * 1000] * 400)

            def is_cold() -> bool:
                store.run_upkeep()
                return bool(cold.describe().partitions[0].log_start)

            wait_for(is_cold)
            plain = store.create_topic("plain", storage="segment")
            plain.write_many([MARK + b"%d" % number for number in range(200)])
        end = segment_engine(server).store._log.end
        shutil.copytree(running, killed)
    with log_file(killed, end).open("r+b") as file:
        file.seek(end % SETTINGS.broker.commit_log_file_size)
        file.write(TORN)
    for queue in killed.rglob("consumequeue/*/*/*"):
        queue.unlink()


def flip_bit(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damage_log_and_tier(server: Server, data: Path, store: penstock.Store) -> None:
    file = log_file(data, segment_engine(server).store._log.end)
    flip_bit(file, file.read_bytes().index(MARK))
    with pytest.raises(StoreError):
        store.topic("plain").read(partition=0, offset=0, max_records=1)
    server.node.scrubber.run_once()
    for path in (data / "tier").rglob("*"):
        if path.is_file() and path.stat().st_size > CHUNK_SIZE_MIN:
            flip_bit(path, path.stat().st_size // 2)
    with pytest.raises(TierDamageError):
        list(store.topic("cold").records())


def lose_the_tier(server: Server, data: Path, store: penstock.Store) -> None:
    (data / "tier").rename(data / "tier-elsewhere")
    (data / "tier").write_bytes(b"not a directory")
    store.topic("cold").write_many([b"v" * 1000] * 10)
    value = server.node.registry.get_sample_value
    wait_for(lambda: bool(value("penstock_tier_failing_shards")))


def fail_to_dispatch(server: Server, store: penstock.Store, patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the dispatcher")

    patch.setattr(TieredDispatcher, "_schedule", fail)
    store.topic("cold").write_many([b"v"] * 10)
    value, labels = server.node.registry.get_sample_value, {"dispatcher": "tier"}
    wait_for(lambda: bool(value("penstock_segment_dispatch_failures_total", labels)))
    wait_for(lambda: bool(value("penstock_segment_dispatch_lag_records", labels)))


def refuse_connections(server: Server) -> None:
    assert server.kafka is not None
    sockets = [socket.create_connection(server.kafka.advertised, WAIT_S) for _ in range(3)]
    value = server.node.registry.get_sample_value
    wait_for(lambda: bool(value("penstock_kafka_connections_refused_total")))
    for each in sockets:
        each.close()


def step_the_clock(patch: pytest.MonkeyPatch) -> None:
    now_ms = SystemClock.now_ms
    patch.setattr(SystemClock, "now_ms", lambda clock: now_ms(clock) + STEP_MS)


def refuse_writes(server: Server, store: penstock.Store) -> None:
    log = segment_engine(server).store._log
    log.refuse(DiskFullError("no room"))
    with pytest.raises(DiskFullError):
        store.topic("plain").write(b"v")
    log.refuse(DiskFailedError("there/commitlog", "sync failed"))
    with pytest.raises(DiskFailedError):
        store.topic("plain").write(b"v")


@pytest.mark.timeout(200)
def test_faults_move_the_metrics_of_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tmp_path / "killed"
    leave_a_killed_store(tmp_path / "running", killed)
    settings = merge_settings(SETTINGS, {"kafka": {"connections_max": 1}})
    with Server(str(killed), settings) as server:
        with penstock.connect(f"127.0.0.1:{server.port}") as store:
            damage_log_and_tier(server, killed, store)
            lose_the_tier(server, killed, store)
            fail_to_dispatch(server, store, monkeypatch)
            refuse_connections(server)
            refuse_writes(server, store)
            step_the_clock(monkeypatch)
        found = scrape(server)
        (killed / "tier").unlink()  # the node stops as a healthy one does
        (killed / "tier-elsewhere").rename(killed / "tier")
    refusals = found["penstock_segment_writes_refused"]
    moved = {dict(key)["cause"] for key, value in refusals.items() if value}
    assert moved == {"disk_full", "disk_failed"}
    assert {name for name in FAULTS if not any(found[name].values())} == NEVER
