"""The part of a read from a running node that runs in Spark's workers.

Pages of records are asked for over gRPC, the next one while the last one is converted: as Arrow
columns, without an object per record; as rows for records of another engine, in a tier, on another
node, or with transactions. A worker keeps its connection for the query's
next tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapter.requests import QueryByKey, ReadByTag, ReadColumns
from penstock.api.requests.topics import DescribePartition, LocateTopic
from penstock.errors import BadRequestError
from penstock.pipeline.columns import BatchMaker
from penstock.pipeline.read.endpoint import connect
from penstock.pipeline.read.positions import recreated_text
from penstock.pipeline.read.ranges import ShardRange, available_part
from penstock.record import Offset, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipeline.read.reading import Counts, Scan
    from penstock.remote.client import RemoteBackend


RECORDS_PER_PAGE: Final = 4096
SIZE_PER_PAGE: Final = 4 << 20
SIZE_PER_COLUMNS: Final = 8 << 20
KEY_RECORDS_MAX: Final = 10_000
"""A key with more records than this is not looked up but found by reading the range."""

_FIRST_MS: Final = -(1 << 62)

_backends: dict[tuple[str, str], RemoteBackend] = {}
_backends_lock: Final = threading.Lock()


def shared_backend(address: str, query: str) -> RemoteBackend:
    """Return this process's connection for a query; those of earlier queries are closed."""
    with _backends_lock:
        backend = _backends.get((address, query))
        if backend is None:
            backend = connect(address)
            while _backends:
                _backends.popitem()[1].close()
            _backends[address, query] = backend
        return backend


class _Page(NamedTuple):
    """What was read, as columns or as rows, and the offset to go on at."""

    after: int
    columns: list[pa.RecordBatch]
    records: list[StoredRecord]


class NodeRangeReader:
    """Reads one range of offsets from a node."""

    def __init__(
        self,
        scan: Scan,
        shard_range: ShardRange,
        names: tuple[str, ...],
        counts: Counts,
        topic_id: str | None = None,
    ) -> None:
        """`topic_id`: raise when another topic has that name by now."""
        assert scan.endpoint is not None
        self._scan: Final = scan
        self._shard: Final = shard_range.shard
        self._namespace: Final = scan.namespace
        self._backend: Final = shared_backend(scan.endpoint, scan.query)
        self._make: Final = BatchMaker(shard_range.shard, names)
        self._tag: Final = scan.tag if scan.tag is not None else scan.filters.tag
        self._counts: Final = counts
        self._topic_id: Final = topic_id
        self._check_topic()
        self._start, self._end = self._bounds(shard_range)

    def _bounds(self, shard_range: ShardRange) -> tuple[int, int]:
        topic, partition = shard_range.shard
        info = self._backend.execute(DescribePartition(topic, partition, namespace=self._namespace))
        fail = self._scan.fail_on_data_loss
        start, end, lost = available_part(shard_range, info.earliest, info.commit, fail=fail)
        self._counts.records_lost += lost
        return start, end

    def _check_topic(self) -> None:
        """Raise when the topic was created again since the read was planned."""
        if self._topic_id is None:
            return
        request = LocateTopic(self._shard.topic, namespace=self._namespace)
        present, _ = self._backend.execute(request)
        if present != self._topic_id:
            raise BadRequestError(recreated_text(self._shard.topic, self._topic_id, present))

    def by_key(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the wanted keys, by offset."""
        by_offset: dict[int, StoredRecord] = {}
        for key in self._scan.filters.keys or ():
            messages = self._backend.execute(
                QueryByKey(
                    self._shard.topic,
                    key,
                    _FIRST_MS,
                    limit=KEY_RECORDS_MAX,
                    namespace=self._namespace,
                )
            )
            if len(messages) >= KEY_RECORDS_MAX:
                yield from self.scan()
                return
            for message in messages:
                record = message.record
                here = message.partition == self._shard.partition
                if here and self._start <= record.offset < self._end:
                    by_offset[record.offset] = record
        self._check_topic()
        self._counts.rows_read += len(by_offset)
        records = [by_offset[offset] for offset in sorted(by_offset)]
        if self._tag is not None:
            records = [record for record in records if self._tag in record.tags]
        for first in range(0, len(records), RECORDS_PER_PAGE):
            yield self._make.from_records(records[first : first + RECORDS_PER_PAGE])

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range."""
        if self._start >= self._end:
            return
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-page") as pool:
            ahead: Future[_Page] | None = pool.submit(self._page, self._start)
            while ahead is not None:
                page = ahead.result()
                ahead = pool.submit(self._page, page.after) if page.after < self._end else None
                if ahead is None:
                    self._check_topic()  # what was read is of one topic
                for batch in self._batches(page):
                    self._counts.rows_read += batch.num_rows
                    yield batch

    def _batches(self, page: _Page) -> Iterator[pa.RecordBatch]:
        for stored in page.columns:
            yield self._make.from_stored(stored)
        records = [record for record in page.records if record.offset < self._end]
        if records:
            yield self._make.from_records(records)

    def _page(self, offset: int) -> _Page:
        """Ask for columns, and where the node has none to give, for rows."""
        topic, partition = self._shard
        names = self._make.stored_names
        columns = self._backend.execute(
            ReadColumns(
                topic,
                partition,
                offset,
                self._end,
                names,
                self._tag,
                SIZE_PER_COLUMNS,
                namespace=self._namespace,
            )
        )
        if columns is not None:
            # Nothing: what is left of the range was deleted.
            after = columns[-1].column("offset")[-1].as_py() + 1 if columns else self._end
            return _Page(after, columns, [])
        records = self._rows(offset)
        return _Page(records[-1].offset + 1 if records else self._end, [], records)

    def _rows(self, offset: int) -> list[StoredRecord]:
        topic, partition = self._shard
        if self._tag is None:
            return self._backend.read_by_offset(
                topic,
                partition,
                Offset(offset),
                max_records=RECORDS_PER_PAGE,
                max_size=SIZE_PER_PAGE,
                namespace=self._namespace,
            )
        messages = self._backend.execute(
            ReadByTag(
                topic,
                self._tag,
                partition,
                offset,
                RECORDS_PER_PAGE,
                SIZE_PER_PAGE,
                namespace=self._namespace,
            )
        )
        return [message.record for message in messages]
