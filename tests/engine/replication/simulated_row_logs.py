"""The real logs of memory and RocksDB shards, as the simulation of replication uses them.

A process that ends opens its RocksDB again; what is in memory stays, as if a process went on. The
power cuts and flipped bits of the simulation do no harm here: those are tested elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.engine.replication.simulated_log import Entry, OnGivenUp, ignore_given_up

from penstock.engine.contract import ShardConfig
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.record_rows import decode_record
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.row_replica import Replica
from penstock.engine.row_replica.logged_write import decode_writes
from penstock.engine.row_replica.logs import OperationsLog, RecordsLog
from penstock.engine.row_replica.operations import EndTransaction
from penstock.record import Flush, Record, ShardId

SHARD: Final = ShardId("t", 0)
RowEngine = MemoryStorageEngine | RocksDBStorageEngine


class RowNode:
    """The engine of one node, and its two logs."""

    def __init__(self, open_engine: Callable[[], RowEngine], *, is_sync: bool) -> None:
        self._open = open_engine
        self._config = ShardConfig(flush=Flush.SYNC if is_sync else Flush.ASYNC)
        self.is_sync = is_sync
        self.engine = open_engine()
        self.replica = self._replica()
        self.logs = (SimulatedRecords(self), SimulatedOperations(self))

    def _replica(self) -> Replica:
        self.engine.create_shard(SHARD, self._config)
        self.engine.replica_logs(SHARD)
        replica = self.engine._shards[SHARD].replica
        assert replica is not None
        return replica

    def reopen(self) -> None:
        if isinstance(self.engine, RocksDBStorageEngine):
            self.engine.close()
            self.engine = self._open()
            self.replica = self._replica()
            for log in self.logs:
                log.bind()

    def sync(self) -> None:
        self.engine.sync()


class _Simulated:
    """What the simulation sees of a log."""

    is_flipped = False
    is_tail_cut = False
    on_given_up: OnGivenUp = staticmethod(ignore_given_up)

    def __init__(self, node: RowNode) -> None:
        self.node = node
        self._known: list[Entry] = []
        self._version: tuple[object, int] = (None, 0)
        self.bind()

    @property
    def is_sync(self) -> bool:
        return self.node.is_sync

    @property
    def records(self) -> list[Entry]:
        version = (self.node.replica, self.node.replica.cuts)
        if version != self._version:
            self._known, self._version = [], version
        self.read_on(self._known)
        return self._known

    def bind(self) -> None:
        raise NotImplementedError

    def read_on(self, known: list[Entry]) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        self.node.sync()

    def restart(self) -> None:
        self.node.replica.follow()

    def lose_power(self, _: random.Random) -> None:
        self.restart()

    def flip(self, offset: int) -> None:
        """Not here."""

    def find_damage(self, offset: int) -> None:
        """Not here."""

    def trim(self, chance: random.Random) -> None:
        """Not here: a command of the leader does it."""

    def fail_device(self) -> None:
        """Not here."""

    def jump_clock(self, milliseconds: int) -> None:
        """Not here."""

    def found_by_key(self) -> list[tuple[int, Entry]]:
        return []


class SimulatedRecords(_Simulated, RecordsLog):
    def bind(self) -> None:
        RecordsLog.__init__(self, self.node.replica)

    def restart(self) -> None:
        super().restart()
        self.node.reopen()

    def append(self, value: int) -> int:
        return self.node.engine.write(SHARD, Record(value=b"%d" % value)).first + 1

    def read_on(self, known: list[Entry]) -> None:
        while len(known) < self.end:
            data, _ = self.read_range(len(known), 1 << 20)
            for write, rows in decode_writes(data, "simulated", len(known)):
                [(offset, row)] = rows
                known.append((write.epoch, int(decode_record(offset, row).value or b"0")))


class SimulatedOperations(_Simulated, OperationsLog):
    def bind(self) -> None:
        OperationsLog.__init__(self, self.node.replica)

    def append(self, value: int) -> int:
        replica = self.node.replica
        with replica.store.lock:
            return replica._append((EndTransaction(0, value),)).stop

    def read_on(self, known: list[Entry]) -> None:
        for entry in self.node.replica.operations[len(known) :]:
            assert isinstance(entry.operation, EndTransaction)
            known.append((entry.epoch, entry.operation.producer_id))
