"""A node whose tier or disk fails it: what the tier lacks stays, writes are refused, damage is
found, and what was read before is read from the disk."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from tests.tiered.providers.faulty_provider import FaultyProvider
from tests.tiered.rig import SHARD, SIZES, fill, memory_config, open_store, record, upload
from typer.testing import CliRunner

from penstock.cli import build
from penstock.engine.contract import FOREVER_MS, Cleanup, Compacted, ShardConfig, ShardTiering
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, DiskFullError
from penstock.platform.disk import Usage
from penstock.platform.local_disk import LocalDisk
from penstock.record import Offset, Record
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.admin import pull_shard
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.damage import DamageReports
from penstock.tiered.maintenance.upkeep import TierLimits, TierUpkeep
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.providers import open_provider
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.read.fetcher import Fetcher, FetchSettings
from penstock.tiered.read.tier_query import TierQuery
from penstock.tiered.shard_tiers import ShardTiers

HOUR_MS = 3_600_000


class Disk(LocalDisk):
    used = 0

    def usage(self, path: str) -> Usage:
        return Usage(100, self.used)


def engine_with(
    path: Path,
    config: TierConfig,
    *,
    disk: LocalDisk | None = None,
    registry: CollectorRegistry | None = None,
    limits: TierLimits = TierLimits(),  # noqa: B008 - it is frozen
) -> TieredSegmentEngine:
    settings = SegmentSettings(sizes=SIZES, record_size_max=1 << 15, background=False)
    return build_tiered_engine(
        SegmentStore.open(str(path / "store"), settings, disk=disk or LocalDisk()),
        config,
        metadata_path=f"{path}/tier-meta",
        limits=limits,
        metrics=TierMetrics(registry),
        background=False,
    )


def test_at_the_disk_limit_writes_are_refused_and_nothing_the_tier_lacks_goes(
    tmp_path: Path,
) -> None:
    name = uuid.uuid4().hex
    disk, registry = Disk(), CollectorRegistry()
    engine = engine_with(
        tmp_path, TierConfig(url=f"memory://{name}", chunk_size=2000), disk=disk, registry=registry
    )
    engine.create_shard(SHARD, ShardConfig(tiering=ShardTiering(local_retention_bytes=1)))
    flat = engine.tiers.flat(SHARD)
    assert flat is not None
    provider = FaultyProvider(MemoryProvider(name))
    flat.manifest.provider = flat.provider = provider  # type: ignore[misc]  # a fault is put in
    provider.is_gone = True
    fill(engine.store, 200, size=1000)  # several files of the log
    engine.dispatcher.upload_all()
    assert SHARD in engine.dispatcher.failures()
    disk.used = 95
    engine.store.retention.run()
    with pytest.raises(DiskFullError, match="refused"):
        engine.write(SHARD, record(200))
    assert engine.store.bounds(SHARD).earliest == 0, "the tier has none of it"
    assert len(engine.read_by_offset(SHARD, Offset(0), max_records=500)) == 200
    assert registry.get_sample_value("penstock_tier_upload_failures_total") == 1
    provider.is_gone = False
    engine.dispatcher.upload_all()
    engine.store.retention.run()
    assert engine.store.bounds(SHARD).earliest > 100, "now the tier has it"
    disk.used = 10
    engine.store.retention.run()
    engine.write(SHARD, record(200))
    assert len(engine.read_by_offset(SHARD, Offset(0), max_records=500)) == 201
    engine.close()


def test_topics_that_are_kept_long_live_on_in_flat_files(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    limits = TierLimits(long_after_ms=72 * HOUR_MS)
    engine = engine_with(tmp_path, TierConfig(url=url, chunk_size=2000), limits=limits)
    configs = {
        "short": ShardConfig(retention_ms=HOUR_MS),
        "plain": ShardConfig(),
        "long": ShardConfig(retention_ms=1000 * HOUR_MS),
        "compacted": ShardConfig(cleanup=Cleanup.COMPACT),
        "refused": ShardConfig(retention_ms=1000 * HOUR_MS, tiering=ShardTiering(enabled=False)),
    }
    for topic, config in configs.items():
        engine.create_shard(SHARD._replace(topic=topic), config)
    assert [one.topic for one in engine.tiers.shards()] == ["compacted", "long"]
    long = SHARD._replace(topic="long")
    engine.alter_shard(long, ShardConfig(retention_ms=HOUR_MS))
    assert long in engine.tiers.shards(), "what it has in the tier is still its own"
    engine.close()
    engine = engine_with(tmp_path, TierConfig(url=url, chunk_size=2000), limits=limits)
    assert [one.topic for one in engine.tiers.shards()] == ["compacted", "long"]
    engine.close()


def test_the_reserve_time_of_a_topic_decides_how_long_its_tier_keeps_records(
    tmp_path: Path,
) -> None:
    engine = engine_with(tmp_path, memory_config())
    engine.create_shard(
        SHARD, ShardConfig(retention_ms=FOREVER_MS, tiering=ShardTiering(local_retention_bytes=1))
    )
    fill(engine.store, 200)
    engine.dispatcher.upload_all()
    flat, metadata = engine.tiers.flat(SHARD), engine.tiers.metadata_store
    assert flat is not None
    assert metadata is not None
    engine.tier_upkeep.run_once()
    assert flat.min_offset == 0, "the topic's own retention has no limit"
    # Record n is from second n after 1,700,000,000.
    metadata.update_topic_reserve_time(SHARD.topic, flat.clock.expiry_ms() - 1_700_000_100_000)
    engine.tier_upkeep.run_once()
    assert 80 <= flat.min_offset <= 100
    metadata.update_topic_reserve_time(SHARD.topic, 1)
    engine.tier_upkeep.run_once()
    assert flat.min_offset == 200
    metadata.update_topic_reserve_time(SHARD.topic, -1)
    assert flat.metadata.reserve_ms() is None
    engine.close()


def test_compaction_of_a_tier_reads_what_is_new_and_frees_what_is_dead(tmp_path: Path) -> None:
    config = TierConfig(
        url=f"memory://{uuid.uuid4().hex}", chunk_size=2000, segment_size=6000, grace_ms=0
    )
    engine = engine_with(tmp_path, config)
    engine.create_shard(SHARD, ShardConfig(cleanup=Cleanup.COMPACT, tiering=ShardTiering()))
    for n in range(300):
        engine.write(SHARD, Record(b"%d" % n, key=b"k%d" % n))
    engine.dispatcher.upload_all()
    engine.store.delete_before(SHARD, 300)
    engine.compact(SHARD)
    flat = engine.tiers.flat(SHARD)
    assert flat is not None
    before = flat.current()
    assert before is not None
    for n in range(200):
        engine.write(SHARD, Record(b"again %d" % n, key=b"k%d" % n))
    engine.dispatcher.upload_all()
    assert engine.compact(SHARD).records == 200
    flat.upkeep.seal(only_if_due=False)
    engine.tier_upkeep.run_once()
    after = flat.refresh()
    assert after is not None
    assert after.deleted == (), "holes without bytes are not listed"
    assert sum(one.data_size for one in after.segments) < 1.3 * before.data_size
    found = engine.read_by_offset(SHARD, Offset(0), max_records=1000)
    assert [one.offset for one in found] == [*range(200, 500)]
    assert engine.compact(SHARD).records == 0
    engine.close()


def test_tombstones_leave_a_tier_and_bring_nothing_back(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, memory_config())
    kept = ShardConfig(cleanup=Cleanup.COMPACT, tiering=ShardTiering())
    engine.create_shard(SHARD, kept)
    for value in (b"1", None):
        for n in range(50):
            engine.write(SHARD, Record(value, key=b"k%d" % n))
    engine.dispatcher.upload_all()
    engine.store.delete_before(SHARD, 75)  # the tombstones of 25 keys are in the tier only
    assert engine.compact(SHARD).records == 50
    assert engine.compact(SHARD).again_ms is not None, "tombstones wait"
    engine.alter_shard(SHARD, replace(kept, tombstone_retention_ms=0))
    assert engine.compact(SHARD).records == 50
    assert engine.read_by_offset(SHARD, Offset(0)) == []
    assert [engine.read_by_key(SHARD, key) for key in (b"k0", b"k49")] == [None, None]
    assert engine.compact(SHARD) == Compacted(0, 0, None)
    engine.close()


def test_a_tombstone_stays_in_the_log_until_the_tier_has_lost_what_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(tmp_path, memory_config())
    kept = ShardConfig(cleanup=Cleanup.COMPACT, tiering=ShardTiering(), tombstone_retention_ms=0)
    engine.create_shard(SHARD, kept)
    engine.write(SHARD, Record(b"1", key=b"k"))
    engine.dispatcher.upload_all()
    engine.store.delete_before(SHARD, 1)
    engine.write(SHARD, Record(None, key=b"k"))
    flat = engine.tiers.flat(SHARD)
    assert flat is not None
    with monkeypatch.context() as patch:
        patch.setattr(flat.upkeep, "delete_ranges", [].pop)
        for _ in range(3):
            with pytest.raises(TypeError):
                engine.compact(SHARD)
    found = engine.read_by_key(SHARD, b"k")
    assert found is not None
    assert found.value is None
    assert sum(engine.compact(SHARD).records for _ in range(2)) == 2
    assert engine.read_by_offset(SHARD, Offset(0)) == []
    engine.close()


def test_the_scrubber_finds_a_flipped_bit_by_itself(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    config = TierConfig(url=url, chunk_size=2000, segment_size=10_000)
    clock, registry = ManualClock(), CollectorRegistry()
    metrics = TierMetrics(registry)
    tiers = ShardTiers(config, clock=clock, damage=DamageReports(metrics, clock))
    tiers.watch(SHARD, ShardConfig(tiering=ShardTiering()))
    flat = tiers.flat(SHARD)
    assert flat is not None
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 100)
        flat.acquire()
        upload(store, flat)
    limits = TierLimits(interval_ms=1000, scrub_size=3000)
    upkeep = TierUpkeep(tiers, limits, metrics)
    chunks = sorted((tmp_path / "tier").glob("orders/0/*.chunk"))
    damaged = bytearray(chunks[-1].read_bytes())
    damaged[50] ^= 1
    chunks[-1].write_bytes(bytes(damaged))
    rounds = 0
    while not registry.get_sample_value("penstock_tier_damaged_chunks_total"):
        clock.advance(1.0)
        upkeep.run_if_due()
        rounds += 1
        assert rounds < 100
    assert rounds > 1, "a slice at a time"
    scrubbed = registry.get_sample_value("penstock_tier_scrubbed_bytes_total")
    clock.advance(0.5)
    upkeep.run_if_due()
    assert registry.get_sample_value("penstock_tier_scrubbed_bytes_total") == scrubbed


def test_parts_that_were_read_come_from_the_disk(tmp_path: Path) -> None:
    config = memory_config(chunk_size=20_000)
    provider = open_provider(config.url)
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 300, size=200)
        flat = CompositeFlatFile(config, SHARD, provider=provider)
        flat.acquire()
        upload(store, flat)
        expected = store.read(SHARD, 0)
    cache = tmp_path / "cache"
    settings = FetchSettings(
        cache_size=0, small_read_size=0, disk_cache_path=str(cache), disk_cache_size=200_000
    )
    fetcher = Fetcher(provider, settings)

    def read() -> list[object]:
        flat = CompositeFlatFile(config, SHARD, provider=provider, fetcher=fetcher)
        found: list[object] = []
        offset = 0
        while offset < 300:
            page = flat.reader.read(TierQuery(offset, max_records=50))
            found += page.records
            offset = page.next_offset
        return found

    assert read() == expected
    requests = fetcher.requests
    assert read() == expected
    assert fetcher.requests == requests, "everything was on the disk"
    for file in cache.iterdir():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    assert read() == expected, "damage is fetched again"
    assert fetcher.requests > requests
    assert sum(file.stat().st_size for file in cache.iterdir()) <= 200_000
    fetcher.close()


def test_a_pulled_shard_keeps_its_offsets(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    config = TierConfig(url=url, chunk_size=2000)
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 100)
        store.delete_before(SHARD, 10)
        flat = CompositeFlatFile(config, SHARD)
        flat.acquire()
        upload(store, flat)
        flat.upkeep.delete_ranges([(20, 30)])
        expected = [one for one in store.read(SHARD, 10) if not 20 <= one.offset < 30]
    assert pull_shard(config, SHARD, str(tmp_path / "pulled")) == 80
    with SegmentStore.open(str(tmp_path / "pulled")) as store:
        found = store.read(SHARD, 0)
        assert store.bounds(SHARD).earliest == 10
    assert [(one.offset, one.value) for one in found] == [
        (one.offset, one.value) for one in expected
    ]
    assert pull_shard(config, SHARD, str(tmp_path / "renumbered"), renumber=True) == 80
    with SegmentStore.open(str(tmp_path / "renumbered")) as store:
        assert [one.offset for one in store.read(SHARD, 0)] == [*range(80)]
    with pytest.raises(BadRequestError, match="holds a store already"):
        pull_shard(config, SHARD, str(tmp_path / "pulled"))
    told = CliRunner().invoke(build(), ["tier", "pull", url, "orders_0", str(tmp_path / "by-hand")])
    assert "80 records, offsets 10 to 100" in told.stdout
