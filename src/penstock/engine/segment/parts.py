"""The parts of an open store, which its modules share."""

from __future__ import annotations

from msgspec import Struct

from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.log.write_manager import WriteManager
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.queue.queue_files import OpenFiles
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.engine.segment.recovery.checkpointer import Checkpointer
from penstock.engine.segment.recovery.report import RecoveryReport
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk, Lock
from penstock.platform.metrics import SegmentMetrics


class StoreParts(Struct, eq=False):
    """Everything an open store consists of."""

    disk: Disk
    clock: Clock
    metrics: SegmentMetrics
    settings: SegmentSettings
    paths: StorePaths
    sizes: FileSizes
    lock: Lock
    log: CommitLog
    index: KeyIndex
    table: ShardTable
    open_files: OpenFiles
    sums: BlockChecksums
    writer: WriteManager
    checkpointer: Checkpointer
    report: RecoveryReport

    def release(self) -> None:
        """Close all files; nothing is written."""
        self.index.close()
        self.log.close()
        self.open_files.close()
