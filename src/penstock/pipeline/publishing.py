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
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.errors import BadRequestError, SetupError
from penstock.log import get_logger
from penstock.pipeline.staging import StagedFile, partition_counts
from penstock.pipeline.targets import Target
from penstock.record import Producer, ShardId

_log = get_logger(__name__)

_OPEN: Final = "open.json"
_COMMITTED: Final = "committed.json"


class OpenBatch(Struct, frozen=True):
    """A batch whose files are fixed and perhaps published in part."""

    batch_id: int
    files: tuple[StagedFile, ...]


_batch_decoder: Final = msgspec.json.Decoder(OpenBatch)


class Journal:
    """What a sink has done, on disk beside its staged files."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    def open_batch(self) -> OpenBatch | None:
        data = self._read(_OPEN)
        return None if data is None else _batch_decoder.decode(data)

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
        self,
        open_target: Callable[[], AbstractContextManager[Target]],
        sink_id: str,
        journal: Journal,
        partitions_created: int | None,
    ) -> None:
        self._open: Final = open_target
        self._journal: Final = journal
        self._producer_id: Final = producer_id(sink_id)
        self._partitions_created: Final = partitions_created

    def publish(self, batch_id: int | None, files: Sequence[StagedFile]) -> int:
        """Publish a batch; return how many rows this call added. Without `batch_id` it is the one
        behind the last."""
        with self._open() as target:
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
            added = self._publish(target, begun)
            # The rows are on the device before the journal says so.
            target.flush()
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

    def _publish(self, target: Target, batch: OpenBatch) -> int:
        self._create_topics(target, batch)
        sequences: dict[ShardId, int] = {}
        added = 0
        for file in batch.files:
            with pa.memory_map(file.path) as source:
                reader = pa.ipc.open_file(source)
                for number, chunk in enumerate(file.chunks):
                    sequence = sequences.get(chunk.shard, 0)
                    producer = Producer(self._producer_id, batch.batch_id, sequence)
                    if target.append(chunk, reader.get_batch(number), producer):
                        added += chunk.rows
                    sequences[chunk.shard] = sequence + chunk.rows
        return added

    def _create_topics(self, target: Target, batch: OpenBatch) -> None:
        wanted = partition_counts(chunk.shard for file in batch.files for chunk in file.chunks)
        there = target.partition_counts()
        for topic, count in sorted(wanted.items()):
            if there.get(topic, 0) >= count:
                continue
            if self._partitions_created is None:
                raise BadRequestError(f"topic {topic!r} does not exist; set createTopics to true")
            target.create_topic(topic, max(count, self._partitions_created))


def producer_id(sink_id: str) -> int:
    """Return the number under which the store knows a sink."""
    digest = blake2b(sink_id.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
