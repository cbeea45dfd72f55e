"""A node that was killed takes over its own upload leases; another directory waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.node.node import Node
from penstock.record import Record, ShardId
from penstock.settings import EMBEDDED, merge_settings
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.lease import DURATION_MS, MetaLease

HOUR_MS = 3_600_000
SETTINGS = merge_settings(EMBEDDED, {"tiering__upload_interval_ms": 50})
VICTIM = """
import os, signal, sys
from penstock.node.node import Node
from penstock.record import Record
from tests.tiered.upload.test_own_lease import SETTINGS, uploaded
with Node(sys.argv[1], SETTINGS) as node:
    node.admin.create_topic_full("orders", options={"tiering": "on"})
    node.driver_manager.batch_write("orders", [Record(b"v")] * 10, partition=0)
    node.run_upkeep()
    assert uploaded(node) == 10
    os.kill(os.getpid(), signal.SIGKILL)
"""


def uploaded(node: Node) -> int | None:
    engine = node.engines.opened()["EngineSegment"]
    assert isinstance(engine, TieredSegmentEngine)
    (shard,) = engine.list_shard()
    return engine.dispatcher.keep_from(shard)


def test_a_killed_node_uploads_again_as_soon_as_it_is_back(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    root = Path(__file__).parents[3]
    process = subprocess.run(
        [sys.executable, "-c", VICTIM, data],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert process.returncode == -9
    with Node(data, SETTINGS) as node:
        node.driver_manager.batch_write("orders", [Record(b"w")] * 5, partition=0)
        node.run_upkeep()
        assert uploaded(node) == 15


def test_the_next_process_of_a_directory_takes_the_lease_over_under_a_new_epoch(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    with StandaloneMetaClient.open(str(tmp_path / "meta"), clock=clock) as meta:
        shard = ShardId(meta.create_topic("orders").topic_id, 0)
        before = MetaLease(meta, clock, holder="1-A")
        after = MetaLease(meta, clock, holder="1-A")
        other = MetaLease(meta, clock, holder="2-B")
        assert before.hold(shard)
        assert not other.hold(shard)
        assert after.hold(shard)
        assert after._granted[shard].lease.epoch > before._granted[shard].lease.epoch
        # The one before is gone; if it were not, it would find out when it renews.
        clock.advance(milliseconds=DURATION_MS * 3 // 4)
        assert not before.hold(shard)
        assert after.hold(shard)
        clock.advance(milliseconds=DURATION_MS)
        assert other.hold(shard)


def test_a_holder_whose_clock_is_set_back_gives_its_lease_up_in_time(tmp_path: Path) -> None:
    clock, others = ManualClock(), ManualClock()
    with StandaloneMetaClient.open(str(tmp_path / "meta"), clock=others) as meta:
        shard = ShardId(meta.create_topic("orders").topic_id, 0)
        holder = MetaLease(meta, clock, holder="1-A")
        rival = MetaLease(meta, others, holder="2-B")
        assert holder.hold(shard)
        clock.set_now_ms(clock.now_ms() - 5 * HOUR_MS)
        for machine in (clock, others):
            machine.advance(milliseconds=2 * DURATION_MS)
        assert rival.hold(shard), "it has expired"
        assert not holder.hold(shard), "two uploaders would have one lease for five hours"


def test_a_lease_granted_by_a_clock_that_was_hours_ahead_stalls_no_uploads(tmp_path: Path) -> None:
    clock = ManualClock()
    with StandaloneMetaClient.open(str(tmp_path / "meta"), clock=clock) as meta:
        shard = ShardId(meta.create_topic("orders").topic_id, 0)
        right_ms = clock.now_ms()
        clock.set_now_ms(right_ms + 5 * HOUR_MS)
        assert MetaLease(meta, clock, holder="1-A").hold(shard), "its node ends then"
        clock.set_now_ms(right_ms)
        rival = MetaLease(meta, clock, holder="2-B")
        assert not rival.hold(shard)
        clock.advance(milliseconds=DURATION_MS)
        assert not rival.hold(shard), "its holder may have renewed it meanwhile"
        clock.advance(milliseconds=DURATION_MS // 2)
        assert rival.hold(shard)


def test_a_holder_that_renews_keeps_its_lease_whatever_the_wall_clock_shows(tmp_path: Path) -> None:
    clock = ManualClock()
    with StandaloneMetaClient.open(str(tmp_path / "meta"), clock=clock) as meta:
        shard = ShardId(meta.create_topic("orders").topic_id, 0)
        right_ms = clock.now_ms()
        clock.set_now_ms(right_ms + 5 * HOUR_MS)
        holder = MetaLease(meta, clock, holder="1-A")
        rival = MetaLease(meta, clock, holder="2-B")
        for _ in range(20):
            assert holder.hold(shard)
            assert not rival.hold(shard)
            clock.advance(milliseconds=DURATION_MS // 4)
