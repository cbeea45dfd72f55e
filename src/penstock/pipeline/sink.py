"""The sink of the data source `penstock`: batch and streaming writes, each row exactly once.

Tasks stage rows in files (`staging`), the driver publishes them when all tasks are done
(`commit_protocol`). The store is open only while rows are published. If another process has it
open, the write waits up to `lockTimeout`, then fails with `LockedError`; nothing is written.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.engine.segment import ReadOnlyStore
from penstock.errors import BadRequestError, NotAStoreError, NotSupportedError
from penstock.pipeline.options.sink_options import BATCH_PREFIX, SinkOptions, sink_options
from penstock.pipeline.spark_session.worker_errors import hide_traceback
from penstock.pipeline.spark_session.worker_gc import freeze_loaded_objects
from penstock.pipeline.write.commit_protocol import Journal, Publisher
from penstock.pipeline.write.staging import (
    Partitioner,
    StagedFile,
    Stager,
    partition_counts,
    remove_run_files,
)
from penstock.pipeline.write.staging_area import RUN_PREFIX, is_remote, open_area
from penstock.pipeline.write.targets import DirectoryTarget, Target

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY: Final = "sql.streaming.queryId"
"""The local property with the id of a task's streaming query."""
_ORPHAN_AGE_S: Final = 7 * 24 * 3600
"""Files of a batch write that was killed are removed by a later write after this time."""


class StagedMessage(WriterCommitMessage):
    """The message of a task to the driver."""

    def __init__(self, file: StagedFile | None, query: str | None) -> None:
        self.file: Final = file
        self.query: Final = query
        """The id of the streaming query, which only tasks can see. A query that starts anew, with
        another checkpoint, has another, so that its batches do not count as repeats."""


Messages = Sequence[WriterCommitMessage | None]


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise NotSupportedError("a store is append-only: use mode or outputMode 'append'")


class _Sink:
    """What both kinds of writes share; pickled to the workers and back to the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options: Final = options
        self._run: Final = uuid4().hex
        self._partitioner: Final = Partitioner(
            options.topic,
            options.by_key,
            _existing(options),
            options.partitions if options.create_topics else None,
        )

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
        freeze_loaded_objects()
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty(_QUERY)
        place = self._options.place(self._options.sink_id or self._known(query))
        run = f"{RUN_PREFIX}{self._run}"
        if not is_remote(place):
            staged = Stager(Path(place, run), task, self._partitioner).stage(batches)
            return StagedMessage(staged, query)
        with tempfile.TemporaryDirectory(prefix="penstock-staging-") as directory:
            staged = Stager(Path(directory), task, self._partitioner).stage(batches)
            if staged is None:
                return StagedMessage(None, query)
            name = f"{run}/{Path(staged.path).name}"
            path = open_area(place).put_file(staged.path, name)
        return StagedMessage(replace(staged, path=path), query)

    @staticmethod
    def _known(query: str | None) -> str:
        if query is None:
            raise BadRequestError(
                "option 'sinkId' is missing, and Spark reports no query id: give the sink an id"
            )
        return query

    def publish(self, messages: Messages, batch_id: int | None) -> None:
        options = self._options
        query = _query(messages)
        if options.sink_id is None and query is None:
            return  # no task ran: there is nothing to publish
        sink_id = self._identity(query)
        journal = Journal(open_area(options.place(sink_id)))
        created = options.partitions if options.create_topics else None
        publisher = Publisher(lambda: _target(options, sink_id), sink_id, journal, created, query)
        publisher.publish(batch_id, _files(messages))
        self.clean(messages)

    def _identity(self, query: str | None) -> str:
        """Return the name under which repeats are recognised: the sink's. Where another query had
        that name before, it is a name of both: numbers of batches begin anew with a query."""
        given = self._options.sink_id
        if given is None:
            return self._known(query)
        if query is None:
            return given
        before = Journal(open_area(self._options.place(given))).query()
        return given if before in (None, query) else f"{given}/{query}"

    def clean(self, messages: Messages) -> None:
        """Remove staged files, except those of a batch that is to be finished later."""
        options, query = self._options, _query(messages)
        if options.sink_id is None and query is None:
            return  # the next batch removes them
        base = options.sink_id or self._known(query)
        names = {base, self._identity(query)}
        begun = [Journal(open_area(options.place(name))).open_batch() for name in sorted(names)]
        keep = [file.path for batch in begun if batch is not None for file in batch.files]
        area = open_area(options.place(base))
        remove_run_files(area, keep)
        if base.startswith(BATCH_PREFIX) and not is_remote(area.root):
            if not keep:
                shutil.rmtree(area.root, ignore_errors=True)
            _remove_orphans(Path(area.root).parent)


def _query(messages: Messages) -> str | None:
    queries = (message.query for message in messages if isinstance(message, StagedMessage))
    return next((query for query in queries if query is not None), None)


def _target(options: SinkOptions, sink_id: str) -> AbstractContextManager[Target]:
    if options.endpoint is None:
        return DirectoryTarget.open(options.path, options.lock_timeout_s)
    from penstock.pipeline.write.node_target import NodeTarget

    return NodeTarget.open(
        options.endpoint, options.namespace, options.place(sink_id), options.lock_timeout_s
    )


def _existing(options: SinkOptions) -> dict[str, int]:
    if options.endpoint is not None:
        from penstock.pipeline.read.endpoint import connect
        from penstock.pipeline.write.node_target import partition_counts_of

        with closing(connect(options.endpoint)) as backend:
            return partition_counts_of(backend, options.namespace)
    try:
        with ReadOnlyStore.open(options.path) as view:
            return partition_counts(view.shards())
    except NotAStoreError:
        return {}  # it is created when the first batch is published


def _files(messages: Messages) -> list[StagedFile]:
    return [
        message.file
        for message in messages
        if isinstance(message, StagedMessage) and message.file is not None
    ]


def _remove_orphans(root: Path) -> None:
    for directory in root.glob(f"{BATCH_PREFIX}*"):
        if time.time() - directory.stat().st_mtime > _ORPHAN_AGE_S:
            shutil.rmtree(directory, ignore_errors=True)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = sink_options(options, schema, streaming=False)
        self._sink = _Sink(self._options)

    @hide_traceback
    def write(  # type: ignore[override]  # narrowed as in Spark's own subclass
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    @hide_traceback
    def commit(self, messages: Messages) -> None:
        self._sink.publish(messages, self._options.batch_id)

    def abort(self, messages: Messages) -> None:
        self._sink.clean(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = _Sink(sink_options(options, schema, streaming=True))

    @hide_traceback
    def write(  # type: ignore[override]  # narrowed as in Spark's own subclass
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    @hide_traceback
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - a name of Spark's
        self._sink.publish(messages, batchId)

    def abort(
        self,
        messages: Messages,
        batchId: int,  # noqa: ARG002, N803 - a name of Spark's
    ) -> None:
        self._sink.clean(messages)
