"""Replicas of shards that are kept as rows: what the memory and the RocksDB engine share.

    RecordsLog     the records, in the writes in which clients sent them
    OperationsLog  what happens to records later: deletes, the first offset, the seal

Both implement `penstock.engine.replication.log.ReplicaLog`. The leader appends operations; they
act on every replica, the leader's own included, once they are committed (`Replica`).
"""

from penstock.engine.row_replica.logged_write import (
    COUNT_MAX,
    CopiedWrite,
    LoggedWrite,
    check_write_size,
)
from penstock.engine.row_replica.operations import OperationEntry
from penstock.engine.row_replica.replica import Replica
from penstock.engine.row_replica.row_engine import RowEngine
from penstock.engine.row_replica.row_shard import Announce, RowShard
from penstock.engine.row_replica.store import (
    Histories,
    Loaded,
    Removed,
    Saved,
    Update,
    begun,
    ended,
)

__all__ = [
    "COUNT_MAX",
    "Announce",
    "CopiedWrite",
    "Histories",
    "Loaded",
    "LoggedWrite",
    "OperationEntry",
    "Removed",
    "Replica",
    "RowEngine",
    "RowShard",
    "Saved",
    "Update",
    "begun",
    "check_write_size",
    "ended",
]
