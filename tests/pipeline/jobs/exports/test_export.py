"""Export to Parquet: every record once, over several runs, also when one of them is killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from tests.engine.segment.readonly.sample_store import (
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    flip,
    order,
)

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, LockedError, StoreError
from penstock.pipeline import jobs
from penstock.pipeline.jobs.exports.ledger import Ledger

DELETED = {7, 8, 100}
LIVE = [n for n in range(ORDERS_COUNT) if n not in DELETED]


class KilledError(BaseException):
    """Ends a run where a signal could have ended it."""


@pytest.fixture
def store(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "store"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "parquet"


def append(path: Path, numbers: Iterable[int]) -> None:
    with SegmentStore.open(str(path), QUIET) as store:
        store.append_many(ORDERS, [order(number) for number in numbers])


def offsets(target: Path, topic: str = "orders") -> list[int]:
    files = [str(path) for path in target.glob(f"topic={topic}/day=*/*.parquet")]
    column = ds.dataset(files).to_table(columns=["offset"])["offset"]
    return sorted(each for each in column.to_pylist() if each is not None)


def test_every_live_record_is_exported_by_topic_and_day(
    spark: SparkSession, store: Path, target: Path
) -> None:
    result = jobs.export(spark, str(store), str(target))
    assert result.rows == len(LIVE) + EVENTS_COUNT
    assert offsets(target) == LIVE
    assert {path.name for path in target.glob("topic=*")} == {"topic=orders", "topic=events"}
    assert {path.name for path in target.glob("topic=*/*")} == {"day=1970-01-01"}
    by_shard = {each.shard: each for each in result.shards}
    assert by_shard["orders_0"].deleted == len(DELETED)
    assert by_shard["orders_0"].left_out == 0
    files = list(target.glob("topic=*/day=*/*.parquet"))
    assert result.files == len(files)
    assert result.bytes_written == sum(path.stat().st_size for path in files)
    found = spark.read.parquet(str(target)).where("topic = 'orders' and offset = 9").collect()
    assert bytes(found[0].value) == order(9).value
    assert [(each.key, bytes(each.value)) for each in found[0].headers] == [*order(9).headers]


def test_a_second_run_takes_only_what_is_new(
    spark: SparkSession, store: Path, target: Path
) -> None:
    jobs.export(spark, str(store), str(target), topics=["orders"])
    again = jobs.export(spark, str(store), str(target), topics=["orders"])
    assert (again.rows, again.files, again.run) == (0, 0, 1)
    append(store, range(ORDERS_COUNT, ORDERS_COUNT + 5))
    third = jobs.export(spark, str(store), str(target), topics=["orders"])
    assert (third.rows, third.run, third.shards[0].start) == (5, 2, ORDERS_COUNT)
    assert offsets(target) == [*LIVE, *range(ORDERS_COUNT, ORDERS_COUNT + 5)]
    bookmark = json.loads((target / "_penstock" / "bookmark.json").read_text())
    assert bookmark["offsets"] == {"orders": {"0": ORDERS_COUNT + 5}}


def test_an_export_does_not_go_on_with_a_topic_of_the_same_name(
    spark: SparkSession, store: Path, target: Path
) -> None:
    jobs.export(spark, str(store), str(target), topics=["orders"])
    with SegmentStore.open(str(store)) as writer:
        writer.delete_shard(ORDERS)
        writer.create_shard(ORDERS)
    # As many records as were exported, and more: none of them may be passed over.
    for first in range(0, ORDERS_COUNT + 5, 50):  # groups of this store are small
        append(store, range(first, min(first + 50, ORDERS_COUNT + 5)))
    with pytest.raises(BadRequestError, match="'orders' was deleted and created again"):
        jobs.export(spark, str(store), str(target), topics=["orders"])
    anew = jobs.export(spark, str(store), str(target), topics=["orders"], strict=False)
    assert (anew.rows, anew.shards[0].start) == (ORDERS_COUNT + 5, 0)
    again = jobs.export(spark, str(store), str(target), topics=["orders"])
    assert again.rows == 0


@pytest.mark.parametrize("moved", [0, 1])
def test_a_run_killed_while_it_publishes_is_finished_by_the_next(
    spark: SparkSession, store: Path, target: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    rename = Path.rename
    left = [moved]

    def rename_some(source: Path, place: Path) -> Path:
        if left[0] == 0:
            raise KilledError
        left[0] -= 1
        return rename(source, place)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename_some)
        with pytest.raises(KilledError):
            jobs.export(spark, str(store), str(target))
    append(store, [ORDERS_COUNT])
    result = jobs.export(spark, str(store), str(target))
    assert result.files_recovered > 0
    assert (result.rows, result.run) == (1, 2)
    assert offsets(target) == [*LIVE, ORDERS_COUNT]
    assert offsets(target, "events") == [*range(EVENTS_COUNT)]
    assert {path.name for path in (target / "_penstock").iterdir()} == {"bookmark.json", "lock"}


def test_a_run_killed_before_it_publishes_leaves_nothing(
    spark: SparkSession, store: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> int:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "publish", killed)
        with pytest.raises(KilledError):
            jobs.export(spark, str(store), str(target), topics=["orders"])
    assert list(target.glob("topic=*")) == []
    result = jobs.export(spark, str(store), str(target), topics=["orders"])
    assert (result.run, result.files_recovered) == (1, 0)
    assert offsets(target) == LIVE


def test_a_damaged_record_is_named_or_passed_over_and_counted(
    spark: SparkSession, store: Path, target: Path
) -> None:
    with ReadOnlyStore.open(str(store)) as view:
        position = view.snapshot().get(ORDERS).position_of(2)
    assert position is not None
    log = store / "commitlog" / f"{0:020d}"
    flip(log, position + 100)
    with pytest.raises(StoreError, match=f"{log}: damaged at byte {position}"):
        jobs.export(spark, str(store), str(target), topics=["orders"])
    assert list(target.glob("topic=*")) == []
    result = jobs.export(spark, str(store), str(target), topics=["orders"], strict=False)
    assert result.shards[0].left_out == 1
    assert offsets(target) == [n for n in LIVE if n != 2]


def test_wrong_requests_are_refused_with_a_sentence(
    spark: SparkSession, store: Path, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadRequestError, match="did you mean 'orders'"):
        jobs.export(spark, str(store), str(target), topics=["order"])
    with pytest.raises(BadRequestError, match="is not a local directory"):
        jobs.export(spark, str(store), "s3://bucket/there")
    jobs.export(spark, str(store), str(target), topics=["events"])
    other = shutil.copytree(store, tmp_path / "other")
    with pytest.raises(BadRequestError, match="is an export of"):
        jobs.export(spark, str(other), str(target))
    with Ledger(target).locked(), pytest.raises(LockedError):
        jobs.export(spark, str(store), str(target))
