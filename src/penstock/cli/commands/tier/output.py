"""Output of the `penstock tier` commands, as tables and fields or as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cli.output import (
    print_fields,
    print_json,
    print_line,
    print_table,
    size_text,
    time_text,
)
from penstock.tiered.admin import (
    GarbageReport,
    RepairReport,
    Restored,
    ScrubReport,
    TierObject,
    TierShard,
)


def print_status(shards: Iterable[TierShard], *, as_json: bool) -> None:
    if as_json:
        print_json(shards)
        return
    print_table(
        ("shard", "#start", "#end", "#segments", "#chunks", "#size", "#epoch", "state"),
        (
            (
                shard.shard,
                shard.start_offset,
                shard.end_offset,
                shard.segments,
                shard.chunks,
                size_text(shard.size),
                shard.epoch,
                "destroyed" if shard.destroyed else "",
            )
            for shard in shards
        ),
    )


def print_objects(objects: Iterable[TierObject], *, as_json: bool) -> None:
    if as_json:
        print_json(objects)
        return
    print_table(
        ("shard", "chunk", "#first", "#end", "#size", "oldest", "youngest"),
        (
            (
                chunk.shard,
                chunk.name,
                chunk.first_offset,
                chunk.end_offset,
                size_text(chunk.size),
                time_text(chunk.min_ms),
                time_text(chunk.max_ms),
            )
            for chunk in objects
        ),
    )


def print_verify(report: ScrubReport, *, as_json: bool) -> None:
    if as_json:
        print_json([report])
        return
    print_line(
        f"{report.shards} shards, {report.chunks} chunks, {report.records} records, "
        f"{size_text(report.size)}"
    )
    for sentence in report.damage:
        print_line(sentence)


def print_garbage(report: GarbageReport, *, as_json: bool) -> None:
    if as_json:
        print_json([report])
        return
    print_fields(
        (
            ("deleted", report.deleted),
            ("bytes freed", size_text(report.deleted_size)),
            ("kept, in grace period", report.waiting),
            ("unfinished parts removed", report.leftovers),
            ("foreign objects", ", ".join(report.foreign)),
        )
    )


def print_repair(report: RepairReport, *, as_json: bool) -> None:
    if as_json:
        print_json([report])
        return
    print_line(f"{report.shards} shards, {report.chunks} chunks, {len(report.repairs)} damaged")
    if report.repairs:
        print_table(
            ("object", "#first", "#end", "state", "#sound", "#older", "#in log", "#lost", "done"),
            (
                (
                    repair.object_name,
                    repair.first_offset,
                    repair.end_offset,
                    "missing" if repair.is_missing else "damaged",
                    repair.sound,
                    repair.from_generation,
                    repair.from_log,
                    repair.lost_count,
                    "yes" if repair.applied else "no",
                )
                for repair in report.repairs
            ),
        )
    for repair in report.repairs:
        for first, end in repair.lost:
            print_line(f"lost: {repair.shard} offsets {first} to {end - 1}")
    for sentence in report.unreadable:
        print_line(sentence)


def print_restored(result: Restored, *, as_json: bool) -> None:
    if as_json:
        print_json([result])
        return
    print_table(
        ("shard", "topic", "#start", "#next offset"),
        (
            (shard.shard, shard.topic, shard.start_offset, shard.next_offset)
            for shard in result.shards
        ),
    )
    catalogue = time_text(result.catalogue_ms) if result.catalogue_ms else "(none: names from ids)"
    print_fields(
        (
            ("topics", result.topics),
            ("groups", result.groups),
            ("offsets moved back to the end", result.offsets_moved_back),
            ("catalogue of", catalogue),
            ("cluster", result.cluster_id),
            ("restored from cluster", result.restored_from),
        )
    )
