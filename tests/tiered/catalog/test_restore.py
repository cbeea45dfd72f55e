"""With the data directory gone, a node is made of its tier alone: topics, offsets and groups."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tiered.providers.gcs_stand_in import running_stand_in
from typer.testing import CliRunner

import penstock
from penstock.cli import build
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    NotSupportedError,
    SetupError,
    StoreError,
)
from penstock.meta.state.model import TieringPolicy
from penstock.testing import CHANGES, FaultyDisk, PowerCut
from penstock.tiered.admin import attach_tier, restore_tier
from penstock.tiered.catalog import restore as tier_restore
from penstock.tiered.catalog.catalog import (
    Catalogue,
    decode_catalogue,
    encode_catalogue,
    list_catalogues,
    put_catalogue,
)
from penstock.tiered.catalog.directory_tiers import ATTACHING
from penstock.tiered.catalog.restore import publish_directory
from penstock.tiered.config import TierConfig
from penstock.tiered.providers import open_provider

SMALL = {
    "broker__commit_log_file_size": 1 << 16,
    "tiering__chunk_size": 8192,
    "tiering__segment_size": 40_000,
    "tiering__upload_interval_ms": 50,
}
NEW_STORE = SegmentSettings(
    sizes=FileSizes(commit_log_file_size=1 << 16, index_slots=100, index_entries_max=1000)
)
COUNT = 600


@pytest.fixture(params=["file", "gs"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/tier"
        return
    pytest.importorskip("obstore")
    with running_stand_in() as server:
        # As an operator gives them: credentials come from the environment.
        options = server.options()
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", options["service_account_key"])
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield "gs://bucket/penstock"


def filled(data: Path, url: str) -> dict[str, str]:
    """Make a node with two topics in the tier, of which a group has read some; return ids."""
    with penstock.open(str(data), tiering__url=url, **SMALL) as store:
        policy = TieringPolicy(local_retention_bytes=20_000)
        store.create_topic("orders", partitions=2, tiering=policy, retention_ms=10**11)
        store.create_topic("events", queue="batch", tiering=TieringPolicy())
        store.create_topic("plain").write(penstock.Record(b"not in the tier"))
        write(store, 0, COUNT)
        store.topic("events").write_many([penstock.Record(b"event %d" % n) for n in range(50)])
        consumer = store.consumer("readers", "orders")
        while sum(consumer.committed().values()) < COUNT:
            consumer.poll(max_records=100)
            consumer.commit()
        store.run_upkeep()
        store.run_upkeep()
        return {info.name: info.topic_id for info in store.list_topics()}


def write(store: penstock.Store, first: int, end: int) -> None:
    for start in range(first, end, 100):
        for partition in (0, 1):
            records = [value(partition, n) for n in range(start, min(start + 100, end))]
            store.topic("orders").write_many(records, partition=partition)


def value(partition: int, n: int) -> penstock.Record:
    return penstock.Record(b"value %d/%d " % (partition, n) * 5, key=b"k%d" % (n % 9))


def check_orders(store: penstock.Store, count: int) -> None:
    for partition in (0, 1):
        found = list(store.topic("orders").records(partition=partition))
        assert [one.offset for one in found] == list(range(count))
        assert [one.value for one in found] == [value(partition, n).value for n in range(count)]


def restore(url: str, data: Path) -> dict[str, object]:
    config = data.with_suffix(".toml")
    config.write_text(f"[broker]\ncommit_log_file_size = {SMALL['broker__commit_log_file_size']}\n")
    command = ["tier", "restore", url, "--data", str(data), "--config", str(config), "--json"]
    result = CliRunner().invoke(build(), command)
    assert result.exit_code == 0, result.exception
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_node_is_made_of_its_tier_alone(tmp_path: Path, url: str) -> None:
    ids = filled(tmp_path / "old", url)
    shutil.rmtree(tmp_path / "old")
    done = restore(url, tmp_path / "new")
    assert (done["topics"], done["groups"], done["offsets_moved_back"]) == (2, 1, 0)
    with penstock.open(str(tmp_path / "new"), **SMALL) as store:
        assert {info.name: info.topic_id for info in store.list_topics()} == {
            name: ids[name] for name in ("orders", "events")
        }
        (orders,) = [info for info in store.list_topics() if info.name == "orders"]
        assert orders.config.retention_ms == 10**11
        assert orders.config.tiering is not None
        assert orders.config.tiering.local_retention_bytes == 20_000
        check_orders(store, COUNT)
        events = [one.value for one in store.topic("events").records()]
        assert events == [b"event %d" % n for n in range(50)]
        assert len(store.topic("orders").query(b"k3", limit=10_000)) == 2 * len(range(3, COUNT, 9))
        consumer = store.consumer("readers", "orders")
        committed = consumer.committed()
        assert sum(committed.values()) == COUNT
        write(store, COUNT, COUNT + 250)
        rest = {(one.partition, one.offset) for one in consumer}
        assert len(rest) == COUNT + 500
        assert min(n for partition, n in rest if partition == 0) == committed["orders", 0]
        store.run_upkeep()
        check_orders(store, COUNT + 250)
    with penstock.open(str(tmp_path / "new"), **SMALL) as store:
        check_orders(store, COUNT + 250)
    shutil.rmtree(tmp_path / "new")
    restore(url, tmp_path / "third")
    with penstock.open(str(tmp_path / "third"), **SMALL) as store:
        check_orders(store, COUNT + 250)


def test_the_old_node_can_no_longer_change_the_tier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"file://{tmp_path}/tier"
    filled(tmp_path / "old", url)
    restore(url, tmp_path / "new")
    before = {path for path in (tmp_path / "tier").rglob("*") if path.is_file()}
    with penstock.open(str(tmp_path / "old"), tiering__url=url, **SMALL) as store:
        write(store, COUNT, COUNT + 100)
        store.run_upkeep()
        store.topic("orders").delete()
        assert "orders" not in store
    assert "tier_not_emptied" in caplog.text
    after = {path for path in (tmp_path / "tier").rglob("*") if path.is_file()}
    assert before <= after
    with penstock.open(str(tmp_path / "new"), **SMALL) as store:
        write(store, COUNT, COUNT + 50)
        store.run_upkeep()
        check_orders(store, COUNT + 50)


def test_a_commit_above_the_end_of_the_tier_is_moved_back(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    filled(tmp_path / "old", url)
    provider = open_provider(url)
    (catalogue,) = list_catalogues(provider)
    (group,) = catalogue.groups
    ahead = tuple(replace(one, offset=one.offset + 10_000) for one in group.offsets)
    put_catalogue(provider, replace(catalogue, groups=(replace(group, offsets=ahead),)))
    shutil.rmtree(tmp_path / "old")
    assert restore(url, tmp_path / "new")["offsets_moved_back"] == len(ahead)
    with penstock.open(str(tmp_path / "new"), **SMALL) as store:
        consumer = store.consumer("readers", "orders")
        write(store, COUNT, COUNT + 10)
        assert len(list(consumer)) == 20, "what is written now is not passed over"


def test_a_tier_without_a_catalogue_is_restored_by_its_ids(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    filled(tmp_path / "old", url)
    shutil.rmtree(tmp_path / "old")
    for path in (tmp_path / "tier").glob("catalogue-*"):
        path.unlink()
    done = restore(url, tmp_path / "new")
    assert (done["catalogue_ms"], done["groups"]) == (0, 0)
    with penstock.open(str(tmp_path / "new"), **SMALL) as store:
        assert store.topics() == ["events", "orders"]
        check_orders(store, COUNT)


def test_topics_of_a_tier_are_added_to_a_node_that_has_others(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/tier", str(tmp_path / "data")
    filled(tmp_path / "old", url)
    with penstock.open(data, **SMALL) as store:
        store.create_topic("own").write(penstock.Record(b"mine"))
    command = ["tier", "attach", url, "--data", data, "--json"]
    assert CliRunner().invoke(build(), command).exit_code == 0
    again = CliRunner().invoke(build(), command)
    assert json.loads(again.stdout)["topics"] == 0, "they are there"
    with penstock.open(data, **SMALL) as store:
        assert store.topics() == ["events", "orders", "own"]
        assert [one.value for one in store.topic("own").records()] == [b"mine"]
        check_orders(store, COUNT)
        assert store.groups() == ["readers"]


def test_an_attach_that_was_cut_short_is_repeated_before_a_node_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = f"file://{tmp_path}/tier", str(tmp_path / "data")
    filled(tmp_path / "old", url)
    with penstock.open(data, **SMALL) as store:
        store.create_topic("own")

    def fail(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(tier_restore, "_restore_offsets", fail)
    with pytest.raises(OSError, match="power cut"):
        attach_tier(TierConfig(url=url), data, NEW_STORE)
    monkeypatch.undo()
    assert (tmp_path / "data" / ATTACHING).exists()
    with pytest.raises(SetupError, match="attach"):
        penstock.open(data, **SMALL)
    attach_tier(TierConfig(url=url), data, NEW_STORE)
    with penstock.open(data, **SMALL) as store:
        check_orders(store, COUNT)
        assert store.groups() == ["readers"]


def test_what_cannot_be_restored_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    (tmp_path / "tier").mkdir()
    with pytest.raises(BadRequestError, match="no topic"):
        restore_tier(TierConfig(url=url), str(tmp_path / "new"), NEW_STORE)
    filled(tmp_path / "old", url)
    with pytest.raises(BadRequestError, match="not empty"):
        restore_tier(TierConfig(url=url), str(tmp_path / "old"), NEW_STORE)
    with pytest.raises(BadRequestError, match="no catalogue of other"):
        restore_tier(TierConfig(url=url), str(tmp_path / "new"), NEW_STORE, cluster_id="other")
    put_catalogue(open_provider(url), Catalogue(cluster_id="other"))
    with pytest.raises(BadRequestError, match="--cluster"):
        restore_tier(TierConfig(url=url), str(tmp_path / "new"), NEW_STORE)
    with pytest.raises(StoreError):
        attach_tier(TierConfig(url=url), str(tmp_path / "none"), NEW_STORE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "tier"]


def test_a_damaged_or_newer_catalogue_is_refused(tmp_path: Path) -> None:
    data = encode_catalogue(Catalogue(cluster_id="c"))
    assert decode_catalogue("c", data).cluster_id == "c"
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x80
        with pytest.raises((CorruptionError, NotSupportedError)):
            decode_catalogue("c", bytes(damaged))
    with pytest.raises(NotSupportedError, match="newer"):
        decode_catalogue("c", data[:8] + b"\x00\x09" + data[10:])


def test_the_catalogue_is_written_only_when_something_changed(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    with penstock.open(str(tmp_path / "data"), tiering__url=url, **SMALL) as store:
        topic = store.create_topic("orders", tiering=TieringPolicy())
        topic.write(penstock.Record(b"x"))
        for _ in range(4):
            store.run_upkeep()
        (catalogue,) = list_catalogues(open_provider(url))
        first = catalogue.revision
        assert first <= 2
        topic.alter(retention_ms=5_000_000)
        store.run_upkeep()
        (catalogue,) = list_catalogues(open_provider(url))
        assert catalogue.revision == first + 1
        assert catalogue.topics[0].config.retention_ms == 5_000_000


@pytest.mark.parametrize("seed", range(5))
def test_a_restored_directory_keeps_its_name_after_a_power_cut(seed: int) -> None:
    call, was_cut = 0, True
    while was_cut:
        disk = FaultyDisk(seed=100 * seed + call)
        disk.make_directory("/srv/data")
        for name in ("meta/CURRENT", "segment/config", "tier-url"):
            disk.replace(f"/srv/data.restoring/{name}", name.encode())
        disk.stop_at_call(call, operations=CHANGES)
        was_cut = False
        try:
            publish_directory(disk, "/srv/data.restoring", "/srv/data")
        except PowerCut:
            was_cut = True
        disk.crash()
        found = [path for path in disk.files() if path.startswith("srv/data/")]
        assert len(found) == 3 or (was_cut and not found), "all of it, or nothing"
        call += 1
    assert call > 2
