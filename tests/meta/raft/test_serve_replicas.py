"""Three servers with a replicated topic: nodes end in all ways, and the others go on."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.test_serve_cluster import Servers

import penstock
from penstock.api import Store
from penstock.errors import BadRequestError, DeadlineError, StoreError

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    try:
        for node in (1, 2, 3):
            made.start(node)
        wait_until(lambda: made.nodes_that("online") == 3, "three servers are registered")
        yield made
    finally:
        made.close()


def seen_by(servers: Servers, node: int) -> str:
    return servers.cluster("status", node=node)


def leader_of(servers: Servers, node: int) -> int | None:
    """Return who leads t/0, as `status` shows it while the shard is not whole."""
    found = re.search(r"t/0: .*leader (\d)", seen_by(servers, node))
    return int(found[1]) if found else None


def led_by(servers: Servers, node: int) -> int:
    for line in seen_by(servers, node).splitlines():
        found = re.match(r"node (\d) .*leader of 1$", line)
        if found:
            return int(found[1])
    return 0


def create(servers: Servers) -> None:
    """Create the topic as soon as three nodes serve requests, and write to it."""
    with penstock.connect(servers.addresses[1]) as store:

        def is_created() -> bool:
            try:
                store.create_topic("t", replication=3)
            except BadRequestError:
                return False
            return True

        wait_until(is_created, "three nodes can have replicas")
        store.topic("t").write(b"before")


def write(address: str, value: bytes) -> bool:
    try:
        with penstock.connect(address) as store:
            store.topic("t").write(value)
    except StoreError:
        return False
    return True


def write_once(store: Store, value: bytes) -> None:
    """Write without a producer: only a write that was on its way may have an unknown outcome."""
    failures: list[DeadlineError] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            store.topic("t").write(value)
        except DeadlineError as error:
            failures.append(error)
        else:
            break
    assert all("the outcome is unknown" in str(error) for error in failures)
    assert not any("failed to connect" in str(error) for error in failures)


def test_a_killed_leader_is_replaced_and_comes_back_in_sync(servers: Servers) -> None:
    create(servers)
    assert "replication 3, min_insync 2: all in sync" in seen_by(servers, 1)
    gone = led_by(servers, 1)
    others = [node for node in (1, 2, 3) if node != gone]
    with penstock.connect(servers.addresses[others[0]]) as store:
        store.topic("t").write(b"passed on")
        servers.kill(gone)
        write_once(store, b"while none leads")
    wait_until(lambda: leader_of(servers, others[0]) in others, "another one leads")
    assert f"node {gone}" in seen_by(servers, others[0])
    assert "1 under-replicated" in seen_by(servers, others[0])
    wait_until(lambda: write(servers.addresses[others[0]], b"after"), "writes go on")
    servers.start(gone)
    wait_until(lambda: "all in sync" in seen_by(servers, others[0]), "it has caught up")
    with penstock.connect(servers.addresses[gone]) as store:
        values = [record.value for record in store.topic("t").read(max_records=100)]
    assert values[0] == b"before"
    assert {b"passed on", b"while none leads", b"after"} <= set(values)


def test_a_stopped_leader_is_fenced_and_a_clean_stop_hands_over(servers: Servers) -> None:
    create(servers)
    paused = led_by(servers, 1)
    others = [node for node in (1, 2, 3) if node != paused]
    servers.running[paused].send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: leader_of(servers, others[0]) in others, "another one leads")
        wait_until(lambda: write(servers.addresses[others[0]], b"after"), "writes go on")
    finally:
        servers.running[paused].send_signal(signal.SIGCONT)
    wait_until(lambda: "all in sync" in seen_by(servers, others[0]), "it has caught up")
    leader = led_by(servers, others[0])
    servers.stop(leader)
    left = next(node for node in (1, 2, 3) if node != leader)
    wait_until(lambda: write(servers.addresses[left], b"last"), "another one leads")
