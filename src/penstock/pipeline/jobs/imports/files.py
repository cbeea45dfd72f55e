"""Imports Parquet, JSON or CSV files into topics of a store or a running node, each row once.

Rows go through the data source's sink: tasks stage them, and they are published together under a
name made of the files (path, size, time of change), the topic and the columns. The same import
again is recognised by that name and changes nothing; one that was killed while it was published is
finished by the next call. Files that were changed since are another import.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from penstock.errors import BadRequestError, StoreError
from penstock.pipeline.jobs.imports.target import ImportPlace
from penstock.pipeline.jobs.spark_work import Progress, spark_work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "json", "csv")
_HIDDEN: Final = ("_", ".")
_PASSED_ON: Final = ("headers", "tags")


class ImportColumns(Struct, frozen=True):
    """Which columns of the files become which part of a record.

    By default these are the columns of the same names, as far as there are any; without a column
    `value` the value is the whole row as JSON.
    """

    value: str | None = None
    key: str | None = None
    timestamp: str | None = None
    """A timestamp, its text, or milliseconds since 1970."""
    partition: str | None = None
    """Without it, rows go by the hash of their key. There is no default for this one."""


class ImportResult(Struct, frozen=True):
    path: str
    source: str
    name: str
    """Under which the store remembers this import."""
    files: int
    bytes_read: int
    rows: int
    rows_added: int
    """Fewer than `rows` when this call only finished what a killed one had begun."""
    repeated: bool
    """The same import was done before; nothing was read, nothing changed."""
    seconds: float


def import_(
    spark: SparkSession,
    path: str | ImportPlace,
    source: str,
    topic: str | None = None,
    *,
    file_format: str | None = None,
    columns: ImportColumns | None = None,
    partitions: int = 1,
    progress: Progress | None = None,
) -> ImportResult:
    """Append the rows of a file, or of all files below a directory, to a topic.

    Without `topic` a column of that name says where each row goes. Topics that do not exist are
    created with `partitions` shards, and so is the store. The store is opened for the moment of
    publishing: `LockedError` when another process keeps it open for longer than the place's
    `lock_timeout_s`, and nothing was written. `path` may be `host:port` of a running node, which
    then writes; an `ImportPlace` says which directory remembers such imports.
    """
    from penstock.pipeline.write.commit_protocol import Journal

    began = time.monotonic()
    columns = columns or ImportColumns()
    files = _files(Path(source))
    kind = _format(files, file_format)
    size = sum(file.stat().st_size for file in files)
    place = ImportPlace(path) if isinstance(path, str) else path
    name = _name(files, topic, columns, place.identity)
    done = Journal(place.journal(name))
    if done.committed() >= 0:
        seconds = time.monotonic() - began
        return ImportResult(place.path, source, name, len(files), size, 0, 0, True, seconds)
    resumed = done.open_batch() is not None
    before = place.records()
    with spark_work(spark, "import", progress):
        table = _table(spark, source, kind)
        rows = table.count()
        chosen = _chosen(table, columns, has_topic=topic is not None)
        writer = chosen.write.format("penstock").mode("append")
        if topic is not None:
            writer = writer.option("topic", topic)
        writer = writer.option("createTopics", "true").option("partitions", str(partitions))
        writer = writer.option("sinkId", name).option("batchId", "0")
        writer.options(**place.options()).save()
    added = place.records() - before
    if place.is_node:
        added = min(added, rows)  # others may write meanwhile
    if added < rows and not resumed:
        raise StoreError(
            f"{source} has {rows} rows, but the shards of {place.path} grew by {added}: "
            "check whether the files changed during the import"
        )
    seconds = time.monotonic() - began
    return ImportResult(place.path, source, name, len(files), size, rows, added, False, seconds)


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    files = sorted(
        file
        for file in source.rglob("*")
        if file.is_file()
        and not any(part.startswith(_HIDDEN) for part in file.relative_to(source).parts)
    )
    if not files:
        raise BadRequestError(f"{source} is neither a file nor a directory with files")
    return files


def _format(files: Sequence[Path], given: str | None) -> str:
    kinds = {given} if given else {file.suffix.removeprefix(".").lower() for file in files}
    kinds = {"json" if kind in ("jsonl", "ndjson") else kind for kind in kinds}
    kind = kinds.pop()
    if kinds or kind not in FORMATS:
        raise BadRequestError(f"the file format is unknown: give one of {', '.join(FORMATS)}")
    return kind


def _name(
    files: Sequence[Path], topic: str | None, columns: ImportColumns, identity: Sequence[str]
) -> str:
    digest = blake2b(digest_size=16)
    digest.update(msgspec.json.encode([topic, columns, *identity]))
    for file in files:
        status = file.stat()
        digest.update(
            msgspec.json.encode([str(file.resolve()), status.st_size, status.st_mtime_ns])
        )
    return f"import-{digest.hexdigest()}"


def _table(spark: SparkSession, source: str, kind: str) -> DataFrame:
    reader = spark.read.option("header", "true") if kind == "csv" else spark.read
    return reader.format(kind).load(f"file://{Path(source).resolve()}")


def _chosen(table: DataFrame, columns: ImportColumns, *, has_topic: bool) -> DataFrame:
    """Return the columns that the sink takes."""
    for name in (columns.value, columns.key, columns.timestamp, columns.partition):
        if name is not None and name not in table.columns:
            raise BadRequestError(f"unknown column {name!r}; the files have {table.columns}")
    there = {name: name for name in ("value", "key", "timestamp") if name in table.columns}
    value = columns.value or there.get("value")
    key = columns.key or there.get("key")
    moment = columns.timestamp or there.get("timestamp")
    types = dict(table.dtypes)
    chosen = ["to_json(struct(*)) value" if value is None else f"{_data(types, value)} value"]
    if key is not None:
        chosen.append(f"{_data(types, key)} key")
    if moment is not None:
        chosen.append(f"{_moment(types, moment)} timestamp")
    if columns.partition is not None:
        chosen.append(f"cast({_quoted(columns.partition)} as int) partition")
    if not has_topic:
        if "topic" not in types:
            raise BadRequestError("the files have no column 'topic': give the topic")
        chosen.append("cast(topic as string) topic")
    chosen += [name for name in _PASSED_ON if types.get(name, "").startswith("array<")]
    return table.selectExpr(*chosen)


def _data(types: dict[str, str], name: str) -> str:
    kind, quoted = types[name], _quoted(name)
    if kind in ("binary", "string"):
        return quoted
    if kind.startswith(("struct", "array", "map")):
        return f"to_json({quoted})"
    return f"cast({quoted} as string)"


def _moment(types: dict[str, str], name: str) -> str:
    if types[name] in ("bigint", "int"):
        return f"timestamp_millis({_quoted(name)})"
    return f"cast({_quoted(name)} as timestamp)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
