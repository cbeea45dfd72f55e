"""The segment engine: one CommitLog per node, a ConsumeQueue per shard, IndexFiles by key.

Its files are byte-compatible with Apache RocketMQ 5.5. `engine` implements the storage contract,
`store` joins the parts.

Other packages import from here and from `inspect` only; an import contract in `pyproject.toml`
protects the modules below. A name is loaded with its first use, so that a program which needs one
of them does not load the others.
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.engine.segment.bounds import Bounds
    from penstock.engine.segment.engine import RECORD_OVERHEAD_MAX, SegmentEngine
    from penstock.engine.segment.log.disk_errors import opening_errors
    from penstock.engine.segment.queue.shard_state import ShardState
    from penstock.engine.segment.read.arrow import AnyArray
    from penstock.engine.segment.read.key_reader import Query, inner_count, split_raw_range
    from penstock.engine.segment.read.transaction_records import transaction_records_in
    from penstock.engine.segment.read.unreadable import UnitsRead, find_unreadable, unreadable
    from penstock.engine.segment.readonly.readonly_shard import (
        ReadOnlyShard,
        first_record,
        first_unit_at,
    )
    from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
    from penstock.engine.segment.recovery.report import RecoveryReport
    from penstock.engine.segment.recovery.store_sizes import holds_store
    from penstock.engine.segment.retention import RetentionPolicy
    from penstock.engine.segment.settings import FileSizes, SegmentSettings
    from penstock.engine.segment.store import SegmentStore

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "bounds": "Bounds",
            "engine": "RECORD_OVERHEAD_MAX SegmentEngine",
            "log.disk_errors": "opening_errors",
            "queue.shard_state": "ShardState",
            "read.key_reader": "Query inner_count split_raw_range",
            "read.transaction_records": "transaction_records_in",
            "read.unreadable": "UnitsRead find_unreadable unreadable",
            "readonly.readonly_shard": "ReadOnlyShard first_record first_unit_at",
            "readonly.readonly_store": "ReadOnlyStore",
            "recovery.report": "RecoveryReport",
            "recovery.store_sizes": "holds_store",
            "retention": "RetentionPolicy",
            "settings": "FileSizes SegmentSettings",
            "store": "SegmentStore",
        },
    )

__all__ = [
    "RECORD_OVERHEAD_MAX",
    "AnyArray",
    "Bounds",
    "FileSizes",
    "Query",
    "ReadOnlyShard",
    "ReadOnlyStore",
    "RecoveryReport",
    "RetentionPolicy",
    "SegmentEngine",
    "SegmentSettings",
    "SegmentStore",
    "ShardState",
    "UnitsRead",
    "find_unreadable",
    "first_record",
    "first_unit_at",
    "holds_store",
    "inner_count",
    "inspect",
    "opening_errors",
    "split_raw_range",
    "transaction_records_in",
    "unreadable",
]
