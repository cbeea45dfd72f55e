"""Publishes staged rows in a store, each exactly once, whatever crashes in between.

    stage          tasks write files                            nobody sees them
    journal        `open.json` names the files of the batch     from here on these files are it
    publish        chunk by chunk into the shards               repeats are recognised
    journal        `committed.json` says the batch is done      a repeat of it changes nothing
    clean          the files go

A batch that comes again finds one of three things. No journal of it: nothing was published, its
new files count. An open journal: the files named there are published, from the first chunk; the
new ones are dropped, since a second run of a query need not give the same rows in the same order.
A journal that says it is done: nothing happens.

Chunks are recognised by the store itself: the sink is a producer, the batch its epoch, and the
sequence counts the rows of the batch in each shard. The store remembers a producer's last five
writes; a sequence that lies before the one it expects was taken long ago.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, SequenceGapError, SetupError
from penstock.log import get_logger
from penstock.pipeline.staging import Chunk, StagedFile, partition_counts
from penstock.record import Producer, Record, ShardId

if TYPE_CHECKING:
    from penstock.engine.segment.arrow import AnyArray

_log = get_logger(__name__)

_ZERO: Final = pa.scalar(0, pa.int32())
_OPEN: Final = "open.json"
_COMMITTED: Final = "committed.json"


class OpenBatch(Struct, frozen=True):
    """A batch whose files are fixed and perhaps published in part."""

    batch_id: int
    files: tuple[StagedFile, ...]


class Journal:
    """What a sink has done, on disk beside its staged files."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    def open_batch(self) -> OpenBatch | None:
        data = self._read(_OPEN)
        return None if data is None else msgspec.json.decode(data, type=OpenBatch)

    def committed(self) -> int:
        """Return the last batch that is done, or -1."""
        data = self._read(_COMMITTED)
        return -1 if data is None else int(json.loads(data)["batch_id"])

    def begin(self, batch: OpenBatch) -> None:
        self._write(_OPEN, msgspec.json.encode(batch))

    def finish(self, batch_id: int) -> None:
        self._write(_COMMITTED, json.dumps({"batch_id": batch_id}).encode())
        (self._directory / _OPEN).unlink(missing_ok=True)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        staged = self._directory / f"{name}.tmp"
        with staged.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self._directory / name)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class Publisher:
    """Publishes the batches of one sink."""

    def __init__(
        self, path: str, sink_id: str, journal: Journal, partitions_created: int | None
    ) -> None:
        self._path: Final = path
        self._journal: Final = journal
        self._producer_id: Final = producer_id(sink_id)
        self._partitions_created: Final = partitions_created

    def publish(self, batch_id: int | None, files: Sequence[StagedFile]) -> int:
        """Publish a batch; return how many rows this call added. Without `batch_id` it is the one
        behind the last."""
        with SegmentStore.open(self._path) as store:
            committed = self._journal.committed()
            begun = self._journal.open_batch()
            if begun is not None and begun.batch_id <= committed:
                begun = None  # done; only its journal was left
            number = self._number(batch_id, begun, committed)
            if number <= committed:
                _log.warning("batch_repeated", batch_id=number, committed=committed)
                return 0
            if begun is None:
                begun = OpenBatch(number, tuple(sorted(files, key=lambda file: file.task)))
                self._check_files(begun.files)
                self._journal.begin(begun)
            added = self._publish(store, begun)
            # The rows are on the device before the journal says so.
            store.flush()
            self._journal.finish(number)
            return added

    def _number(self, batch_id: int | None, begun: OpenBatch | None, committed: int) -> int:
        if batch_id is None:
            if begun is not None:
                raise BadRequestError(
                    f"write {begun.batch_id} of this sink was interrupted while it was published; "
                    f"repeat it with the option batchId={begun.batch_id}"
                )
            return committed + 1
        if begun is not None and committed < batch_id != begun.batch_id:
            raise BadRequestError(
                f"batch {batch_id} came, but batch {begun.batch_id} of this sink was interrupted "
                "while it was published: repeat that one first"
            )
        return batch_id

    @staticmethod
    def _check_files(files: Iterable[StagedFile]) -> None:
        for file in files:
            if not Path(file.path).exists():
                raise SetupError(
                    f"{file.path} was staged by a worker and is not there on the driver: "
                    "stagingPath must be a directory that all of them share"
                )

    def _publish(self, store: SegmentStore, batch: OpenBatch) -> int:
        self._create_shards(store, batch)
        sequences: dict[ShardId, int] = {}
        added = 0
        for file in batch.files:
            with pa.memory_map(file.path) as source:
                reader = pa.ipc.open_file(source)
                for number, chunk in enumerate(file.chunks):
                    sequence = sequences.get(chunk.shard, 0)
                    producer = Producer(self._producer_id, batch.batch_id, sequence)
                    if _append(store, chunk, reader.get_batch(number), producer):
                        added += chunk.rows
                    sequences[chunk.shard] = sequence + chunk.rows
        return added

    def _create_shards(self, store: SegmentStore, batch: OpenBatch) -> None:
        wanted = {chunk.shard for file in batch.files for chunk in file.chunks}
        missing = wanted - set(store.shards())
        if missing and self._partitions_created is None:
            name = min(missing).topic
            raise BadRequestError(f"topic {name!r} does not exist; set createTopics to true")
        counts = partition_counts(missing)
        for topic, count in sorted(counts.items()):
            for partition in range(max(count, self._partitions_created or 1)):
                store.create_shard(ShardId(topic, partition))


def producer_id(sink_id: str) -> int:
    """Return the number under which the store knows a sink."""
    digest = blake2b(sink_id.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _append(store: SegmentStore, chunk: Chunk, rows: pa.RecordBatch, producer: Producer) -> bool:
    """Append a chunk; return False when it was there already."""
    before = store.bounds(chunk.shard).next
    try:
        if _fits_columns(rows):
            first = store.append_columns(
                chunk.shard,
                rows.column("value"),
                keys=rows.column("key"),
                tags=_first_tags(rows.column("tags")),
                timestamps=_timestamps(rows.column("timestamp")),
                producer=producer,
            )
        else:
            first = store.append_many(chunk.shard, [*_records(rows)], producer)
    except SequenceGapError as error:
        if error.expected >= producer.sequence + chunk.rows:
            return False
        raise
    return first >= before


def _fits_columns(rows: pa.RecordBatch) -> bool:
    """Say whether the rows have no headers and at most one tag each."""
    for name, limit in (("headers", 0), ("tags", 1)):
        most = pc.max(pc.list_value_length(rows.column(name))).as_py()
        if most is not None and most > limit:
            return False
    return rows.column("timestamp").null_count in (0, rows.num_rows)


def _first_tags(tags: AnyArray) -> AnyArray | None:
    """Return the only tag of each row, null where there is none."""
    assert isinstance(tags, pa.ListArray)
    if len(tags.values) == 0:
        return None
    some = pc.greater(pc.fill_null(pc.list_value_length(tags), _ZERO), _ZERO)
    firsts = tags.offsets.slice(0, len(tags))
    return tags.values.take(pc.if_else(some, firsts, pa.scalar(None, pa.int32())))


def _timestamps(times: AnyArray) -> AnyArray | None:
    return None if times.null_count else times


def _records(rows: pa.RecordBatch) -> Iterable[Record]:
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (rows.column(name).to_pylist() for name in ("value", "key", "tags", "headers"))
    for value, key, tags, headers, time in zip(*columns, times, strict=True):
        yield Record(
            value=value,
            key=key,
            tags=tuple(tags or ()),
            headers=tuple((each["key"], each["value"]) for each in headers or ()),
            timestamp_ms=time,
        )
