"""Topics with tiering, through `penstock.open`: the log is a window, the topic is all of it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tests.tiered.cold_engines import BatchColdHarness, ColdEngine
from tests.tiered.rig import open_store
from typer.testing import CliRunner

import penstock
from penstock.cli import build
from penstock.engine.routing.storage_cache import shard_config
from penstock.meta.state.model import TieringPolicy, TopicConfig
from penstock.node.node import Node
from penstock.record import Offset, Record, ShardId
from penstock.settings import EMBEDDED, merge_settings
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.providers import open_provider
from penstock.tiered.shard_tiers import ShardTiers
from penstock.tiered.upload.dispatcher import TieredDispatcher

BORN_MS = 1_700_000_000_000
SMALL = {
    "broker__commit_log_file_size": 1 << 16,
    "tiering__chunk_size": 8192,
    "tiering__segment_size": 40_000,
    "tiering__upload_interval_ms": 50,
}


def engine_of(node: Node) -> TieredSegmentEngine:
    engine = node.engines.opened()["EngineSegment"]
    assert isinstance(engine, TieredSegmentEngine)
    return engine


def shard_of(node: Node) -> ShardId:
    (shard,) = engine_of(node).list_shard()
    return shard


def test_a_topic_outlives_its_log(tmp_path: Path) -> None:
    policy = TieringPolicy(local_retention_bytes=20_000)
    with penstock.open(str(tmp_path / "data"), **SMALL) as store:
        topic = store.create_topic("orders", tiering=policy)
        for n in range(0, 2000, 100):
            topic.write_many(
                [
                    penstock.Record(f"value {n + i}".encode() * 5, key=f"k{(n + i) % 9}".encode())
                    for i in range(100)
                ]
            )
        store.run_upkeep()
        store.run_upkeep()
    with Node(str(tmp_path / "data"), merge_settings(EMBEDDED, SMALL)) as node:
        engine, shard = engine_of(node), shard_of(node)
        local = engine.store.bounds(shard)
        assert local.earliest > 1000, "the log is a window"
        info = engine.shard_info(shard)
        assert (info.earliest, info.commit) == (0, 2000)
        offset, values = 0, []
        while page := engine.read_by_offset(shard, Offset(offset), max_records=333):
            values += [record.value for record in page]
            offset = page[-1].offset + 1
        assert values == [f"value {n}".encode() * 5 for n in range(2000)]
        assert len(engine.query_by_key(shard, b"k3", limit=10_000)) == len(range(3, 2000, 9))


def test_the_command_line_reads_across_the_seam(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with penstock.open(data, **SMALL) as store:
        topic = store.create_topic("orders", tiering=TieringPolicy(local_retention_bytes=20_000))
        for first in range(0, 1200, 100):
            topic.write_many([row(n) for n in range(first, first + 100)])
        store.run_upkeep()
        store.run_upkeep()
    with Node(data, merge_settings(EMBEDDED, SMALL)) as node:
        seam = int(engine_of(node).store.bounds(shard_of(node)).earliest)
    assert 100 < seam < 1200
    described = CliRunner().invoke(build(), ["topic", "describe", "orders", "--data", data])
    assert "in log from" in described.output
    assert str(seam) in described.output

    def consumed(*arguments: str) -> list[int]:
        command = ["consume", "orders", "--data", data, "--json", *arguments]
        result = CliRunner().invoke(build(), command)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["offset"] for line in result.stdout.splitlines()]

    assert consumed() == [*range(1200)]
    assert consumed("--offset", str(seam - 5), "--limit", "10") == [*range(seam - 5, seam + 5)]
    assert consumed("--key", "k3") == [*range(3, 1200, 9)]
    assert consumed("--tag", "t5") == [*range(5, 1200, 7)]
    assert consumed("--since", str(BORN_MS + 1000 * (seam - 3))) == [*range(seam - 3, 1200)]
    assert consumed("--since", str(BORN_MS + 1000 * (seam + 3))) == [*range(seam + 3, 1200)]


def test_the_command_line_says_when_and_where_a_topic_is_tiered(tmp_path: Path) -> None:
    data = str(tmp_path / "data")

    def topic(*arguments: str) -> str:
        command = ["topic", arguments[0], "orders", "--data", data, *arguments[1:]]
        result = CliRunner().invoke(build(), command)
        assert result.exit_code == 0, result.output
        return result.stdout

    def options(described: str) -> dict[str, str]:
        pairs = (line.split(maxsplit=1) for line in described.splitlines())
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}

    url = f"file://{tmp_path}/elsewhere"
    first = [f"tiering.provider={url}", "tiering.local_retention_bytes=20000", "retention_ms=9000"]
    topic("create", *(word for each in first for word in ("--set", each)))
    topic("alter", "--set", "tiering.upload_interval_ms=1000", "--set", "tiering.upload_bytes=5000")
    shown = options(topic("describe"))
    assert shown["tiering"] == "on"
    assert shown["tiering.upload_interval_ms"] == "1000"
    with Node(data, merge_settings(EMBEDDED, SMALL)) as node:
        flat = engine_of(node).tiers.flat(shard_of(node))
        assert flat is not None
        assert (flat.config.url, flat.config.chunk_size) == (url, 5000)
    topic("alter", "--set", "tiering=off", "--set", "tiering.upload_bytes=none")
    shown = options(topic("describe"))
    assert (shown["tiering"], shown.get("tiering.upload_bytes")) == ("off", None)
    with Node(data, merge_settings(EMBEDDED, SMALL)) as node:
        assert engine_of(node).tiers.flat(shard_of(node)) is None


def row(n: int) -> Record:
    """A record that key, tag and time tell apart from its neighbours."""
    return Record(
        b"value %d " % n * 5,
        key=b"k%d" % (n % 9),
        tags=(f"t{n % 7}",),
        timestamp_ms=BORN_MS + 1000 * n,
    )


def test_a_topic_says_when_and_in_which_pieces_it_is_uploaded(tmp_path: Path) -> None:
    clock = ManualClock()
    tiers = ShardTiers(TierConfig(url=f"memory://{uuid.uuid4().hex}"), clock=clock)
    with open_store(tmp_path / "store") as store:
        dispatcher = TieredDispatcher(store, tiers, interval_ms=60_000, clock=clock)
        eager, patient, large = (ShardId(name, 0) for name in ("eager", "patient", "large"))
        policies = {
            eager: TieringPolicy(upload_interval_ms=1000),
            patient: TieringPolicy(),
            large: TieringPolicy(upload_interval_ms=600_000, upload_bytes=5000),
        }
        for shard, policy in policies.items():
            store.create_shard(shard)
            tiers.watch(shard, shard_config(TopicConfig(tiering=policy)))
            store.append(shard, Record(b"1"))
            assert dispatcher.advance(shard, 0, 1) == 1
        assert dispatcher.run_once() == 0, "none is due"
        clock.advance(2)
        assert dispatcher.run_once() == 1
        assert tiers.bounds(eager) == (0, 1)
        for _ in range(30):
            at = store.append(large, Record(b"v" * 400))
            dispatcher.advance(large, at, at + 1)
        assert dispatcher.run_once() == 1, "many bytes have come"
        flat = tiers.flat(large)
        assert flat is not None
        chunks = list(flat.manifest.chunks_from(-1, flat.current()))
        assert len(chunks) > 2
        assert all(chunk.data_size <= 5000 for chunk in chunks)
        clock.advance(60)
        assert dispatcher.run_once() == 1
        assert tiers.bounds(patient) == (0, 1)
        tiers.watch(large, shard_config(TopicConfig(tiering=TieringPolicy(upload_bytes=9000))))
        assert tiers.chunk_size_of(large) == 9000
        assert tiers.chunk_size_of(patient) == tiers.config.chunk_size
    tiers.close()


def test_batches_of_the_tier_are_told_from_those_of_the_log(tmp_path: Path) -> None:
    harness = BatchColdHarness(tmp_path)
    engine = harness.make()
    assert isinstance(engine, ColdEngine)
    shard = ShardId("orders", 0)
    engine.create_shard(shard, harness.base_config)
    for n in range(10):
        engine.batch_write(shard, [penstock.Record(b"%d" % n)] * 3)
    assert engine.bounds(shard) == (0, 30)
    assert engine.store.bounds(shard).earliest == 15
    page = engine.read_batches(shard, 0, 30, 1 << 20)
    assert (page.parts, page.next_offset) == ([], 0)
    assert page.foreign is not None
    assert page.foreign.end_offset == 15
    harness.close()


def test_a_deleted_topic_leaves_nothing_in_the_tier(tmp_path: Path) -> None:
    settings = {**SMALL, "tiering__grace_ms": 0}
    with penstock.open(str(tmp_path / "data"), **settings) as store:
        topic = store.create_topic("orders", tiering=TieringPolicy())
        for _ in range(3):
            topic.write_many([penstock.Record(b"x" * 100) for _ in range(100)])
        store.run_upkeep()
        tier = open_provider(f"file://{tmp_path}/data/tier")
        assert list(tier.list())
        topic.delete()
        store.run_upkeep()
        assert list(tier.list()) == []


def test_without_tiering_there_is_no_tier(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "data"), **SMALL) as store:
        store.create_topic("orders").write_many([penstock.Record(b"x")] * 10)
        store.run_upkeep()
    assert not (tmp_path / "data" / "tier").exists()
    assert not (tmp_path / "data" / "tier-meta").exists()
