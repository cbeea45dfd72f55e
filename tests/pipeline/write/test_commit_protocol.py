"""A batch of rows is published exactly once, wherever it is interrupted, however often it comes."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.types import StringType, StructField, StructType
from tests.tiered.conftest import s3_server
from tests.tiered.providers.s3_server import S3Server

from penstock.adapter.topics.partitioning import key_hash
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, LockedError, SetupError
from penstock.pipeline.options.sink_options import sink_options
from penstock.pipeline.write import staging
from penstock.pipeline.write.commit_protocol import Journal, OpenBatch, Publisher
from penstock.pipeline.write.key_hashes import key_hashes
from penstock.pipeline.write.staging import Chunk, Partitioner, StagedFile, Stager, remove_run_files
from penstock.pipeline.write.staging_area import open_area
from penstock.pipeline.write.targets import DirectoryTarget
from penstock.record import Producer

__all__ = ["s3_server"]

ROWS = 1_000


class Sink:
    """A sink without Spark around it."""

    def __init__(self, root: Path, partitions: int = 3) -> None:
        self.store = root / "store"
        self.staging = self.store / "penstock" / "sink" / "s"
        self.journal = Journal(self.staging)
        self.publisher = Publisher(
            lambda: DirectoryTarget.open(str(self.store)), "s", self.journal, partitions
        )
        self.partitioner = Partitioner("orders", True, {}, partitions)

    def stage(self, batch: int, order: Iterable[int], task: int = 0) -> StagedFile:
        rows = pa.record_batch(
            {
                "value": pa.array([b"%d/%d" % (batch, number) for number in order]),
                "key": pa.array([b"%d" % number for number in order]),
            }
        )
        stager = Stager(self.staging / "run-1", task, self.partitioner)
        file = stager.stage([rows.slice(first, 100) for first in range(0, len(rows), 100)])
        assert file is not None
        return file

    def values(self) -> Counter[bytes | None]:
        with ReadOnlyStore.open(str(self.store)) as view:
            return Counter(
                record.value
                for shard in view.shards()
                for record in view.read(shard, 0, max_records=100_000, max_size=1 << 30)
            )


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 16)  # many chunks: more than the store remembers
    return Sink(tmp_path)


def expected(*batches: int) -> Counter[bytes | None]:
    return Counter(b"%d/%d" % (batch, n) for batch in batches for n in range(ROWS))


class Crash(BaseException):
    """The driver dies."""


@pytest.mark.parametrize("chunks_before", [0, 1, 2, 7, 40, 60])
def test_a_crash_in_the_middle_leaves_each_row_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, chunks_before: int
) -> None:
    sink.publisher.publish(0, [sink.stage(0, range(ROWS))])
    left = chunks_before
    append = DirectoryTarget.append

    def append_or_die(
        self: DirectoryTarget, chunk: Chunk, rows: pa.RecordBatch, producer: Producer
    ) -> bool:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1
        return append(self, chunk, rows, producer)

    monkeypatch.setattr(DirectoryTarget, "append", append_or_die)
    with pytest.raises(Crash):
        sink.publisher.publish(1, [sink.stage(1, range(ROWS))])
    monkeypatch.setattr(DirectoryTarget, "append", append)
    # The query runs again; the same rows come in another order, from other tasks.
    order = random.Random(7).sample(range(ROWS), ROWS)
    again = [sink.stage(1, order[:300], 1), sink.stage(1, order[300:], 0)]
    sink.publisher.publish(1, again)
    assert sink.values() == expected(0, 1)
    assert sink.journal.committed() == 1


def test_a_crash_before_the_journal_counts_as_never(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "begin", die)
        with pytest.raises(Crash):
            sink.publisher.publish(0, [sink.stage(0, range(ROWS))])
    sink.publisher.publish(0, [sink.stage(0, range(ROWS))])
    assert sink.values() == expected(0)


def test_a_crash_behind_the_last_row_adds_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", die)
        with pytest.raises(Crash):
            sink.publisher.publish(0, [sink.stage(0, range(ROWS))])
    assert sink.publisher.publish(0, [sink.stage(0, range(ROWS))]) == 0
    assert sink.values() == expected(0)


def test_a_batch_that_is_done_changes_nothing(sink: Sink) -> None:
    for batch in range(3):
        assert sink.publisher.publish(batch, [sink.stage(batch, range(ROWS))]) == ROWS
    for batch in range(3):
        assert sink.publisher.publish(batch, [sink.stage(batch, range(ROWS))]) == 0
    assert sink.values() == expected(0, 1, 2)


def test_batches_without_a_number_get_the_next(sink: Sink) -> None:
    for batch in range(2):
        assert sink.publisher.publish(None, [sink.stage(batch, range(ROWS))]) == ROWS
    assert sink.journal.committed() == 1
    assert sink.values() == expected(0, 1)


def test_an_interrupted_write_must_be_finished_first(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> bool:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryTarget, "append", die)
        with pytest.raises(Crash):
            sink.publisher.publish(None, [sink.stage(0, range(ROWS))])
    for number in (None, 4):
        with pytest.raises(BadRequestError, match="interrupted"):
            sink.publisher.publish(number, [sink.stage(1, range(ROWS))])
    sink.publisher.publish(0, [])
    assert sink.values() == expected(0)


def test_a_store_that_is_open_elsewhere_is_left_alone(sink: Sink) -> None:
    with SegmentStore.open(str(sink.store)), pytest.raises(LockedError):
        sink.publisher.publish(0, [sink.stage(0, range(ROWS))])
    assert sink.journal.open_batch() is None


def test_a_publisher_waits_for_the_one_that_has_the_store_open(sink: Sink) -> None:
    file = sink.stage(0, range(ROWS))
    waiting = Publisher(lambda: DirectoryTarget.open(str(sink.store), 60.0), "s", sink.journal, 3)
    with ThreadPoolExecutor(1) as pool:
        with SegmentStore.open(str(sink.store)):
            published = pool.submit(waiting.publish, 0, [file])
            time.sleep(0.5)
            assert not published.done()
        assert published.result(60) == ROWS
    hasty = Publisher(lambda: DirectoryTarget.open(str(sink.store), 0.2), "s", sink.journal, 3)
    with (
        SegmentStore.open(str(sink.store)),
        pytest.raises(LockedError, match=r"waited 0.2 s \(option 'lockTimeout'\)"),
    ):
        hasty.publish(1, [sink.stage(1, range(ROWS))])


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.s3)])
def object_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place; credentials are in the environment, as on an executor."""
    if request.param == "memory":
        return f"memory://staging-test-{uuid4().hex}/sink"
    server: S3Server = request.getfixturevalue("s3_server")
    server.create_bucket("staging")
    for name, value in server.options().items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    return f"s3a://staging/{uuid4().hex}/sink"


def test_rows_staged_in_an_object_store_are_published_once(sink: Sink, object_place: str) -> None:
    area = open_area(object_place)
    journal = Journal(area)
    target = lambda: DirectoryTarget.open(str(sink.store))  # noqa: E731 - as the sink has it

    def staged(batch: int) -> StagedFile:
        file = sink.stage(batch, range(ROWS))
        return replace(file, path=area.put_file(file.path, f"run-1/{batch}.arrow"))

    publisher = Publisher(target, "s", journal, 3, "query 1")
    assert publisher.publish(0, [staged(0)]) == ROWS
    assert publisher.publish(0, [staged(10)]) == 0
    assert (journal.committed(), journal.query()) == (0, "query 1")
    # Another driver has begun a batch of this sink meanwhile.
    journal.begin(OpenBatch(1, (), "query 1"))
    with pytest.raises(LockedError, match="another driver publishes"):
        area.write("open.json", b"{}", anew=True)
    area.remove("open.json")
    assert publisher.publish(1, [staged(1)]) == ROWS
    assert sink.values() == expected(0, 1)
    remove_run_files(area, [f"{area.root}/run-1/1.arrow"])
    assert area.run_files() == [f"{area.root}/run-1/1.arrow"]
    missing = StagedFile(f"{area.root}/run-1/none.arrow", 0, ())
    with pytest.raises(SetupError, match="stagingPath"):
        publisher.publish(2, [missing])


def test_a_crash_while_rows_of_an_object_store_are_published_leaves_each_row_once(
    sink: Sink, object_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = open_area(object_place)

    def staged(task: int, order: Iterable[int]) -> StagedFile:
        file = sink.stage(0, order, task)
        return replace(file, path=area.put_file(file.path, f"run-1/{Path(file.path).name}"))

    def publish(files: list[StagedFile]) -> int:
        # A new driver knows nothing but the place.
        target = lambda: DirectoryTarget.open(str(sink.store))  # noqa: E731 - as the sink has it
        return Publisher(target, "s", Journal(open_area(object_place)), 3).publish(0, files)

    left = 20
    append = DirectoryTarget.append

    def append_or_die(
        self: DirectoryTarget, chunk: Chunk, rows: pa.RecordBatch, producer: Producer
    ) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return append(self, chunk, rows, producer)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryTarget, "append", append_or_die)
        with pytest.raises(Crash):
            publish([staged(0, range(400)), staged(1, range(400, ROWS))])
    publish([staged(0, range(ROWS))])
    assert sink.values() == expected(0)
    assert Journal(area).open_batch() is None


@pytest.mark.parametrize(
    ("options", "staging"),
    [
        ({"checkpointLocation": "file:/ck"}, "/ck/penstock-sink"),
        ({"checkpointLocation": "file:///a%20b"}, "/a b/penstock-sink"),
        ({"checkpointLocation": "s3a://bucket/ck/"}, "s3a://bucket/ck/penstock-sink"),
        ({"checkpointLocation": "hdfs://h/ck", "stagingPath": "gs://b/x"}, "gs://b/x"),
        ({"checkpointLocation": "hdfs://h/ck"}, None),
        ({"stagingPath": "dbfs:/x"}, None),
    ],
)
def test_a_checkpoint_in_an_object_store_is_not_taken_for_a_directory(
    options: dict[str, str], staging: str | None
) -> None:
    chosen = {"endpoint": "127.0.0.1:1", "topic": "orders", **options}
    schema = StructType([StructField("value", StringType())])
    if staging is None:
        with pytest.raises(BadRequestError, match="'stagingPath'"):
            sink_options(chosen, schema, streaming=True)
    else:
        assert sink_options(chosen, schema, streaming=True).staging == staging


def test_staged_files_must_be_visible_to_the_driver(sink: Sink) -> None:
    file = sink.stage(0, range(10))
    Path(file.path).unlink()
    with pytest.raises(SetupError, match="stagingPath"):
        sink.publisher.publish(0, [file])


def test_a_key_lies_where_every_other_writer_puts_it() -> None:
    random_bytes = random.Random(3).randbytes
    keys = [random_bytes(size % 41) for size in range(500)]
    column = pa.array([b"cut off", *keys], pa.binary()).slice(1)
    assert isinstance(column, pa.BinaryArray)
    assert key_hashes(column).tolist() == [key_hash(key) for key in keys]


def test_rows_go_by_column_key_or_in_turn() -> None:
    partitioner = Partitioner("a", True, {"a": 3, "b": 1}, None)
    rows = pa.record_batch(
        {
            "topic": pa.array(["a", "a", "a", "a", None, "b"]),
            "key": pa.array([b"k", None, b"k", None, None, b"k"]),
            "partition": pa.array([2, None, None, None, 0, None], pa.int32()),
        }
    )
    names, codes, chosen = partitioner.choose(rows, 0)
    hashed = key_hash(b"k") % 3
    assert [names[code] for code in codes] == ["a", "a", "a", "a", "a", "b"]
    assert chosen.tolist() == [2, 1, hashed, 0, 0, 0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": ["c"]}, "topic 'c' does not exist; set createTopics"),
        ({"topic": ["a"], "partition": [3]}, "partition 3, but its topic has 3"),
        ({"topic": ["a"], "partition": [-1]}, "partition -1, but its topic has 3"),
        ({"topic": pa.array([None], pa.string())}, "a row has no topic"),
    ],
)
def test_rows_without_a_place_are_refused(columns: dict[str, list[int]], message: str) -> None:
    partitioner = Partitioner(None, True, {"a": 3}, None)
    with pytest.raises(BadRequestError, match=message):
        partitioner.choose(pa.record_batch(columns), 0)
