"""The sink of the data source `penstock`: batch and streaming writes, each row exactly once.

Tasks stage rows in files (`staging`), the driver publishes them when all tasks are done
(`publishing`). The store is opened for that moment only; while another process has it open, a
write fails with that process's lock, and nothing of it was written.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.engine.segment.view import StoreView
from penstock.errors import NotAStoreError, NotSupportedError
from penstock.pipeline.publishing import Journal, Publisher
from penstock.pipeline.sink_options import BATCH_PREFIX, SinkOptions, sink_options
from penstock.pipeline.staging import (
    Partitioner,
    RunFiles,
    StagedFile,
    Stager,
    partition_counts,
)
from penstock.pipeline.targets import DirectoryTarget, Target
from penstock.pipeline.worker_garbage import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

_ORPHAN_AGE_S: Final = 7 * 24 * 3600
"""Files of a batch write that was killed are removed by a later write after this time."""


class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, file: StagedFile | None) -> None:
        self.file: Final = file


Messages = Sequence[WriterCommitMessage | None]


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise NotSupportedError("a store is only appended to: use mode or outputMode 'append'")


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
        settle_worker()
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        directory = RunFiles(self._options.staging, self._run).directory
        return StagedMessage(Stager(directory, task, self._partitioner).stage(batches))

    def publish(self, messages: Messages, batch_id: int | None) -> None:
        options = self._options
        journal = Journal(Path(options.staging))
        created = options.partitions if options.create_topics else None
        publisher = Publisher(lambda: _target(options), options.sink_id, journal, created)
        publisher.publish(batch_id, _files(messages))
        self.clean()

    def clean(self) -> None:
        """Remove staged files, except those of a batch that is to be finished later."""
        staging = Path(self._options.staging)
        begun = Journal(staging).open_batch()
        keep = [] if begun is None else [file.path for file in begun.files]
        RunFiles(str(staging), self._run).remove(keep)
        if self._options.sink_id.startswith(BATCH_PREFIX):
            if not keep:
                shutil.rmtree(staging, ignore_errors=True)
            _remove_orphans(staging.parent)


def _target(options: SinkOptions) -> AbstractContextManager[Target]:
    if options.endpoint is None:
        return DirectoryTarget.open(options.path)
    from penstock.pipeline.endpoint_target import EndpointTarget

    return EndpointTarget.open(options.endpoint, options.namespace, options.staging)


def _existing(options: SinkOptions) -> dict[str, int]:
    if options.endpoint is not None:
        from penstock.pipeline.endpoint import connect
        from penstock.pipeline.endpoint_target import partition_counts_of

        with closing(connect(options.endpoint)) as backend:
            return partition_counts_of(backend, options.namespace)
    try:
        with StoreView.open(options.path) as view:
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

    def write(  # type: ignore[override]  # narrowed as in Spark's own subclass
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: Messages) -> None:
        self._sink.publish(messages, self._options.batch_id)

    def abort(self, messages: Messages) -> None:  # noqa: ARG002 - the directory tells more
        self._sink.clean()


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = _Sink(sink_options(options, schema, streaming=True))

    def write(  # type: ignore[override]  # narrowed as in Spark's own subclass
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - a name of Spark's
        self._sink.publish(messages, batchId)

    def abort(
        self,
        messages: Messages,  # noqa: ARG002 - the directory tells more
        batchId: int,  # noqa: ARG002, N803 - a name of Spark's
    ) -> None:
        self._sink.clean()
