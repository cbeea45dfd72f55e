"""Jobs that change a store: they remove what they say and no more, and want the lock."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.engine.segment.readonly.sample_store import QUIET
from tests.kafka_clients import Producer

import penstock
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.contract import Cleanup, ShardConfig, ShardTiering
from penstock.engine.segment import inspect
from penstock.engine.segment.engine import SegmentEngine
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, LockedError, NotAStoreError
from penstock.meta.state.model import TieringPolicy
from penstock.node.node import Node
from penstock.pipeline import jobs
from penstock.record import Record, ShardId
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

WAIT_S = 120.0
KEYED = ShardId("keyed", 0)
SHORT = ShardId("short", 0)
LONG = ShardId("long", 0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a compacted topic, one that keeps 5 records, and one that keeps all; every
    record is from 1970."""
    path = tmp_path / "store"
    engine = SegmentEngine(SegmentStore.open(str(path), QUIET))
    engine.create_shard(KEYED, ShardConfig(cleanup=Cleanup.COMPACT))
    engine.create_shard(SHORT, ShardConfig(retention_records=5))
    engine.create_shard(LONG, ShardConfig())
    for shard in (KEYED, SHORT, LONG):
        for number in range(20):
            engine.write(shard, Record(b"%d" % number, key=b"k%d" % (number % 4), timestamp_ms=1))
    engine.close()
    return path


def offsets(path: Path, shard: ShardId) -> list[int]:
    with ReadOnlyStore.open(str(path)) as view:
        return [record.offset for record in view.read(shard, 0, max_records=1000)]


def test_a_compaction_keeps_the_newest_of_each_key(store: Path) -> None:
    result = jobs.compact(str(store))
    assert [(each.shard, each.removed) for each in result.shards] == [("keyed_0", 16)]
    assert result.rows_removed == 16
    assert result.bytes_removed > 0
    assert offsets(store, KEYED) == [16, 17, 18, 19]
    assert offsets(store, LONG) == [*range(20)]
    assert jobs.compact(str(store)).rows_removed == 0


def test_an_expiry_goes_by_the_topics_own_retention(store: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    result = jobs.expire(str(store), progress=lambda *step: steps.append(step))
    assert steps == [("expire", done, 3) for done in range(3)]
    assert {each.shard: each.removed for each in result.shards} == {
        "keyed_0": 0,
        "long_0": 0,
        "short_0": 15,
    }
    assert offsets(store, SHORT) == [*range(15, 20)]
    assert offsets(store, LONG) == [*range(20)]
    assert jobs.expire(str(store)).rows_removed == 0


def test_a_rebuild_changes_no_shard(sample: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(sample, tmp_path / "copy"))
    before = offsets(path, ShardId("orders", 0))
    shutil.rmtree(path / "index")
    seen: list[str] = []
    result = jobs.rebuild(str(path), progress=lambda what, _done, _total: seen.append(what))
    assert result.rows > 300
    assert result.bytes > 0
    assert result.shards_changed == []
    assert offsets(path, ShardId("orders", 0)) == before
    assert inspect.verify(str(path)).is_whole


def test_a_store_in_use_is_left_alone(store: Path) -> None:
    with SegmentStore.open(str(store), QUIET):
        with pytest.raises(LockedError):
            jobs.compact(str(store))
        with pytest.raises(LockedError):
            jobs.expire(str(store))
        with pytest.raises(LockedError):
            jobs.rebuild(str(store))
    assert offsets(store, SHORT) == [*range(20)]


def test_nothing_is_created_where_no_store_is(store: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    with pytest.raises(NotAStoreError):
        jobs.compact(str(nothing))
    with pytest.raises(NotAStoreError):
        jobs.expire(str(nothing))
    with pytest.raises(NotAStoreError):
        jobs.rebuild(str(nothing))
    assert not nothing.exists()
    with pytest.raises(BadRequestError, match="did you mean 'keyed'"):
        jobs.compact(str(store), topics=["keyd"])
    with pytest.raises(BadRequestError, match="reserved_hours"):
        jobs.expire(str(store), reserved_hours=0)


def test_a_running_node_is_asked_to_compact_and_to_expire(tmp_path: Path) -> None:
    settings = merge_settings(EMBEDDED, {"server": {"port": 0, "http_port": 0}})
    with closing(Server(str(tmp_path / "node"), settings)) as node:
        address = f"127.0.0.1:{node.port}"
        with penstock.connect(address) as store:
            keyed = store.create_topic("keyed", partitions=1, cleanup="compact")
            kept = store.create_topic("kept", partitions=1, retention_records=5)
            for number in range(20):
                for topic in (keyed, kept):
                    topic.write(b"%d" % number, key=b"k%d" % (number % 4))
        result = jobs.compact(address)
        assert result.rows_removed == 16
        assert [(each.shard, each.removed) for each in result.shards] == [("keyed_0", 16)]
        assert jobs.compact(address).rows_removed == 0
        expired = {each.shard: each.removed for each in jobs.expire(address).shards}
        assert expired == {"keyed_0": 0, "kept_0": 15}
        assert jobs.expire(address).rows_removed == 0
        with pytest.raises(BadRequestError, match="did you mean 'keyed'"):
            jobs.compact(address, topics=["keyd"])
        with pytest.raises(BadRequestError, match="uses its own setting"):
            jobs.expire(address, reserved_hours=1)
        # Its directory is refused, with a sentence that says what to do instead.
        for job in (jobs.compact, jobs.expire):
            with pytest.raises(LockedError, match=r"open.*: name that node's host:port"):
                job(str(tmp_path / "node"))
        with pytest.raises(LockedError, match=r"open.*: stop it, rebuild, and start it again"):
            jobs.rebuild(str(tmp_path / "node"))


def test_a_tombstone_stays_while_only_the_tier_may_hold_what_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "store"
    engine = SegmentEngine(SegmentStore.open(str(path), QUIET))
    for shard, tiering in ((KEYED, ShardTiering()), (LONG, None)):
        config = ShardConfig(cleanup=Cleanup.COMPACT, tiering=tiering, tombstone_retention_ms=0)
        engine.create_shard(shard, config)
        engine.write(shard, Record(b"1", key=b"k"))
        engine.write(shard, Record(None, key=b"k"))
        engine.write(shard, Record(b"2", key=b"other"))
        engine.store.delete_before(shard, 1)
    engine.close()
    for _ in range(2):
        jobs.compact(str(path))
    assert offsets(path, KEYED) == [1, 2]
    assert offsets(path, LONG) == [2]


def test_a_compaction_of_a_node_that_is_down_prefers_no_aborted_record(tmp_path: Path) -> None:
    settings = {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}}
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, settings)) as server:
        assert server.kafka is not None
        options = {"queue": "batch", "cleanup": "compact"}
        server.node.admin.create_topic_full("keyed", 1, options)
        producer = Producer(
            {"bootstrap.servers": f"127.0.0.1:{server.kafka.port}", "transactional.id": "t"}
        )
        producer.init_transactions(WAIT_S)
        for value in (b"old", b"committed", b"aborted"):
            producer.begin_transaction()
            producer.produce("keyed", value, key=b"k", partition=0)
            producer.flush(WAIT_S)
            if value == b"aborted":
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
        wait_until_ended(server.node)
    jobs.compact(str(tmp_path / "data"))
    with penstock.open(str(tmp_path / "data")) as store:
        assert [one.value for one in store["keyed"].read(0)] == [b"committed"]


def wait_until_ended(node: Node) -> None:
    """The answer to the producer comes before the marker is in the log."""
    topic = node.broker_cache.get_topic("keyed").topic_id
    shard = build_storage_name(topic, 0)
    deadline = time.monotonic() + WAIT_S
    while node.handler.limits.stable_until(shard) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_a_stopped_node_nothing_goes_that_its_tier_lacks(tmp_path: Path) -> None:
    # Nobody has uploaded anything: Spark is to, and has not been started yet.
    path = str(tmp_path / "data")
    with penstock.open(path, tiering__uploader="spark") as node:
        hot = TieringPolicy(local_retention_ms=1)
        kept = node.create_topic("kept", tiering=hot, partitions=1)
        kept.write_many([Record(b"%d" % number, timestamp_ms=1) for number in range(20)])
    expired = jobs.expire(path, reserved_hours=1e-9)
    assert (expired.rows_removed, expired.left_to_node) == (0, ["kept_0"])
    with penstock.open(path, tiering__uploader="spark") as node:
        assert len(node.topic("kept").read(offset=0, max_records=99)) == 20


def test_nothing_is_expired_by_a_clock_that_the_node_would_not_believe(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(data) as opened:
        opened.create_topic("t", retention_ms=3_600_000).write(b"v")
    saved = {"wall_ms": 1_000_000_000_000, "uptime_ms": 5, "boot_id": "another"}
    (data / "clock").write_bytes(msgspec.json.encode(saved))
    with pytest.raises(BadRequestError, match="penstock clock confirm"):
        jobs.expire(str(data / "segment"))
    with penstock.open(data) as opened:
        assert opened.clock_status().held
        opened.confirm_clock()
    assert jobs.expire(str(data / "segment")).rows_removed == 0
