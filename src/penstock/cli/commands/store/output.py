"""Output of the `penstock store` commands, as tables and fields or as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from rich.text import Text

from penstock.cli.output import (
    PREVIEW_MAX,
    Cell,
    console,
    json_bytes,
    json_record,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
    size_text,
    time_text,
    value_text,
)
from penstock.engine.segment import RecoveryReport
from penstock.engine.segment.inspect import (
    FileInfo,
    Hit,
    RecordDetail,
    ShardInfo,
    StoreInfo,
    TopicInfo,
    VerifyReport,
)
from penstock.record import ShardId, StoredRecord

Names = Mapping[str, str]
"""Topic names by stored name (the topic id in a node's store)."""


def print_info(info: StoreInfo, names: Names, *, as_json: bool) -> None:
    if as_json:
        shards = [_named(shard, shard.topic, names) for shard in info.shards]
        print_json([{**msgspec.structs.asdict(info), "shards": shards}])
        return
    checkpoint, sizes = info.checkpoint, info.sizes
    print_fields(
        [
            ("store", info.path),
            ("written by", info.written_by),
            ("last stop", _last_stop(info)),
            ("log", f"positions {info.start_position} to {info.end_position}"),
            ("durable up to", checkpoint.durable_position),
            ("checkpoint at", _or_none(checkpoint.derived_position)),
            ("RocketMQ's checkpoint", _or_none(_rocketmq_checkpoint(checkpoint.rocketmq))),
            ("log file", size_text(sizes.commit_log_file_size)),
            ("index file", f"{sizes.index_slots} slots, {sizes.index_entries_max} entries"),
        ]
    )
    print_table(
        ("part", "#files", "#size"),
        ((part.part, part.files, size_text(part.size)) for part in info.parts),
    )
    print_shards(info.shards, names, as_json=False)
    for path in info.damaged:
        console().print(
            Text(printable(f"damaged: {path}; shards may be missing above"), style="red")
        )


def _or_none(value: int | str | None) -> Cell:
    return Text("(none)", style="dim") if value is None else value


def _rocketmq_checkpoint(timestamps: dict[str, int] | None) -> str | None:
    if timestamps is None:
        return None
    times = ((part, timestamps[f"{part}_timestamp_ms"]) for part in ("log", "queues", "index"))
    return ", ".join(
        f"{part} {time_text(time_ms) if time_ms else '(none)'}" for part, time_ms in times
    )


def _last_stop(info: StoreInfo) -> str:
    if info.closed:
        return "clean"
    writer = "" if info.writer_pid is None else f" (process {info.writer_pid})"
    return f"not clean: a writer has the store open{writer}, or crashed"


def _named(info: TopicInfo | ShardInfo, topic: str, names: Names) -> dict[str, object]:
    fields = msgspec.structs.asdict(info)
    return {**fields, "name": names[topic]} if topic in names else fields


def print_topics(topics: Iterable[TopicInfo], names: Names, *, as_json: bool) -> None:
    if as_json:
        print_json(_named(topic, topic.topic, names) for topic in topics)
        return
    print_table(
        ("topic", *(["name"] if names else []), "kind", "#shards", "#records"),
        (
            (
                topic.topic,
                *([names.get(topic.topic, "")] if names else []),
                *(topic.kind, topic.shards, topic.records),
            )
            for topic in topics
        ),
    )


def print_shards(shards: Iterable[ShardInfo], names: Names, *, as_json: bool) -> None:
    if as_json:
        print_json(_named(shard, shard.topic, names) for shard in shards)
        return
    print_table(
        (
            *("shard", *(["topic"] if names else []), "kind"),
            *("#earliest", "#commit", "#next", "#records", ""),
        ),
        (
            (
                shard.shard,
                *([names.get(shard.topic, "")] if names else []),
                shard.kind,
                shard.earliest,
                shard.commit,
                shard.next,
                shard.records,
                shard.damage or ("sealed" if shard.sealed else ""),
            )
            for shard in shards
        ),
    )


def print_files(files: Iterable[FileInfo], *, as_json: bool) -> None:
    if as_json:
        print_json(files)
        return
    print_table(
        ("part", "path", "#size", "modified (UTC)"),
        (
            (file.part, file.path, size_text(file.size), time_text(file.modified_ms))
            for file in files
        ),
    )


def print_values(
    shard: ShardId, records: Iterable[StoredRecord], *, raw: bool, as_json: bool
) -> None:
    if as_json:
        print_json(json_record(shard, record) for record in records)
    elif raw:
        for record in records:
            sys.stdout.buffer.write(record.value or b"")
        sys.stdout.buffer.flush()
    else:
        for record in records:
            print_line("(null)" if record.value is None else printable(record.value))


def print_detail(detail: RecordDetail, *, as_json: bool) -> None:
    if as_json:
        print_json([_json_detail(detail)])
        return
    record, entry = detail.record, detail.entry
    fields: list[tuple[str, Cell]] = [
        ("shard", detail.shard.name),
        ("offset", record.offset),
        ("key", Text("(none)", style="dim") if record.key is None else printable(record.key)),
        ("value", value_text(record.value)),
        *(("tag", tag) for tag in record.tags),
        *((f"header {name}", value_text(value)) for name, value in record.headers),
        ("timestamp", f"{record.timestamp_ms}  {time_text(record.timestamp_ms)}"),
        ("expires", time_text(record.expires_at_ms) or Text("never", style="dim")),
        ("stored", f"{record.store_timestamp_ms}  {time_text(record.store_timestamp_ms)}"),
        ("leader epoch", record.leader_epoch),
        ("file", entry.path),
        ("position", f"{entry.position} of the log, {entry.size} bytes"),
        ("version", f"{detail.version}, flag {detail.flag}, sysflag {entry.sys_flag}"),
        ("born at", detail.born_host),
        ("stored at", detail.store_host),
        ("reconsume times", detail.reconsume_times),
        ("prepared transaction offset", detail.prepared_transaction_offset),
        ("body checksum", f"{detail.body_crc:08x}"),
        (
            "in a batch",
            "yes: the fields below the epoch are the batch's" if detail.in_batch else "",
        ),
    ]
    fields += [(f"property {name}", value) for name, value in entry.properties.items()]
    print_fields(field for field in fields if field[1] != "")


def _json_detail(detail: RecordDetail) -> dict[str, object]:
    entry = detail.entry
    return {
        **json_record(detail.shard, detail.record),
        "file": entry.path,
        "position": entry.position,
        "size": entry.size,
        "version": detail.version,
        "flag": detail.flag,
        "sys_flag": entry.sys_flag,
        "queue_offset": entry.queue_offset,
        "born_timestamp_ms": detail.born_timestamp_ms,
        "born_host": detail.born_host,
        "store_host": detail.store_host,
        "reconsume_times": detail.reconsume_times,
        "prepared_transaction_offset": detail.prepared_transaction_offset,
        "body_crc": detail.body_crc,
        "in_batch": detail.in_batch,
        "properties": [
            [json_bytes(name), json_bytes(value)] for name, value in entry.properties.items()
        ],
    }


def print_hits(hits: Iterable[Hit], *, as_json: bool) -> None:
    if as_json:
        print_json(json_record(hit.shard, hit.record) for hit in hits)
        return
    print_table(
        ("shard", "#offset", "timestamp (UTC)", "key", "tags", "value"), map(_hit_row, hits)
    )


def _hit_row(hit: Hit) -> tuple[Cell, ...]:
    record = hit.record
    return (
        hit.shard.name,
        record.offset,
        time_text(record.timestamp_ms),
        printable(record.key, PREVIEW_MAX),
        printable(", ".join(record.tags), PREVIEW_MAX),
        value_text(record.value, PREVIEW_MAX),
    )


def print_verify(report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        print_json(_verify_lines(report))
        return
    counts = msgspec.structs.asdict(report.checked)
    print_table(("checked", "#number"), ((name.replace("_", " "), n) for name, n in counts.items()))
    if report.findings:
        print_table(
            ("file", "#position", "finding"),
            ((finding.path, finding.position, finding.reason) for finding in report.findings),
        )
    if report.findings_left_out:
        print_line(f"and {report.findings_left_out} more findings")
    for lost in report.lost:
        print_line(f"lost: offsets {lost.first} to {lost.end - 1} of {lost.shard}")
    tail = report.torn_tail
    if tail is not None:
        print_line(
            f"torn tail, normal after a crash: {tail.path} at {tail.position}: {tail.reason}"
        )
    for note in report.notes:
        print_line(f"not checked: {note}")
    count = len(report.findings) + report.findings_left_out
    verdict = f"{count} {'finding' if count == 1 else 'findings'}" if count else "whole"
    style = "bold red" if count else "bold green"
    console().print(
        Text(printable(f"{report.path}: {verdict}, {report.seconds:.1f} s"), style=style)
    )


def _verify_lines(report: VerifyReport) -> Iterator[dict[str, object]]:
    for finding in report.findings:
        yield {"type": "finding", **msgspec.structs.asdict(finding)}
    for lost in report.lost:
        yield {"type": "lost", **msgspec.structs.asdict(lost)}
    yield {
        "type": "summary",
        "path": report.path,
        "whole": report.is_whole,
        "findings": len(report.findings) + report.findings_left_out,
        "checked": report.checked,
        "torn_tail": report.torn_tail,
        "notes": report.notes,
        "seconds": report.seconds,
    }


def print_rebuild(directory: str, report: RecoveryReport, *, as_json: bool) -> None:
    if as_json:
        print_json([report])
        return
    fields: list[tuple[str, Cell]] = [
        ("store", directory),
        ("rebuilt", ", ".join(report.rebuilt) or "nothing: the log holds no records"),
        ("records read", report.records_scanned),
        ("bytes read", size_text(report.bytes_scanned)),
        ("log ends at", report.end_position),
        ("last stop", "clean" if report.clean_stop else "not clean"),
        ("time", f"{report.seconds:.1f} s"),
    ]
    if report.bytes_cut:
        fields.append(("cut", f"{report.bytes_cut} bytes of torn tail: {report.cut_reason}"))
    fields += [
        ("damaged", f"{place.path} at {place.position}: {place.reason}") for place in report.damaged
    ]
    print_fields(fields)
