"""Replicated shards keep the storage contract, although their commit offset moves later.

Every shard is replicated. A thread commits what was appended a moment ago; a write returns when it
is committed, as the handler's does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.engine.quick_directory import quick_directory

from penstock.engine.contract import ShardConfig, ShardPart, StorageEngine, Written
from penstock.engine.segment import SegmentEngine, SegmentStore
from penstock.errors import NotLeaderError, StoreError, UnknownShardError
from penstock.record import Producer, QueueKind, Record, ShardId
from penstock.testing.conformance import EngineConformance, EngineHarness
from penstock.testing.conformance.engines import SegmentHarness

LAG_S: Final = 0.0005
PATIENCE_S: Final = 30.0


def _when_led(write: Callable[[], Written]) -> Written:
    """Write when a shard is led that another thread has just created."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return write()
        except NotLeaderError:
            assert time.monotonic() < until, "the shard is not led"
            time.sleep(LAG_S)


class LaggingEngine(SegmentEngine):
    """A segment engine all of whose shards are replicated and led here."""

    def __init__(self, store: SegmentStore, epoch: int) -> None:
        super().__init__(store)
        self._epoch = epoch
        self._stopping = threading.Event()
        for shard in self.list_shard():
            self._lead(shard)
        self._replication = threading.Thread(target=self._commit, daemon=True)
        self._replication.start()
        for shard in self.list_shard():
            self._wait(shard)

    def _lead(self, shard: ShardId) -> None:
        for log in self.replica_logs(shard):
            log.begin_epoch(self._epoch)

    def _commit(self) -> None:
        while not self._stopping.wait(LAG_S):
            for shard in self.store.shards():
                try:
                    for log in self.replica_logs(shard):
                        safe = log.safe
                        if safe > log.commit:
                            log.set_commit(safe)
                except UnknownShardError:
                    continue  # deleted meanwhile

    def _wait(self, shard: ShardId) -> None:
        """Return when everything that the shard has now is committed, and its commands are done."""
        until = time.monotonic() + PATIENCE_S
        records, commands = self.replica_logs(shard)
        record_end, command_end = records.end, commands.end
        state = self.store.state(shard)
        while records.commit < record_end or state.control_offset < command_end:
            assert time.monotonic() < until, f"{shard.name} is committed up to {records.commit}"
            time.sleep(LAG_S)

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        super().create_shard(shard, config)
        self._lead(shard)

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        written = _when_led(partial(super().write, shard, record, producer=producer))
        self._wait(shard)
        return written

    def try_write(self, shard: ShardId, record: Record) -> Written | None:
        written = super().try_write(shard, record)
        self._wait(shard)
        return written

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        written = _when_led(partial(super().batch_write, shard, records, producer=producer))
        self._wait(shard)
        return written

    def batch_write_parts(self, parts: Sequence[ShardPart]) -> list[Written | StoreError]:
        written = super().batch_write_parts(parts)
        for part, result in zip(parts, written, strict=True):
            if isinstance(result, Written):
                self._wait(part.shard)
        return written

    def close(self) -> None:
        self._stopping.set()
        self._replication.join(PATIENCE_S)
        super().close()


class LaggingHarness(SegmentHarness):
    _epoch = 0

    def make(self) -> StorageEngine:
        engine = super().make()
        assert isinstance(engine, SegmentEngine)
        self._epoch += 1
        self._engine = LaggingEngine(engine.store, self._epoch)
        return self._engine


class BatchLaggingHarness(LaggingHarness):
    base_config = ShardConfig(kind=QueueKind.BATCH)


class TestReplicatedShards(EngineConformance):
    @pytest.fixture(params=[LaggingHarness, BatchLaggingHarness])
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        kind: type[LaggingHarness] = request.param
        with quick_directory() as directory:
            yield kind(Path(directory))
