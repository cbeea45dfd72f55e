"""A reader of a data directory finds the tier of each topic, beside the node and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import NotAStoreError
from penstock.meta.state.model import TieringPolicy
from penstock.tiered.catalog.directory_tiers import TIER_URL, find_tiers, own_tier_url
from penstock.tiered.providers import open_provider

SMALL = {"broker__commit_log_file_size": 1 << 16, "tiering__upload_interval_ms": 50}


def test_each_topic_of_a_directory_tells_its_tier(tmp_path: Path) -> None:
    data, own = str(tmp_path / "data"), f"file://{tmp_path}/own"
    other = f"file://{tmp_path}/other"
    with penstock.open(data, tiering__url=own, **SMALL) as store:
        store.create_topic("plain").write(penstock.Record(b"x"))
        store.create_topic("orders", partitions=2, tiering=TieringPolicy())
        store.create_topic("events", tiering=TieringPolicy(provider=other))
        store.topic("orders").write(penstock.Record(b"x"))
        store.run_upkeep()
        beside = {(tier.topic_id, tier.url) for tier in find_tiers(data)}
    found = {tier.name: tier for tier in find_tiers(data)}
    assert {(tier.topic_id, tier.url) for tier in found.values()} == beside
    assert set(found) == {"orders", "events"}
    assert (found["orders"].url, found["events"].url) == (own, other)
    orders = found["orders"]
    assert (orders.partitions, orders.namespace, orders.uploader) == ((0, 1), "default", "broker")
    keys = {info.key for info in open_provider(own).list()}
    assert keys & {orders.manifest(partition) for partition in orders.partitions}
    assert all(key.startswith(orders.prefix) for key in keys if "/" in key)


def test_the_default_tier_moves_with_its_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(str(data), **SMALL) as store:
        store.create_topic("orders", tiering=TieringPolicy()).write(penstock.Record(b"x"))
        store.run_upkeep()
    moved = data.rename(tmp_path / "moved")
    assert [tier.url for tier in find_tiers(str(moved))] == [f"file://{moved}/tier"]
    (moved / TIER_URL).unlink()
    assert own_tier_url(str(moved)) == f"file://{moved}/tier", "as of an earlier version"


def test_a_directory_without_a_store_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="segment"):
        find_tiers(str(tmp_path))
