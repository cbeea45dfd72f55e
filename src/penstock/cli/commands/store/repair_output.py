"""Output of `penstock store repair`, as tables or as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from rich.text import Text

from penstock.cli.output import console, print_json, print_line, print_table, printable, size_text
from penstock.engine.segment.inspect import RepairReport

Names = Mapping[str, str]
"""Topic names by stored name (the topic id in a node's store)."""


def print_repair(report: RepairReport, names: Names, *, as_json: bool) -> None:
    if as_json:
        print_json(_lines(report, names))
        return
    if not report.is_needed:
        console().print(Text(f"{printable(report.path)}: nothing to repair", style="bold green"))
        return
    print_table(
        ("file", "problem", "done" if report.applied else "to be done"),
        ((step.path, step.reason, step.action.value) for step in report.steps),
    )
    if report.lost:
        print_table(
            ("lost of shard", *(["topic"] if names else []), "offsets", "#records", "#bytes"),
            (
                (
                    loss.shard,
                    *([names.get(loss.topic, "")] if names else []),
                    f"{loss.first} to {loss.end - 1}",
                    loss.records,
                    loss.size,
                )
                for loss in report.lost
            ),
        )
    _print_rest(report)


def _print_rest(report: RepairReport) -> None:
    if report.unaccounted_size:
        print_line(
            f"{size_text(report.unaccounted_size)} more are missing without a queue entry: records "
            "of deleted shards, or the last records before a crash"
        )
    for shard in report.unreadable:
        print_line(f"the queue of {shard} cannot be read: its losses show after a rebuild")
    for place in report.damaged:
        print_line(f"found at open: {place.path} at {place.position}: {place.reason}")
    records = sum(loss.records for loss in report.lost if not loss.is_control)
    if report.applied:
        text = f"repaired, {records} records are lost; saved bytes are in {report.backup}"
    else:
        text = f"{records} records would be lost; nothing was changed (apply with --yes)"
    style = "bold red" if records else "bold yellow"
    console().print(Text(printable(f"{report.path}: {text}"), style=style))


def _lines(report: RepairReport, names: Names) -> Iterator[dict[str, object]]:
    for step in report.steps:
        yield {"type": "file", **msgspec.structs.asdict(step), "action": step.action.value}
    for lost in report.lost:
        name = {"name": names[lost.topic]} if lost.topic in names else {}
        yield {"type": "lost", **msgspec.structs.asdict(lost), **name}
    yield {
        "type": "summary",
        "path": report.path,
        "needed": report.is_needed,
        "applied": report.applied and report.is_needed,
        "files": len(report.steps),
        "records": sum(loss.records for loss in report.lost if not loss.is_control),
        "bytes": sum(loss.size for loss in report.lost),
        "unaccounted_bytes": report.unaccounted_size,
        "unreadable_queues": report.unreadable,
        "backup": report.backup,
        "damaged": report.damaged,
    }
