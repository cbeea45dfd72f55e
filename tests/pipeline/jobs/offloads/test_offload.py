"""Commit logs in their tiers: each record once, whoever else uploads and whenever a job dies."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.cli.conftest import Run, run
from tests.engine.segment.readonly.sample_store import (
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    flip,
)
from tests.pipeline.read.test_batch_source import ALL, everything, rows_of
from tests.pipeline.sample_tier import chunk_files

import penstock
from penstock.engine.segment.read.key_reader import split_raw_range
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, StoreError
from penstock.meta.state.model import TieringPolicy
from penstock.pipeline import jobs
from penstock.pipeline.jobs.offloads import job as offload_job
from penstock.pipeline.jobs.offloads import work as offload_work
from penstock.pipeline.jobs.offloads.work import OffloadDone, OffloadTask, offload_one
from penstock.record import QueueKind, Record, ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.upload import dispatcher
from penstock.tiered.upload.dispatcher import CommittedLog

__all__ = ["run"]

LIVE = ORDERS_COUNT - 3 + EVENTS_COUNT
CHUNK = 4_096


@pytest.fixture
def store(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "store"))


def task_of(
    path: Path, url: str, shard: ShardId = ORDERS, *, chunk_size: int = CHUNK
) -> OffloadTask:
    with ReadOnlyStore.open(str(path)) as view:
        end, kind = int(view.bounds(shard).commit), view.kind(shard)
    return OffloadTask(
        name=shard.name,
        root=str(path),
        topic=shard.topic,
        partition=shard.partition,
        kind=kind,
        end=end,
        config=TierConfig(url=url, chunk_size=chunk_size),
    )


def in_tier(url: str, shard: ShardId = ORDERS) -> list[tuple[int, bytes | None]]:
    flat = CompositeFlatFile(TierConfig(url=url), shard)
    manifest = flat.refresh()
    assert manifest is not None
    found: list[tuple[int, bytes | None]] = [
        (record.offset, record.value)
        for chunk in flat.reader.stream()
        for record in flat.reader.live_records(chunk, manifest)
    ]
    flat.fetcher.close()
    return found


def in_log(path: Path, shard: ShardId = ORDERS) -> list[tuple[int, bytes | None]]:
    with ReadOnlyStore.open(str(path)) as view:
        records = view.read(shard, 0, max_records=1_000_000, max_size=1 << 40)
    return [(record.offset, record.value) for record in records]


def test_all_shards_go_into_the_tier_and_a_second_run_changes_nothing(
    spark: SparkSession, run: Run, store: Path, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/tier"
    seen: list[tuple[str, int, int]] = []
    result = jobs.offload(
        spark, str(store), url, chunk_size=CHUNK, progress=lambda *step: seen.append(step)
    )
    assert result.rows == LIVE
    ends = {each.shard: (each.start, each.end, each.rows) for each in result.shards}
    assert ends == {
        "orders_0": (0, ORDERS_COUNT, ORDERS_COUNT - 3),
        "events_3": (0, EVENTS_COUNT, EVENTS_COUNT),
        "empty_0": (0, 0, 0),
    }
    table = spark.read.format("penstock").options(tier=url, **ALL).load()
    assert rows_of(table) == everything(store)
    before = chunk_files(tmp_path / "tier")
    assert result.bytes == sum(each.bytes for each in result.shards) > 10_000
    again = run("pipeline", "offload", store, "--tier", url, "--json")
    assert (again.code, again.lines[0]["rows"]) == (0, 0)
    assert chunk_files(tmp_path / "tier") == before
    with SegmentStore.open(str(store), QUIET) as writer:
        # A job reads beside the writer; what is new, and what was deleted since, follows.
        writer.append_many(ORDERS, [Record(b"new %d" % n) for n in range(20)])
        writer.delete_offsets(ORDERS, [5])
    more = run("pipeline", "offload", store, "--tier", url, "--topic", "orders")
    assert more.code == 0
    assert in_tier(url) == in_log(store)


def test_a_second_uploader_ends_the_first(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/tier"
    task = task_of(store, url)
    upload = dispatcher.upload_shard

    def interrupted(log: CommittedLog, flat: CompositeFlatFile) -> int:
        other = CompositeFlatFile(task.config, task.shard, task.kind)
        other.acquire()
        return upload(log, flat)

    monkeypatch.setattr(offload_work, "upload_shard", interrupted)
    done = offload_one(task)
    assert "another uploader is at work" in done.failure
    monkeypatch.undo()
    assert offload_one(task).failure == ""
    assert in_tier(url) == in_log(store)


def test_topics_that_their_node_uploads_are_left_to_it(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "data")) as node:
        for name, uploader in (("kept", "broker"), ("sent", "spark")):
            topic = node.create_topic(name, tiering=TieringPolicy(uploader=uploader))
            topic.write_many([Record(b"%d" % n) for n in range(50)])
    url = f"file://{tmp_path}/tier"
    result = jobs.offload(spark, str(tmp_path / "data"), url)
    assert result.left_to_node == ["kept_0"]
    assert [(each.shard, each.rows) for each in result.shards] == [("sent_0", 50)]


def test_a_node_can_leave_all_uploads_to_spark(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    with penstock.open(path, tiering__uploader="spark") as node:
        topic = node.create_topic("orders", tiering=TieringPolicy())
        topic.write_many([Record(b"%d" % n) for n in range(50)])
        node.run_upkeep()
    assert not chunk_files(tmp_path / "data" / "tier")
    assert [task.end for task in offload_job.plan(path, f"file://{tmp_path}/tier")[0]] == [50]
    with penstock.open(path) as node:
        node.run_upkeep()
    assert chunk_files(tmp_path / "data" / "tier")
    tasks, left = offload_job.plan(path, f"file://{tmp_path}/tier")
    assert (tasks, left) == ([], ["orders_0"])


def test_the_log_goes_when_the_job_has_brought_it(tmp_path: Path) -> None:
    small = {"broker__commit_log_file_size": 1 << 16, "tiering__uploader": "spark"}
    path, url = str(tmp_path / "data"), f"file://{tmp_path}/data/tier"
    with penstock.open(path, **small) as node:
        policy = TieringPolicy(local_retention_bytes=20_000)
        topic = node.create_topic("orders", tiering=policy)
        for first in range(0, 2_000, 100):
            topic.write_many([Record(b"%d" % n * 9) for n in range(first, first + 100)])
        node.run_upkeep()
        assert topic.describe().partitions[0].log_start is None  # nothing is gone
    for task in offload_job.plan(path, url)[0]:
        assert offload_one(task).failure == ""
    with penstock.open(path, **small) as node:
        node.run_upkeep()
        topic = node.topic("orders")
        log_start = topic.describe().partitions[0].log_start
        assert log_start is not None
        assert log_start > 1_000
        assert [record.value for record in topic.read(offset=0, max_records=5)] == [
            b"%d" % n * 9 for n in range(5)
        ]


def test_what_is_wrong_is_said(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    with pytest.raises(BadRequestError, match="did you mean 'orders'"):
        jobs.offload(spark, str(store), url, topics=["ordres"])
    with pytest.raises(BadRequestError, match="has no tier: give one"):
        jobs.offload(spark, str(store))
    with pytest.raises(BadRequestError, match="is an in-memory tier"):
        jobs.offload(spark, str(store), "memory://x")
    with ReadOnlyStore.open(str(store)) as view:
        position = view.snapshot().get(ORDERS).position_of(2)
    assert position is not None
    log = store / "commitlog" / f"{0:020d}"
    flip(log, position + 100)
    with pytest.raises(StoreError, match=f"1 of 3 shards .*'orders_0': {log}: damaged at byte"):
        jobs.offload(spark, str(store), url)
    # The others are there all the same.
    assert len(in_tier(url, ShardId("events", 3))) == EVENTS_COUNT


def test_counts_that_disagree_are_an_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(store, f"file://{tmp_path}/tier")
    read = ReadOnlyStore.read_raw_range

    def without_one(
        view: ReadOnlyStore, shard: ShardId, offset: int, *, max_size: int, until: int
    ) -> tuple[bytes, int]:
        run, after = read(view, shard, offset, max_size=max_size, until=until)
        return b"".join(one for one in split_raw_range(run) if b"order 17" not in one), after

    monkeypatch.setattr(ReadOnlyStore, "read_raw_range", without_one)
    assert "records of 'orders_0' were uploaded, but the log holds" in offload_one(task).failure


def test_killed_at_any_moment_the_next_run_goes_on(tmp_path: Path) -> None:
    path, url, shard = tmp_path / "store", f"file://{tmp_path}/tier", ShardId("many", 0)
    count = 20_000
    with SegmentStore.open(str(path)) as store:
        store.create_shard(shard, QueueKind.SIMPLE)
        for first in range(0, count, 1_000):
            store.append_many(shard, [Record(b"value %d" % n) for n in range(first, first + 1_000)])
    task = task_of(path, url, shard, chunk_size=32_768)
    code = (
        "import sys, msgspec\n"
        "from penstock.pipeline.jobs.offloads.work import OffloadTask, offload_one\n"
        "task = msgspec.json.decode(sys.stdin.buffer.read(), type=OffloadTask)\n"
        "print(msgspec.json.encode(offload_one(task)).decode())\n"
    )
    manifest = tmp_path / "tier" / "many" / "0"
    kills = 0
    done = None
    while done is None:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(task))
        process.stdin.close()
        before = len([*manifest.glob("*.chunk")])
        while process.poll() is None and kills < 3:
            if len([*manifest.glob("*.chunk")]) >= before + 5 * (kills + 1):
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        assert process.stdout is not None
        answer = process.stdout.read()
        process.stdout.close()
        if process.wait(60) == 0:
            done = msgspec.json.decode(answer, type=OffloadDone)
    assert kills == 3
    assert (done.failure, done.end) == ("", count)
    assert 0 < done.start < count
    assert in_tier(url, shard) == in_log(path, shard)
