"""An Iceberg table as the target of an export, written by `pyiceberg`, each run once.

    copy      staged files go below the table's location      names of this run: a repeat overwrites
    commit    one transaction adds them all, and sets the     readers see all or nothing
              property `penstock.export.<id>` to its number

The property outlives snapshots that are expired. A run that was killed after its commit and before
its bookmark is found by it, and not added again. The table is partitioned by topic and by the day
of the timestamp, as Iceberg's hidden partitions; every file is of one topic and one day.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import BadRequestError, SetupError, StoreError
from penstock.pipeline.jobs.exports.iceberg_place import IcebergPlace

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

_COPY_SIZE: Final = 4 << 20
_CATALOG_FILE: Final = "catalog.db"


def check_place(place: IcebergPlace) -> None:
    """Refuse what cannot work, before any record is read."""
    try:
        import pyiceberg  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise SetupError("Iceberg needs pyiceberg: pip install 'penstock[iceberg]'") from error
    namespace, _, name = place.table.rpartition(".")
    if not namespace or not name:
        raise BadRequestError(f"{place.table!r} is not a table name: write NAMESPACE.NAME")


def open_catalog(place: IcebergPlace, target: Path) -> Catalog:
    """Open the catalog; one of SQL makes its tables when it has none."""
    from pyiceberg.catalog import load_catalog

    check_place(place)
    home = target.resolve()
    settings = {"warehouse": home.as_uri(), **place.settings}
    uri = place.catalog or f"sqlite:///{home / _CATALOG_FILE}"
    remote = uri.startswith(("http://", "https://"))
    settings |= {"uri": uri, "type": "rest" if remote else "sql"}
    if remote and "warehouse" not in place.settings:
        del settings["warehouse"]  # the server's own
    try:
        return load_catalog("penstock", **settings)
    except Exception as error:  # of pyiceberg, a database driver, a client of HTTP
        raise SetupError(f"the catalog {uri} cannot be opened: {_sentence(error)}") from error


def commit_files(
    target: Path, place: IcebergPlace, files: Sequence[Path], export_id: str, run: int
) -> bool:
    """Add staged files to the table; return False when this run did so before."""
    catalog = open_catalog(place, target)
    done = f"penstock.export.{export_id}"
    try:
        table = _load(catalog, place)
        if table is not None and int(table.properties.get(done, "0")) >= run:
            return False
        if not files:
            return True
        schema = _schema(files)
        if table is None:
            table = _create(catalog, place, schema)
        copies = [_copy(table, file, f"{export_id}-{run:06d}") for file in files]
        with table.transaction() as change:
            _widen(change, table, schema)
            change.add_files(
                copies,
                snapshot_properties={"penstock.export": export_id, "penstock.run": str(run)},
                check_duplicate_files=False,
            )
            change.set_properties({done: str(run)})
    except StoreError:
        raise
    except Exception as error:  # of pyiceberg, a database driver, an object store
        raise StoreError(f"Iceberg: {_sentence(error)}; repeat the export") from error
    return True


def _load(catalog: Catalog, place: IcebergPlace) -> Table | None:
    return catalog.load_table(place.table) if catalog.table_exists(place.table) else None


def _schema(files: Sequence[Path]) -> pa.Schema:
    """Return the columns of a run; all of its files have the same."""
    return pq.read_schema(files[0]).remove_metadata()


def _create(catalog: Catalog, place: IcebergPlace, schema: pa.Schema) -> Table:
    from pyiceberg.exceptions import TableAlreadyExistsError
    from pyiceberg.transforms import DayTransform, IdentityTransform

    catalog.create_namespace_if_not_exists(place.table.rpartition(".")[0])
    try:
        with (
            catalog.create_table_transaction(place.table, schema=schema) as change,
            change.update_spec() as spec,
        ):
            spec.add_field("topic", IdentityTransform(), "topic")
            spec.add_field("timestamp", DayTransform(), "day")
    except TableAlreadyExistsError:
        pass  # another export was faster
    return catalog.load_table(place.table)


def _widen(change: Transaction, table: Table, schema: pa.Schema) -> None:
    """Add the columns that the table does not have yet."""
    from pyiceberg.table import TableProperties

    known = set(table.schema().column_names)
    if set(schema.names) <= known:
        return
    with change.update_schema() as update:
        update.union_by_name(schema)
    # Files are read by the names of their columns: those of new ones must be known, too.
    mapping = change.table_metadata.schema().name_mapping.model_dump_json()
    change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})


def _copy(table: Table, file: Path, prefix: str) -> str:
    """Put a staged file below the table's location; return where."""
    place = f"{table.location()}/data/{_partition(file)}/{prefix}-{file.name}"
    output = table.io.new_output(place)
    with file.open("rb") as source, output.create(overwrite=True) as copy:
        while part := source.read(_COPY_SIZE):
            copy.write(part)
    return place


def _partition(file: Path) -> str:
    return "/".join(part.removeprefix("by_") for part in file.parts[-3:-1])


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
