"""A file of units that is in use stays open, though others push it out of the cache."""

from __future__ import annotations

from pathlib import Path

from penstock.engine.segment.queue.queue_files import OpenFiles, UnitFiles
from penstock.platform.local_disk import LocalDisk
from penstock.record import QueueKind, ShardId

UNIT = 20


def test_a_file_that_is_pushed_out_at_once_is_used_all_the_same(tmp_path: Path) -> None:
    none_kept = OpenFiles(LocalDisk(), 0)
    files = UnitFiles(none_kept, str(tmp_path), ShardId("t", 0), QueueKind.SIMPLE, 4 * UNIT)
    files.write(0, b"x" * UNIT * 6)
    none_kept.disk.sync_together(*files.drain_unsynced())
    assert files.read_in(files.path_of(5), 5) == b"x" * UNIT
    files.cut(5)
    assert files.read(4, 2) == b"x" * UNIT + bytes(UNIT)
    none_kept.disk.sync_together(*files.drain_unsynced())
