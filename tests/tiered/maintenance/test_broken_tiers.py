"""Tiers that cannot be used as they are set up: told when they are named; and where one is there
all the same, it is the trouble of its own topic and of no other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from tests.tiered.rig import SHARD, fill, memory_config, open_store, upload

import penstock
from penstock.adapter.requests import ReadByKey
from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.errors import BadRequestError, TierSetupError
from penstock.meta.state.model import TieringPolicy
from penstock.node.node import Node
from penstock.record import Offset, Record, ShardId
from penstock.settings import EMBEDDED, merge_settings
from penstock.testing.manual_clock import ManualClock
from penstock.tiered import providers
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.upkeep import TierLimits, TierUpkeep
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.providers import check_address, check_new_address, open_provider
from penstock.tiered.shard_tiers import ShardTiers

HOUR_S = 3600
BROKEN = "s3:/typo"
FORMLESS = ("tier", "tape://x", "s3:/typo", "s3://[", "memory:/x", "file:", "file:///a%00b")
BEFORE, AFTER = ShardId("earlier", 0), ShardId("zebras", 0)
"""They stand in front of and behind the shard with a tier."""


@pytest.mark.parametrize("url", FORMLESS)
def test_an_address_without_the_form_of_one_is_refused_before_it_is_opened(url: str) -> None:
    with pytest.raises(TierSetupError):
        check_address(url)
    with pytest.raises(TierSetupError):
        open_provider(url)


@pytest.mark.parametrize("url", ["s3://a b/x", "s3://bucket//x", "az://con tainer/x"])
def test_an_object_stores_address_is_read_whole(url: str) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(TierSetupError, match="://bucket/prefix"):
        check_address(url)


@pytest.mark.parametrize(
    "url", ["file:///tier?x=1", "memory://name#x", "memory://\x07", "memory://\udcff"]
)
def test_what_would_be_passed_over_is_no_part_of_a_new_address(url: str) -> None:
    with pytest.raises(TierSetupError):
        check_new_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "memory://name/some/prefix",
        "file:///var/lib/the tier",
        "FILE:/var/lib/tier",
        "s3://bucket/prefix",
        "gs://bucket",
        "az://container/prefix",
        "abfs://container@account.dfs.core.windows.net/prefix",
    ],
)
def test_an_address_is_checked_without_a_tier_behind_it(url: str) -> None:
    if not url.lower().startswith(("memory", "file")):
        pytest.importorskip("obstore")
    check_new_address(url)


def test_a_check_of_an_address_makes_no_directory(tmp_path: Path) -> None:
    check_new_address(f"file://{tmp_path}/tier")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_provider_that_fails_to_open_is_a_matter_of_setup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint("tape", "builtins:int", "penstock.tier_providers")
    monkeypatch.setattr(providers, "entry_points", lambda **_: [point])
    with pytest.raises(TierSetupError, match="cannot open it"):
        open_provider("tape://x")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def open_node(path: str) -> Node:
    return Node(path, merge_settings(EMBEDDED, {}), background=False)


def engine_of(node: Node) -> TieredSegmentEngine:
    engine = node.engines.opened()["EngineSegment"]
    assert isinstance(engine, TieredSegmentEngine)
    return engine


@pytest.fixture
def node(path: str) -> Iterator[Node]:
    """Topics a, b and c, of which b has an address that an earlier version let through."""
    with open_node(path) as first:
        for name in "abc":
            options = {"tiering": "on", "retention_records": 5}
            topic = first.admin.create_topic_full(name, options=options)
            first.driver_manager.batch_write(name, [Record(b"v")] * 10, partition=0)
            if name == "b":
                broken = replace(topic.config, tiering=TieringPolicy(provider=BROKEN))
                first.meta.alter_topic(topic.topic_id, config=broken)
    with open_node(path) as second:
        yield second


def test_a_tier_that_cannot_be_opened_is_reported_and_keeps_no_other_from_its_upkeep(
    node: Node,
) -> None:
    for _ in range(2):
        node.run_upkeep()
    for name in "ac":
        info = node.driver_manager.shard_info(name, 0)
        assert (info.earliest, info.commit) == (5, 10)
    failed = engine_of(node).upload_now().failed
    topic_id = node.broker_cache.get_topic("b").topic_id
    assert set(failed) - {"scrubber"} == {ShardId(topic_id, 0).name}
    assert all(BROKEN in reason for reason in failed.values())


def test_a_topic_whose_tier_cannot_be_opened_is_written_read_and_described(node: Node) -> None:
    node.driver_manager.write("b", Record(b"w", key=b"k"))
    description = node.admin.describe_topic("b")
    assert [(part.info.earliest, part.info.commit) for part in description.partitions] == [(0, 11)]
    assert len(node.driver_manager.read_by_offset("b", 0, Offset(0))) == 11
    assert node.driver_manager.execute(ReadByKey("b", b"k")) is not None


def test_a_topic_whose_tier_cannot_be_opened_is_altered_to_one_that_can(node: Node) -> None:
    node.admin.alter_topic("b", options={"retention_ms": 10**9})
    with pytest.raises(BadRequestError, match=r"tiering\.provider"):
        node.admin.alter_topic("b", options={"tiering.provider": "s3:/other"})
    node.admin.alter_topic("b", options={"tiering.provider": "memory://mended"})
    assert engine_of(node).upload_now().failed == {}
    assert list(open_provider("memory://mended").list("")) != []


def test_a_tier_that_cannot_be_opened_is_switched_off_and_not_on_again(node: Node) -> None:
    node.admin.alter_topic("b", options={"tiering": "off"})
    assert engine_of(node).upload_now().failed == {}
    with pytest.raises(BadRequestError, match=r"tiering\.provider"):
        node.admin.alter_topic("b", options={"tiering": "on"})


def test_a_topic_whose_tier_cannot_be_opened_is_deleted_for_good(node: Node, path: str) -> None:
    node.admin.delete_topic("b")
    assert engine_of(node).upload_now().failed == {}
    assert node.meta.list_deleting_topics() == []
    node.close()
    with open_node(path) as again:
        assert [topic.name for topic in again.broker_cache.list_topics()] == ["a", "c"]
        assert engine_of(again).upload_now().failed == {}


def test_a_refused_topic_leaves_nothing_to_look_after(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "data")) as store:
        store.create_topic("good", tiering="on")
        with pytest.raises(BadRequestError, match=r"tiering\.provider"):
            store.create_topic("bad", tiering=TieringPolicy(provider=BROKEN))
        store.run_upkeep()
        assert store.topics() == ["good"]


def test_a_nodes_own_tier_without_an_address_is_told_at_once(path: str) -> None:
    with (
        pytest.raises(TierSetupError, match=r"tiering\.url"),
        penstock.open(path, tiering__url=BROKEN) as store,
    ):
        store.create_topic("orders")
    with penstock.open(path) as store:
        assert store.topics() == []
        store.create_topic("orders").write(b"v")


def test_a_shard_is_forgotten_also_when_its_tier_cannot_be_opened() -> None:
    tiers = ShardTiers(memory_config())
    tiers.watch(SHARD, ShardConfig(tiering=ShardTiering(url=BROKEN)))
    assert tiers.bounds(SHARD) == (0, 0)
    with pytest.raises(TierSetupError):
        tiers.remove(SHARD)
    assert tiers.shards() == []
    assert tiers.remove(SHARD) is None


def test_the_scrubber_goes_on_behind_a_shard_whose_tier_cannot_be_opened(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    tiers = ShardTiers(memory_config())
    for shard in (BEFORE, AFTER):
        tiers.watch(shard, ShardConfig(tiering=ShardTiering(url=BROKEN)))
    tiers.watch(SHARD, ShardConfig(tiering=ShardTiering()))
    flat = tiers.flat(SHARD)
    assert flat is not None
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 100)
        flat.acquire()
        upload(store, flat)
    upkeep = TierUpkeep(tiers, TierLimits(), TierMetrics(registry))
    reports = [upkeep.run_once() for _ in range(2)]
    assert all(report.failed.keys() >= {BEFORE.name, AFTER.name} for report in reports)
    assert registry.get_sample_value("penstock_tier_scrubbed_bytes_total")


def test_a_damaged_manifest_keeps_no_other_destroyed_shard(tmp_path: Path) -> None:
    config, clock = memory_config(), ManualClock()
    provider = config.open()
    tiers = ShardTiers(config, clock=clock)
    tiers.watch(SHARD, ShardConfig(tiering=ShardTiering()))
    flat = tiers.flat(SHARD)
    assert flat is not None
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 10)
        flat.acquire()
        upload(store, flat)
    provider.put_if_absent("earlier/0/manifest", b"no manifest")
    assert tiers.remove(SHARD) is flat
    flat.destroy()
    clock.advance(2 * HOUR_S)
    report = TierUpkeep(tiers).run_once()
    assert list(report.failed) == [f"{provider.url}/{BEFORE.name}"]
    assert [info.key for info in provider.list("")] == ["earlier/0/manifest"]
