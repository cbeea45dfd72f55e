"""Publishes staged rows in a store, each exactly once, after any crash.

    stage          tasks write files                            not visible yet
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
writes; a sequence before the expected one was appended earlier.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.errors import BadRequestError, SetupError
from penstock.pipeline.write.staging import StagedFile, partition_counts
from penstock.pipeline.write.staging_area import Area, DirectoryArea
from penstock.pipeline.write.targets import Target
from penstock.platform.log import get_logger
from penstock.record import Producer, ShardId

_log = get_logger(__name__)

_OPEN: Final = "open.json"
_COMMITTED: Final = "committed.json"


class OpenBatch(Struct, frozen=True):
    """A batch whose files are fixed and perhaps published in part."""

    batch_id: int
    files: tuple[StagedFile, ...]
    query: str | None = None
    """The id of the streaming query."""


_batch_decoder: Final = msgspec.json.Decoder(OpenBatch)


class Journal:
    """What a sink has done, beside its staged files."""

    def __init__(self, place: Path | Area) -> None:
        self.area: Final[Area] = DirectoryArea(place) if isinstance(place, Path) else place

    def open_batch(self) -> OpenBatch | None:
        data = self.area.read(_OPEN)
        return None if data is None else _batch_decoder.decode(data)

    def committed(self) -> int:
        """Return the last batch that is done, or -1."""
        data = self.area.read(_COMMITTED)
        return -1 if data is None else int(json.loads(data)["batch_id"])

    def query(self) -> str | None:
        """Return the id of the streaming query whose batches these are; None: not known."""
        for data in (self.area.read(_OPEN), self.area.read(_COMMITTED)):
            if data is not None and json.loads(data).get("query") is not None:
                return str(json.loads(data)["query"])
        return None

    def begin(self, batch: OpenBatch) -> None:
        known = self.area.read(_OPEN) is not None  # of a batch that is done
        self.area.write(_OPEN, msgspec.json.encode(batch), anew=not known)

    def finish(self, batch_id: int, query: str | None = None) -> None:
        done: dict[str, int | str] = {"batch_id": batch_id}
        if query is not None:
            done["query"] = query
        self.area.write(_COMMITTED, json.dumps(done).encode())
        self.area.remove(_OPEN)


class Publisher:
    """Publishes the batches of one sink."""

    def __init__(
        self,
        open_target: Callable[[], AbstractContextManager[Target]],
        sink_id: str,
        journal: Journal,
        partitions_created: int | None,
        query: str | None = None,
    ) -> None:
        self._query: Final = query
        self._open: Final = open_target
        self._journal: Final = journal
        self._producer_id: Final = producer_id(sink_id)
        self._partitions_created: Final = partitions_created

    def publish(self, batch_id: int | None, files: Sequence[StagedFile]) -> int:
        """Publish a batch; return how many rows this call added. Without `batch_id` it is the
        next one."""
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
                ordered = tuple(sorted(files, key=lambda file: file.task))
                begun = OpenBatch(number, ordered, self._query)
                self._check_files(begun.files)
                self._journal.begin(begun)
            added = self._publish(target, begun)
            # The rows are on the device before the journal says so.
            target.flush()
            self._journal.finish(number, self._query)
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
                f"cannot publish batch {batch_id}: batch {begun.batch_id} of this sink was "
                "interrupted while it was published; repeat that one first"
            )
        return batch_id

    def _check_files(self, files: Iterable[StagedFile]) -> None:
        for file in files:
            if not self._journal.area.exists(file.path):
                raise SetupError(
                    f"{file.path} was staged by a worker and is missing on the driver: "
                    "stagingPath must be a directory shared by driver and workers"
                )

    def _publish(self, target: Target, batch: OpenBatch) -> int:
        self._create_topics(target, batch)
        sequences: dict[ShardId, int] = {}
        added = 0
        for file in batch.files:
            with self._journal.area.local(file.path) as path, pa.memory_map(path) as source:
                reader = pa.ipc.open_file(source)
                for number, chunk in enumerate(file.chunks):
                    sequence = sequences.get(chunk.shard, 0)
                    producer = Producer(self._producer_id, batch.batch_id, sequence)
                    if target.append(chunk, reader.get_batch(number), producer):
                        added += chunk.rows
                    sequences[chunk.shard] = sequence + chunk.rows
        return added

    def _create_topics(self, target: Target, batch: OpenBatch) -> None:
        needed = partition_counts(chunk.shard for file in batch.files for chunk in file.chunks)
        there = target.partition_counts()
        for topic, count in sorted(needed.items()):
            if there.get(topic, 0) >= count:
                continue
            if self._partitions_created is None:
                raise BadRequestError(f"topic {topic!r} does not exist; set createTopics to true")
            target.create_topic(topic, max(count, self._partitions_created))


def producer_id(sink_id: str) -> int:
    """Return the number under which the store knows a sink."""
    digest = blake2b(sink_id.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
