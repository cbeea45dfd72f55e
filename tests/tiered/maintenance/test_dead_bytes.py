"""What is dead takes no room in a tier for long: not in an open segment, not in one that is partly
alive, and not in one that was left behind by a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.tiered.rig import SHARD, fill, memory_config, open_store, read_all, upload

import penstock
from penstock.engine.segment.store import SegmentStore
from penstock.meta.state.model import TieringPolicy
from penstock.record import QueueKind
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.compaction import rewrite_segments
from penstock.tiered.maintenance.scrubber import ScrubReport, verify_shard


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        yield store


def test_a_compacted_topic_takes_the_room_of_its_live_records(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    settings: dict[str, object] = {
        "tiering__url": f"file://{tier}",
        "tiering__upload_interval_ms": 50,
        "tiering__chunk_size": 256 << 10,
        "tiering__grace_ms": 0,
        "broker__commit_log_file_size": 4 << 20,
    }
    data = str(tmp_path / "data")
    live = {b"k%d" % n: 0 for n in range(100)}
    with penstock.open(data, **settings) as store:
        topic = store.create_topic("state", cleanup="compact", tiering=TieringPolicy())
        for first in range(0, 30_000, 1000):
            numbers = range(first, first + 1000)
            topic.write_many(
                [penstock.Record(b"%d " % n * 20, key=b"k%d" % (n % 100)) for n in numbers]
            )
            live |= {b"k%d" % (n % 100): n for n in numbers}
        wait_until(lambda: size_of(tier) > 4 << 20, "all of it was uploaded", seconds=60)
        for _ in range(3):
            store.run_upkeep()
        found = {one.key: one.value for one in topic.records()}
        assert found == {key: b"%d " % n * 20 for key, n in live.items()}
    assert size_of(tier) < 200 << 10
    with penstock.open(data, **settings) as store:
        assert {one.key for one in store.topic("state").records()} == set(live)


def size_of(tier: Path) -> int:
    total = 0
    for path in tier.rglob("*"):
        with suppress(FileNotFoundError):  # temporary files are renamed meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


@pytest.mark.parametrize("kind", list(QueueKind))
def test_chunks_of_the_open_segment_are_written_again(tmp_path: Path, kind: QueueKind) -> None:
    with open_store(tmp_path / "other") as store:
        store.create_shard(SHARD, kind)
        fill(store, 200)
        config = memory_config(segment_size=1 << 30)
        flat = CompositeFlatFile(config, SHARD, kind)
        flat.acquire()
        upload(store, flat)
        before = flat.current()
        assert before is not None
        assert not before.segments
        dead = [n for n in range(180) if n % 10]
        flat.upkeep.delete_ranges((n, n + 1) for n in dead)
        freed = rewrite_segments(flat)
        assert freed.size > before.object_size // 2
        kept = [one for one in store.read(SHARD, 0) if one.offset not in set(dead)]
        assert read_all(flat) == kept
        assert read_all(CompositeFlatFile(config, SHARD, kind)) == kept
        assert rewrite_segments(flat).size == 0, "once"
        fill(store, 20, start=200)
        upload(store, flat)
        assert read_all(CompositeFlatFile(config, SHARD, kind))[-1].offset == 219
        report = ScrubReport()
        verify_shard(flat, report)
        assert report.damage == []


def test_a_node_that_uploads_nothing_since_its_start_rewrites_all_the_same(
    store: SegmentStore,
) -> None:
    fill(store, 100)
    config = memory_config()
    flat = CompositeFlatFile(config, SHARD)
    flat.acquire()
    upload(store, flat)
    flat.upkeep.delete_ranges([(0, 90)])
    other = CompositeFlatFile(config, SHARD)
    rival = CompositeFlatFile(config, SHARD)
    assert rival.current() is not None
    assert rewrite_segments(other).size > 0
    rewrite_segments(rival)  # it knows the old manifest, and changes nothing that is there
    assert [one.offset for one in read_all(CompositeFlatFile(config, SHARD))] == [*range(90, 100)]


def test_expired_chunks_of_a_segment_that_is_partly_alive_go(store: SegmentStore) -> None:
    fill(store, 200)
    clock = ManualClock(1_800_000_000_000)
    config = TierConfig(
        url=memory_config().url, chunk_size=2000, segment_size=1 << 30, grace_ms=3_600_000
    )
    flat = CompositeFlatFile(config, SHARD, clock=clock)
    flat.acquire()
    upload(store, flat)
    flat.upkeep.seal(only_if_due=False)
    manifest = flat.current()
    assert manifest is not None
    (segment,) = manifest.segments
    flat.clean_expired_file(1_700_000_150_000)
    clock.advance(2 * config.grace_ms / 1000)
    flat.destroy_expired_file()
    manifest = flat.current()
    assert manifest is not None
    assert manifest.segments[0].chunks < segment.chunks // 2
    chunks = [info.key for info in flat.provider.list() if info.key.endswith(".chunk")]
    assert len(chunks) == manifest.segments[0].chunks
    assert read_all(CompositeFlatFile(config, SHARD)) == store.read(SHARD, flat.min_offset)
    flat.clean_expired_file(1_800_000_000_000)
    clock.advance(2 * config.grace_ms / 1000)
    flat.destroy_expired_file()
    assert [info.key for info in flat.provider.list()] == [flat.manifest.key]
