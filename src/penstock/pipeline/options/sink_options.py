"""What can be asked of the sink; columns and their meaning are those of Spark's Kafka sink."""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from uuid import uuid4

from msgspec import Struct
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.errors import BadRequestError
from penstock.pipeline.options.option_table import OptionTable
from penstock.pipeline.options.source_options import read_place
from penstock.pipeline.store.node_directory import DEFAULT_NAMESPACE, refuse_node
from penstock.pipeline.write.staging_area import check_place

OPTIONS: Final = (
    "path",
    "endpoint",
    "namespace",
    "topic",
    "partitioner",
    "createTopics",
    "partitions",
    "sinkId",
    "batchId",
    "stagingPath",
    "lockTimeout",
    "storeColumns",
)
PARTITIONERS: Final = ("key", "roundrobin")
BATCH_PREFIX: Final = "batch-"
_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, LongType),
    "headers": (ArrayType,),
    "tags": (ArrayType, StringType),
    "timestamp": (TimestampType,),
    "expires": (TimestampType,),
}
_ASSIGNED: Final = ("offset", "timestampType", "tag", "store_timestamp", "leader_epoch")
"""Columns of a read that the store gives each record by itself."""
_NAME_MAX: Final = 60
LOCK_TIMEOUT_S: Final = 60.0


class SinkOptions(Struct, frozen=True):
    path: str
    """A store directory; empty when rows go to a node."""
    endpoint: str | None
    namespace: str
    topic: str | None
    by_key: bool
    """Rows without a partition go by the hash of their key; otherwise all go round."""
    create_topics: bool
    partitions: int
    """How many partitions a topic gets that is created."""
    sink_id: str | None
    """None: a stream, whose id is that of its query, which only its tasks know."""
    batch_id: int | None
    staging: str
    """Where the places of sinks are, in which tasks stage rows and the journal is kept."""
    lock_timeout_s: float
    """How long a write waits for another one that has the store open."""

    def place(self, sink_id: str) -> str:
        """Return the place of one sink alone."""
        return f"{self.staging}/{_file_name(sink_id)}"


def sink_options(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkOptions:
    """Check the options and the columns of a write."""
    table = OptionTable(options, OPTIONS)
    path, endpoint = read_place(table, "start" if streaming else "save")
    if endpoint is None:
        refuse_node(path)
    refuses = table.choice("storeColumns", ("ignore", "refuse")) == "refuse"
    _check_columns(schema, has_topic=table.text("topic") is not None, refuses=refuses)
    batch_id = table.number("batchId", minimum=0)
    if streaming and batch_id is not None:
        raise BadRequestError(
            "option 'batchId' is for batch writes; a stream numbers its batches itself"
        )
    if batch_id is not None and table.text("sinkId") is None:
        raise BadRequestError("option 'batchId' needs 'sinkId': it numbers the writes of one sink")
    sink_id = table.text("sinkId")
    if sink_id is None and not streaming:
        sink_id = f"{BATCH_PREFIX}{uuid4().hex}"
    timeout_s = table.number("lockTimeout", minimum=0)
    return SinkOptions(
        path=path,
        endpoint=endpoint,
        namespace=table.text("namespace") or DEFAULT_NAMESPACE,
        topic=table.text("topic"),
        by_key=table.choice("partitioner", PARTITIONERS) == "key",
        create_topics=table.flag("createTopics", default=False),
        partitions=table.number("partitions", minimum=1) or 1,
        sink_id=sink_id,
        batch_id=batch_id,
        staging=_staging(table, path),
        lock_timeout_s=LOCK_TIMEOUT_S if timeout_s is None else timeout_s,
    )


def _staging(table: OptionTable, path: str) -> str:
    """Return where rows wait by default: in the store; for a node, beside the checkpoint."""
    given = table.text("stagingPath")
    if given is not None:
        return check_place(given, "option 'stagingPath'")
    if path:
        return f"{path.rstrip('/')}/penstock/sink"
    checkpoint = table.spark_option("checkpointLocation")
    if checkpoint is not None:
        return f"{check_place(checkpoint, 'the checkpoint')}/penstock-sink"
    if table.text("sinkId") is not None:
        raise BadRequestError(
            "option 'stagingPath' is missing: with 'endpoint' and 'sinkId', the directory of "
            "the sink's journal"
        )
    return str(Path(tempfile.gettempdir(), f"penstock-sink-{os.getuid()}"))


def _file_name(sink_id: str) -> str:
    """Return a name for files that belongs to this sink alone."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", sink_id)[:_NAME_MAX]
    return plain if plain == sink_id else f"{plain}-{zlib.crc32(sink_id.encode()):08x}"


def _check_columns(schema: StructType, *, has_topic: bool, refuses: bool) -> None:
    for field in schema.fields:
        if field.name in _ASSIGNED:
            if refuses:
                raise BadRequestError(
                    f"column {field.name!r} is assigned by the store: drop it, or set the option "
                    "storeColumns to 'ignore'"
                )
            continue
        expected = _COLUMNS.get(field.name)
        if expected is None:
            near = get_close_matches(field.name, _COLUMNS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {[*_COLUMNS]}"
            raise BadRequestError(f"the sink does not accept the column {field.name!r}; {hint}")
        if not isinstance(field.dataType, expected):
            types = " or ".join(spark_type.typeName() for spark_type in expected)
            raise BadRequestError(
                f"column {field.name!r} is {field.dataType.simpleString()}, expected {types}"
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise BadRequestError("the sink needs a column 'value'")
    if "topic" not in names and not has_topic:
        raise BadRequestError("the sink needs a column 'topic' or the option 'topic'")
