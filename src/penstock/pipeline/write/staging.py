"""The part of a write that runs in Spark's workers: rows are put in order by shard and staged.

A task writes one Arrow file that never changes. Each batch in it holds rows of one shard, in the
order of the input, and is a chunk: what the store later takes whole or not at all. A file of a
failed attempt is not referenced, and is deleted with the directory of its run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.pipeline.write.key_hashes import key_hashes
from penstock.pipeline.write.staging_area import Area
from penstock.record import ShardId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.engine.segment import AnyArray

CHUNK_ROWS: Final = 8192
CHUNK_SIZE: Final = 1 << 20

EXPIRES: Final = "expires"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("headers", _HEADERS),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        (EXPIRES, pa.timestamp("ms", tz="UTC")),
    ]
)


class Chunk(NamedTuple):
    shard: ShardId
    rows: int


class StagedFile(Struct, frozen=True):
    """A file of chunks, in the order of its batches."""

    path: str
    task: int
    chunks: tuple[Chunk, ...]


class Partitioner(Struct, frozen=True):
    """Chooses the shard of each row: the column `partition`, else the key's hash, else in turn."""

    topic: str | None
    by_key: bool
    counts: dict[str, int]
    """How many partitions each topic has."""
    created: int | None
    """How many a topic gets that does not exist; None: it must exist."""

    def choose(
        self, rows: pa.RecordBatch, turn: int
    ) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """Return the topics, and for each row the number of its topic and its partition."""
        names, codes = self._topics(rows)
        counts = np.array([self._count(name) for name in names], np.int64)[codes]
        chosen = (np.arange(turn, turn + rows.num_rows)) % counts
        if self.by_key and "key" in rows.schema.names:
            keys = rows.column("key").cast(pa.binary())
            assert isinstance(keys, pa.BinaryArray)
            hashed = key_hashes(keys).astype(np.int64) % counts
            chosen = np.where(_numpy(keys.is_valid()).astype(np.bool_), hashed, chosen)
        if "partition" in rows.schema.names:
            column = rows.column("partition").cast(pa.int64())
            given = _numpy(column.fill_null(-1))
            self._check(given, column, counts)
            chosen = np.where(_numpy(column.is_valid()).astype(np.bool_), given, chosen)
        return names, codes, chosen.astype(np.int64)

    def _topics(self, rows: pa.RecordBatch) -> tuple[list[str], NDArray[np.int64]]:
        if "topic" not in rows.schema.names:
            assert self.topic is not None
            return [self.topic], np.zeros(rows.num_rows, np.int64)
        column = rows.column("topic").cast(pa.string())
        names = [self._topic(name) for name in column.unique().to_pylist()]
        # A null counts as a value of its own here, whose name is the default.
        codes = _numpy(pc.index_in(column, column.unique())).astype(np.int64)
        return names, codes

    def _topic(self, name: str | None) -> str:
        topic = self.topic if name is None else name
        if topic is None:
            raise BadRequestError("a row has no topic; set a default with the option 'topic'")
        return topic

    def _count(self, topic: str) -> int:
        count = self.counts.get(topic, self.created)
        if count is None:
            raise BadRequestError(
                f"topic {topic!r} does not exist; set createTopics to true to create it"
            )
        return count

    @staticmethod
    def _check(given: NDArray[np.int64], column: AnyArray, counts: NDArray[np.int64]) -> None:
        wrong = _numpy(column.is_valid()).astype(np.bool_) & ((given < 0) | (given >= counts))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise BadRequestError(
                f"a row is for partition {given[row]}, but its topic has {counts[row]} partitions"
            )


def _numpy(array: AnyArray) -> NDArray[np.int64]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


class Stager:
    """Writes the file of one attempt of one task."""

    def __init__(self, directory: Path, task: int, partitioner: Partitioner) -> None:
        self._path: Final = directory / f"task-{task:06d}-{uuid4().hex}.arrow"
        self._task: Final = task
        self._partitioner: Final = partitioner
        self._held: dict[ShardId, list[pa.RecordBatch]] = {}
        self._sizes: dict[ShardId, tuple[int, int]] = {}
        self._chunks: list[Chunk] = []
        self._turn = task

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagedFile | None:
        """Stage all rows; return None when there are none."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        done = False
        try:
            self._write(batches)
            done = bool(self._chunks)
        finally:
            if not done:
                # The write may have been aborted: nothing else would remove this file.
                self._path.unlink(missing_ok=True)
        return StagedFile(str(self._path), self._task, tuple(self._chunks)) if done else None

    def _write(self, batches: Iterable[pa.RecordBatch]) -> None:
        with self._path.open("wb") as file:
            with pa.ipc.new_file(file, SCHEMA) as writer:
                for rows in batches:
                    for chunk in self._add(rows):
                        writer.write_batch(chunk)
                for shard in sorted(self._held):
                    writer.write_batch(self._close(shard))
            file.flush()
            os.fsync(file.fileno())

    def _add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if rows.num_rows == 0:
            return
        names, codes, chosen = self._partitioner.choose(rows, self._turn)
        self._turn += rows.num_rows
        staged = staged_columns(rows)
        groups = codes * (int(chosen.max()) + 1) + chosen
        order = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[order])) + 1
        for part in np.split(order, cuts):
            shard = ShardId(names[int(codes[part[0]])], int(chosen[part[0]]))
            for first in range(0, len(part), CHUNK_ROWS):
                yield from self._hold(shard, staged.take(part[first : first + CHUNK_ROWS]))

    def _hold(self, shard: ShardId, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        count, size = self._sizes.get(shard, (0, 0))
        if count and (count + rows.num_rows > CHUNK_ROWS or size + rows.nbytes > CHUNK_SIZE):
            yield self._close(shard)
            count = size = 0
        self._held.setdefault(shard, []).append(rows)
        self._sizes[shard] = (count + rows.num_rows, size + rows.nbytes)

    def _close(self, shard: ShardId) -> pa.RecordBatch:
        rows = pa.Table.from_batches(self._held.pop(shard)).combine_chunks().to_batches()[0]
        del self._sizes[shard]
        self._chunks.append(Chunk(shard, rows.num_rows))
        return rows


def staged_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with exactly the columns of a staged file."""
    arrays = [_staged(rows, field) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _staged(rows: pa.RecordBatch, field: pa.Field[pa.DataType]) -> AnyArray:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows).cast(field.type)
    array = rows.column(field.name)
    if field.name == "tags" and not pa.types.is_list(array.type):
        text = array.cast(pa.string())
        lists = [None if tag is None else [tag] for tag in text.to_pylist()]
        return pa.array(lists, field.type)
    if field.name in ("timestamp", EXPIRES):
        # The store counts milliseconds; what is finer is cut off, as Kafka's sink does.
        return array.cast(field.type, safe=False)
    return array.cast(field.type)


def remove_run_files(area: Area, keep: Iterable[str] = ()) -> None:
    """Remove what was staged, by this run and by earlier ones that failed, except
    `keep`; and the directories that are empty then."""
    kept = set(keep)
    for path in area.run_files():
        if path not in kept:
            area.drop(path)


def partition_counts(shards: Iterable[ShardId]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for shard in shards:
        counts[shard.topic] = max(counts.get(shard.topic, 0), shard.partition + 1)
    return counts
