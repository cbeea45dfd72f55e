"""Makes a store usable again whose log lacks bytes that were on the device.

The store is refused until the operator decides. `repair` says what is gone; asked to apply that, it
gives the log its shape again and opens the store once, which notes the lost records. No whole
record is changed. A missing part becomes a *hole*: for RocketMQ a blank record, for Penstock a mark
that records were here, so that reads of them raise, `verify` names them, and no offset is given out
twice. What was left of a record in front of a hole is kept in the hole, and in a file of its own.

Every step can be repeated: after a crash the same command finishes what is left to do.
"""

from __future__ import annotations

import zlib
from contextlib import closing
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.codec.format import BLANK, HOLE, HOLE_MARK, MAGIC_BLANK
from penstock.engine.segment.index.index_file import IndexMark
from penstock.engine.segment.inspect.repair_plan import (
    Action,
    LostRecords,
    RepairPlan,
    RepairStep,
    plan_repair,
)
from penstock.engine.segment.log.disk_errors import opening_errors
from penstock.engine.segment.open import lock_store
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.readonly.snapshot import Snapshot, SnapshotSource
from penstock.engine.segment.recovery.checkpoint import (
    DerivedPoint,
    DurablePoint,
    known_until,
    write_derived,
)
from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.engine.segment.recovery.report import DamagedPlace, Progress
from penstock.engine.segment.recovery.store_sizes import check_is_store
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk, File
from penstock.platform.local_disk import LocalDisk

_COPIED: Final = ("durable", "checkpoint")
"""Small files of `penstock/` that are copied beside the saved bytes."""


class RepairReport(Struct):
    """What a repair found, and would do or did."""

    path: str
    applied: bool
    steps: list[RepairStep]
    lost: list[LostRecords]
    unaccounted_size: int
    unreadable: list[str]
    backup: str
    """The directory that the bytes which a repair takes from a file are, or would be, saved in."""
    damaged: list[DamagedPlace]
    """What opening the store reported, after the repair."""

    @property
    def is_needed(self) -> bool:
        return bool(self.steps)


def repair(
    path: str,
    *,
    apply: bool = False,
    disk: Disk | None = None,
    clock: Clock | None = None,
    settings: SegmentSettings | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Say what is gone from the log of the store in a directory; with `apply`, let the store go on
    without it. Raises `LockedError` while another process has the store open."""
    disk, clock = disk or LocalDisk(), clock or SystemClock()
    settings = settings or SegmentSettings(background=False)
    paths = StorePaths(path, settings)
    with opening_errors(paths.root):
        check_is_store(disk, paths)
        lock = lock_store(disk, paths, settings, exists=True, check=False)
        try:
            snapshot, _ = SnapshotSource(path, settings, disk, clock).capture_damaged()
            plan = plan_repair(snapshot)
            report = _report(paths, plan, applied=apply)
            if apply and plan.steps:
                _save(disk, paths, snapshot.files.file_size, plan)
                _ask_for_rebuild(disk, paths, snapshot, plan)
                for step in plan.steps:
                    _apply(disk, paths, step, snapshot.files.file_size)
        finally:
            lock.release()
    if apply and plan.steps:
        with SegmentStore.open(path, settings, disk=disk, clock=clock, progress=progress) as store:
            report.damaged = store.report.damaged
    return report


def _report(paths: StorePaths, plan: RepairPlan, *, applied: bool) -> RepairReport:
    return RepairReport(
        path=paths.root,
        applied=applied,
        steps=plan.steps,
        lost=plan.lost,
        unaccounted_size=plan.unaccounted_size,
        unreadable=plan.unreadable,
        backup=_backup(paths),
        damaged=[],
    )


def _backup(paths: StorePaths) -> str:
    return f"{paths.own}/repair"


def _saved_path(paths: StorePaths, step: RepairStep) -> str:
    return f"{_backup(paths)}/{step.base:020d}.{step.at}"


def _save(disk: Disk, paths: StorePaths, file_size: int, plan: RepairPlan) -> None:
    """Save what is going to be overwritten or cut off, before anything is. What an earlier run
    has saved stays: it saw the files as they were."""
    disk.make_directory(_backup(paths))
    for name in _COPIED:
        data = read_whole(disk, f"{paths.own}/{name}")
        if data is not None and not disk.exists(f"{_backup(paths)}/{name}"):
            disk.replace(f"{_backup(paths)}/{name}", data, durable=True)
    for step in plan.steps:
        if step.action in (Action.HOLE, Action.BLANK, Action.SHORTEN):
            path = _saved_path(paths, step)
            if not disk.exists(path):
                with closing(disk.open(step.path, writable=False)) as file:
                    position = file_size if step.action is Action.SHORTEN else step.at
                    disk.replace(
                        path, file.read_at(position, max(0, file.size() - position)), durable=True
                    )
    disk.sync_directory(_backup(paths))


def _ask_for_rebuild(disk: Disk, paths: StorePaths, snapshot: Snapshot, plan: RepairPlan) -> None:
    """Say that everything derived is to be built again at the opening, before the log can be
    opened at all: a checkpoint inside a hole would let the next records be written there. When
    queues account for all that is missing, no other record can be."""
    durable = DurablePoint(disk, paths.durable)
    with closing(durable):
        durable.reset(plan.durable, durable.store_timestamp_ms)
    point = snapshot.point
    known = 0 if point is None else known_until(point)
    if not plan.unaccounted_size and not plan.unreadable:
        known = max(known, plan.durable)
    if point is None:
        point = DerivedPoint(-1, clean=False, index=IndexMark("", b"", 0), store_timestamp_ms=0)
    new = replace(point, position=-1, clean=False, ends_total=None, known=known)
    write_derived(disk, paths.derived, new)


def _apply(disk: Disk, paths: StorePaths, step: RepairStep, file_size: int) -> None:
    if step.action is Action.REWRITE:
        return  # opening writes it
    disk.make_directory(paths.commit_log)
    with closing(disk.open(step.path, create=True)) as file:
        if step.action is Action.BLANK and file_size - step.at >= BLANK.size:
            file.write_at(step.at, BLANK.pack(file_size - step.at, MAGIC_BLANK))
        if step.action is Action.HOLE:
            saved = read_whole(disk, _saved_path(paths, step)) or b""
            _dig(file, step.at, file_size, saved)
        if step.action is Action.CREATE:
            _dig(file, 0, file_size, b"")
        file.truncate(file_size)
        file.sync()
    disk.sync_directory(paths.commit_log)


def _dig(file: File, position: int, file_size: int, saved: bytes) -> None:
    """Let a hole begin at a byte of a file, with what was left of the record there."""
    saved = saved[: file_size - position - HOLE.size]
    if saved[BLANK.size : BLANK.size + len(HOLE_MARK)] == HOLE_MARK or not saved.strip(b"\0"):
        saved = b""
    head = HOLE.pack(file_size - position, MAGIC_BLANK, HOLE_MARK, len(saved), zlib.crc32(saved))
    file.write_at(position, head + saved)
