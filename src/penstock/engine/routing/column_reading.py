"""Committed records of a shard as Arrow columns, for readers of much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.contract import ColumnEngine, ColumnQuery
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.engine.transactions.stable_offsets import StableOffsets

if TYPE_CHECKING:
    import pyarrow as pa


def read_columns(
    entry: ShardEntry, engine: object, limits: StableOffsets, query: ColumnQuery
) -> list[pa.RecordBatch] | None:
    """Return about as many bytes as requested; None where only rows can be read: with other
    engines, and in a shard that is stored on several nodes or has transactions."""
    if entry.offline or not isinstance(engine, ColumnEngine):
        return None
    aborts = entry.aborts
    batches = engine.read_columns(entry.id, query)
    # After the read: a transaction holds the shard up before it writes. The other reads
    # find out which rows it hides.
    if batches is None or limits.touches(entry.name) or entry.aborts != aborts:
        return None
    entry.reads += 1
    entry.records_read += sum(batch.num_rows for batch in batches)
    return batches
