"""A full check of a store: the log, and everything that follows from it. Nothing is changed."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.codec.deleted_ranges import DeletedRanges
from penstock.engine.segment.inspect.batch_key_check import BatchKeyCheck
from penstock.engine.segment.inspect.changed_shards import changed_shards, shard_of
from penstock.engine.segment.inspect.index_check import IndexCheck
from penstock.engine.segment.inspect.log_check import LogCheck
from penstock.engine.segment.inspect.queue_check import QueueCheck
from penstock.engine.segment.inspect.report import DamagedSpans, Findings, Progress, VerifyReport
from penstock.engine.segment.inspect.state_check import StateCheck
from penstock.engine.segment.readonly.snapshot import Snapshot, SnapshotSource
from penstock.engine.segment.recovery.store_sizes import properties_problems
from penstock.engine.segment.settings import SegmentSettings
from penstock.errors import CorruptionError, StoreError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk

_CONFIRMATIONS: Final = 2
"""How often findings in a store that is in use must be found again before they are reported."""
_PUBLISH_S: Final = 0.6
"""By then a writer has published what it was about to change."""


def verify(
    path: str,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    settings: SegmentSettings | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check the store in a directory, ours or RocketMQ's, also beside a running writer.

    Checked are every record (checksums, identity, position, groups), that queues and index agree
    with the log in both directions, page checksums, states, times and checkpoints. Beside a writer,
    what it published is checked, what it appends meanwhile is left out, and only what is found
    again in a second and third check is reported: a concurrent writer is not damage. Nor are files
    of a shard that it cut or deleted meanwhile; the report notes which.
    """
    clock = clock or SystemClock()
    started = clock.monotonic()
    source = SnapshotSource(path, settings or SegmentSettings(), disk or LocalDisk(), clock)
    snapshot, problems = source.capture_damaged()
    findings = _check(snapshot, problems, progress)
    for left in range(_CONFIRMATIONS, -1, -1):
        if not (findings.entries and snapshot.unclosed):
            break
        # A writer may have been in the midst of changing what was looked at. Damage stays.
        if isinstance(clock, SystemClock):
            clock.wait(threading.Event(), _PUBLISH_S)
        before, (snapshot, problems) = snapshot, source.capture_damaged()
        findings.leave_out(changed_shards(before, snapshot))
        if findings.entries and left:
            places = {(finding.path, finding.position) for finding in findings.entries}
            findings = _check(snapshot, problems, progress)
            findings.keep(places)
    return VerifyReport(
        path=snapshot.paths.root,
        checked=findings.checked,
        findings=findings.entries,
        findings_left_out=findings.left_out,
        lost=findings.lost,
        notes=findings.notes,
        torn_tail=findings.torn_tail,
        seconds=clock.monotonic() - started,
    )


def _check(snapshot: Snapshot, problems: list[StoreError], progress: Progress | None) -> Findings:
    findings = Findings(progress, partial(shard_of, snapshot.paths))
    for problem in problems:
        findings.add_error(snapshot.paths.commit_log, problem)
    for path, reason in properties_problems(snapshot.disk, snapshot.paths):
        findings.add(path, 0, reason)
    damaged = DamagedSpans()
    try:
        states = StateCheck(snapshot, findings)
        queues = QueueCheck(snapshot, damaged, findings)
        index = IndexCheck(snapshot, damaged, findings)
        log = LogCheck(snapshot, queues, index, damaged, findings)
        states.run(log.run(), log.newest_ms)
        _report_unchecked(snapshot, findings)
        _add_lost(snapshot, findings)
        BatchKeyCheck(snapshot, findings).run()
    except FileNotFoundError as error:
        findings.add(str(error.filename), 0, "this file has gone while the store was checked")
    return findings


def _report_unchecked(snapshot: Snapshot, findings: Findings) -> None:
    """Say which bytes of RocketMQ's files nothing vouches for."""
    paths = snapshot.paths
    if not snapshot.files.strict:
        findings.add_note(
            f"{paths.commit_log}: of records without a checksum of their own, fields that neither "
            "queue nor index repeats (flags, hosts, producer's time, properties)"
        )
    if not snapshot.is_own:
        findings.add_note(f"{paths.consume_queue}: what follows the last unit of a queue")
    if snapshot.disk.exists(f"{paths.root}/consumequeue_ext"):
        findings.add_note(f"{paths.root}/consumequeue_ext: filter bitmaps, which have no checksum")


def _add_lost(snapshot: Snapshot, findings: Findings) -> None:
    """Add the offsets that states know to be lost, and of which no unit is left that says so."""
    for shard, log in sorted(snapshot.shards.items()):
        with suppress(CorruptionError):
            deleted = DeletedRanges.from_list(
                (lost_range.first, lost_range.end)
                for lost_range in findings.lost
                if lost_range.shard == shard.name
            )
            for first, end in log.state.lost_between(log.earliest, log.commit):
                offset = first
                for start, stop in deleted.overlapping(first, end):
                    if offset < start:
                        findings.lose(shard.name, offset, start)
                    offset = max(offset, stop)
                if offset < end:
                    findings.lose(shard.name, offset, end)
