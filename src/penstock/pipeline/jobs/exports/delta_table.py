"""A Delta table as the target of an export, written by `deltalake`, each run once.

Every commit carries the export's name and the number of the run as a transaction of Delta's own. A
run that was killed after its commit and before its bookmark is found there, and not written again.

Append keeps every record. Upsert keeps the newest record of each key: rows without a key are left
out, and a record without a value removes its key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.errors import SetupError
from penstock.pipeline.jobs.exports.payload import TOMBSTONE

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

APPEND: Final = "append"
UPSERT: Final = "upsert"
_APPLICATION: Final = "penstock-export"
_PARTITIONS: Final[list[tuple[str, pa.DataType]]] = [("topic", pa.string()), ("day", pa.date32())]
_SAME_KEY: Final = "target.topic = source.topic and target.key = source.key"


def check_installed() -> None:
    try:
        import deltalake  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise SetupError("Delta tables need deltalake: pip install 'penstock[delta]'") from error


def commit_files(target: Path, files: list[Path], staging: Path, run: int, mode: str) -> bool:
    """Put staged files into the table; return False when this run did so before."""
    check_installed()
    table = _open(target)
    if table is not None and (table.transaction_version(_APPLICATION) or 0) >= run:
        return False
    staged = ds.dataset(
        [str(file) for file in files],
        format="parquet",
        partitioning=ds.partitioning(pa.schema(_PARTITIONS), flavor="hive"),
        partition_base_dir=str(staging),
    )
    if mode == UPSERT:
        _upsert(target, table, _newest(staged.to_table()), run)
    else:
        _append(target, staged.scanner().to_reader(), run, ["topic", "day"])
    return True


def _open(target: Path) -> DeltaTable | None:
    from deltalake import DeltaTable

    return DeltaTable(str(target)) if DeltaTable.is_deltatable(str(target)) else None


def _properties(run: int) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(_APPLICATION, run)])


def _append(target: Path, rows: pa.RecordBatchReader, run: int, partition_by: list[str]) -> None:
    from deltalake import write_deltalake

    write_deltalake(
        str(target),
        rows,
        mode="append",
        partition_by=partition_by,
        schema_mode="merge",
        commit_properties=_properties(run),
    )


def _upsert(target: Path, table: DeltaTable | None, rows: pa.Table, run: int) -> None:
    if table is None:
        kept = rows.filter(_has_value(rows))
        reader = pa.RecordBatchReader.from_batches(kept.schema, kept.to_batches())
        _append(target, reader, run, ["topic"])
        return
    merge = table.merge(
        source=rows,
        predicate=_SAME_KEY,
        source_alias="source",
        target_alias="target",
        commit_properties=_properties(run),
        merge_schema=True,
    )
    gone = "source.tombstone" if TOMBSTONE in rows.column_names else "source.value is null"
    merge = merge.when_matched_delete(gone).when_matched_update_all()
    merge.when_not_matched_insert_all(f"not ({gone})").execute()


def _has_value(rows: pa.Table) -> ds.Expression:
    gone = ds.field(TOMBSTONE) if TOMBSTONE in rows.column_names else ds.field("value").is_null()
    return pc.invert(gone)


def _newest(rows: pa.Table) -> pa.Table:
    """Return the newest record of each key."""
    keyed = rows.filter(pc.is_valid(rows.column("key")))
    keyed = keyed.sort_by([("store_timestamp", "ascending"), ("offset", "ascending")])
    numbers = pa.array(range(keyed.num_rows), pa.int64())
    last = (
        keyed.select(["topic", "key"])
        .append_column("row", numbers)
        .group_by(["topic", "key"])
        .aggregate([("row", "max")])
    )
    return keyed.take(last.column("row_max"))
