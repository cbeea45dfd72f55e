"""What can be asked of the source; names and meanings are those of Spark's Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.pipeline.columns import KAFKA_COLUMNS, METADATA_COLUMNS, SPARK_TYPES
from penstock.pipeline.options.option_table import (
    Offsets,
    OptionTable,
    parse_assignment,
    parse_offsets,
)
from penstock.pipeline.read.endpoint import check_address
from penstock.pipeline.read.positions import Positions
from penstock.pipeline.store.node_directory import DEFAULT_NAMESPACE
from penstock.pipeline.write.staging_area import local_path

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
PARTITION_BYTES: Final = 64 << 20
TRIGGER_DELAY: Final = "15m"
_DURATION: Final = re.compile(r"(\d{1,12})\s*(us|ms|s|m|min|h|d)?")
_UNITS_S: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

OPTIONS: Final = (
    "path",
    "endpoint",
    "tier",
    "namespace",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxRecordsPerPartition",
    "minPartitions",
    "maxPartitionBytes",
    "isolationLevel",
    "failOnDataLoss",
    "onDamage",
    "includeHeaders",
    "includeMetadata",
    "columns",
    "tag",
    "key",
    "pushFilters",
    "metricsPath",
)


class Limit(Struct, frozen=True):
    """Where reading begins or ends: the first of these that is set counts, as in Kafka's source."""

    timestamp_ms: int | None
    timestamps_ms: Offsets | None
    offsets: Offsets | None
    ids: dict[str, str]
    """The ids of topics that the offsets are of, as far as they say so."""
    word: str
    """`earliest` or `latest`, the default of partitions without an offset."""


class SourceOptions(Struct, frozen=True):
    path: str
    """A store directory; empty when records come from a node or from a tier alone."""
    endpoint: str | None
    """`host:port` of a running node."""
    tier: str | None
    """The URL of a tier: of all records, or of those that directory or node no longer hold."""
    namespace: str
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: dict[str, tuple[int, ...]] | None
    start: Limit
    end: Limit
    late_start_fails: bool
    """A start timestamp after the newest record raises instead of meaning the end."""
    records_per_trigger: int | None
    records_awaited: int | None
    """A stream waits until so many records are there, … """
    trigger_delay_s: float
    """… at most for so long."""
    records_per_partition: int | None
    partitions_min: int
    partition_bytes: int
    committed: bool
    """Records of transactions that are open or were aborted are not shown."""
    fail_on_data_loss: bool
    skip_damage: bool
    columns: tuple[str, ...]
    tag: str | None
    key: bytes | None
    push_filters: bool
    metrics_path: str | None

    @property
    def place(self) -> str:
        """Where records come from, for people."""
        return self.endpoint or self.path or self.tier or ""


def read_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check the options of a read; raise `BadRequestError` that says what to change."""
    table = OptionTable(options, OPTIONS)
    tier = table.text("tier")
    path, endpoint = "", None
    if tier is None or table.text("path") is not None or table.text("endpoint") is not None:
        path, endpoint = read_place(table, "load")
    topics, pattern, assigned = _topics(table)
    start = _limit(table, "starting", LATEST if streaming else EARLIEST)
    end = _limit(table, "ending", LATEST)
    if streaming:
        _refuse_ends(table)
    else:
        _check_batch(start, end)
    return SourceOptions(
        path=path,
        endpoint=endpoint,
        tier=tier,
        namespace=table.text("namespace") or DEFAULT_NAMESPACE,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start=start,
        end=end,
        late_start_fails=(
            table.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "error"
        ),
        records_per_trigger=table.number("maxOffsetsPerTrigger", minimum=1),
        records_awaited=_awaited(table, streaming=streaming),
        trigger_delay_s=_duration(table.text("maxTriggerDelay") or TRIGGER_DELAY),
        records_per_partition=table.number("maxRecordsPerPartition", minimum=1),
        partitions_min=table.number("minPartitions", minimum=1) or 1,
        partition_bytes=table.number("maxPartitionBytes", minimum=1) or PARTITION_BYTES,
        committed=_is_committed(table, endpoint),
        fail_on_data_loss=table.flag("failOnDataLoss", default=True),
        skip_damage=table.choice("onDamage", ("fail", "skip")) == "skip",
        columns=_columns(table),
        tag=table.text("tag"),
        key=_key(table, streaming=streaming),
        push_filters=table.flag("pushFilters", default=False),
        metrics_path=table.text("metricsPath"),
    )


def _awaited(table: OptionTable, *, streaming: bool) -> int | None:
    fewest = table.number("minOffsetsPerTrigger", minimum=1)
    most = table.number("maxOffsetsPerTrigger", minimum=1)
    if fewest is not None and not streaming:
        raise BadRequestError("option 'minOffsetsPerTrigger' is for streams")
    if fewest is not None and most is not None and fewest > most:
        raise BadRequestError(
            f"option 'minOffsetsPerTrigger' is {fewest}, above 'maxOffsetsPerTrigger', {most}"
        )
    return fewest


def _duration(text: str) -> float:
    """Return the seconds of a duration as Spark writes it: `15m`, `30 s`, `500ms`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise BadRequestError(
            f"option 'maxTriggerDelay' is {text!r}, expected a time like 15m, 30s or 500ms"
        )
    return int(match[1]) * _UNITS_S[match[2] or "ms"]


def read_place(table: OptionTable, method: str) -> tuple[str, str | None]:
    """Return the directory or the address that the options name: one of both."""
    endpoint = table.text("endpoint")
    if endpoint is None:
        place = table.required(
            "path",
            f"the directory of the store, as {method}(path) or option('path'); a running node is "
            "named by the option 'endpoint'",
        )
        return local_path(place), None
    if table.text("path") is not None:
        raise BadRequestError("give one of 'path' and 'endpoint', not both")
    return "", check_address(endpoint)


def _is_committed(table: OptionTable, endpoint: str | None) -> bool:
    level = table.choice("isolationLevel", (READ_COMMITTED, READ_UNCOMMITTED))
    if level == READ_UNCOMMITTED and endpoint is not None:
        raise BadRequestError(
            f"a node returns committed records only: {READ_UNCOMMITTED!r} needs 'path' or 'tier'"
        )
    return level == READ_COMMITTED


def _key(table: OptionTable, *, streaming: bool) -> bytes | None:
    text = table.text("key")
    if text is not None and streaming:
        raise BadRequestError("option 'key' is for batch reads; filter a stream with where()")
    return None if text is None else text.encode("utf-8", "surrogateescape")


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    return _columns(OptionTable(options, OPTIONS))


def _topics(
    table: OptionTable,
) -> tuple[tuple[str, ...] | None, str | None, dict[str, tuple[int, ...]] | None]:
    topics = table.names("subscribe")
    pattern = table.text("subscribePattern")
    assign = table.text("assign")
    if sum(choice is not None for choice in (topics, pattern, assign)) > 1:
        raise BadRequestError("give one of 'subscribe', 'subscribePattern' and 'assign'")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadRequestError(f"option 'subscribePattern' is {pattern!r}: {error}") from error
    return topics, pattern, None if assign is None else parse_assignment(assign)


def _limit(table: OptionTable, prefix: str, default: str) -> Limit:
    by_time = table.text(f"{prefix}OffsetsByTimestamp")
    text = table.text(f"{prefix}Offsets") or default
    offsets, ids = None, {}
    if text.lower() not in (EARLIEST, LATEST):
        offsets = parse_offsets(text, f"option '{prefix}Offsets'")
        ids = Positions.parse(text, f"option '{prefix}Offsets'").ids
    return Limit(
        table.number(f"{prefix}Timestamp", minimum=0),
        None if by_time is None else parse_offsets(by_time, f"option '{prefix}OffsetsByTimestamp'"),
        offsets,
        ids,
        text.lower() if offsets is None else default,
    )


def _refuse_ends(table: OptionTable) -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if table.text(name) is not None:
            raise BadRequestError(f"option {name!r} is for batch reads; a stream has no end")


def _check_batch(start: Limit, end: Limit) -> None:
    if start.offsets is None and start.word == LATEST:
        raise BadRequestError("option 'startingOffsets' is 'latest': a batch would read nothing")
    if end.offsets is None and end.word == EARLIEST:
        raise BadRequestError("option 'endingOffsets' is 'earliest': a batch would read nothing")


def _columns(table: OptionTable) -> tuple[str, ...]:
    chosen = table.names("columns")
    if chosen is not None:
        by_name = {name.lower(): name for name in SPARK_TYPES}
        unknown = [name for name in chosen if name.lower() not in by_name]
        if unknown:
            raise BadRequestError(
                f"option 'columns': unknown column {unknown[0]!r}; the columns are {[*SPARK_TYPES]}"
            )
        return tuple(by_name[name.lower()] for name in chosen)
    return (
        *KAFKA_COLUMNS,
        "timestampType",
        *(("headers",) if table.flag("includeHeaders", default=False) else ()),
        "tags",
        *(METADATA_COLUMNS if table.flag("includeMetadata", default=False) else ()),
    )
