"""A running node as the target of a sink: chunks are written over gRPC, by the sink's producer.

A write whose answer is lost is sent again with the same producer and sequence, and so is a batch
that a crash interrupted: the node recognises both. What the node has acknowledged is as durable as
its own `flush_disk_type` makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from penstock.api.requests.topics import AlterTopic, CreateTopic, DescribePartition, ListTopics
from penstock.errors import SequenceGapError
from penstock.pipeline.read.endpoint import connect
from penstock.pipeline.write.staging import Chunk
from penstock.pipeline.write.staging_area import is_remote
from penstock.pipeline.write.targets import Target, records, retry_while_locked, was_appended
from penstock.platform.local_disk import LocalDisk
from penstock.record import Producer

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.remote.client import RemoteBackend


class NodeTarget:
    def __init__(self, backend: RemoteBackend, namespace: str) -> None:
        self._backend: Final = backend
        self._namespace: Final = namespace

    @classmethod
    @contextmanager
    def open(
        cls, address: str, namespace: str, staging: str, timeout_s: float = 0.0
    ) -> Iterator[Target]:
        """Connect, and keep other publishers of the same sink away meanwhile; in an object store
        the journal itself does so."""
        lock = None
        if not is_remote(staging):
            lock = retry_while_locked(lambda: LocalDisk().lock(f"{staging}/lock"), timeout_s)
        try:
            with closing(connect(address)) as backend:
                yield cls(backend, namespace)
        finally:
            if lock is not None:
                lock.release()

    def partition_counts(self) -> dict[str, int]:
        return partition_counts_of(self._backend, self._namespace)

    def create_topic(self, topic: str, partitions: int) -> None:
        if topic in self.partition_counts():
            self._backend.execute(AlterTopic(topic, partitions, namespace=self._namespace))
        else:
            self._backend.execute(CreateTopic(topic, partitions, namespace=self._namespace))

    def append(self, chunk: Chunk, rows: pa.RecordBatch, producer: Producer) -> bool:
        topic, partition = chunk.shard
        info = self._backend.execute(DescribePartition(topic, partition, namespace=self._namespace))
        try:
            places = self._backend.batch_write(
                topic,
                [*records(rows)],
                partition=partition,
                producer=producer,
                namespace=self._namespace,
            )
        except SequenceGapError as error:
            if was_appended(error, chunk, producer):
                return False
            raise
        return places[0].offset >= info.latest

    def flush(self) -> None:
        """Nothing to do: acknowledged rows are as durable as the node's flush settings."""


def partition_counts_of(backend: RemoteBackend, namespace: str) -> dict[str, int]:
    return {topic.name: topic.partition_count for topic in backend.execute(ListTopics(namespace))}
