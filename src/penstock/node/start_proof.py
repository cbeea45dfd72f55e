"""Whether a node starts with the logs that it had when it ended.

A replica that lost records must not count as in sync, and a node cannot tell by its logs alone:
a tail that a power cut took leaves no trace. Two files of the node's directory tell:

    clean-stop   written after the last sync of a clean stop
    session      written once the node is registered and its engines are open: names the boot of
                 the kernel. Without another boot everything that the process wrote is in the page
                 cache, however the process ended

Both name the cluster, the store and the broker epoch under which the node ran; the metadata compare
the epoch with the one that they know. A start removes both before it opens an engine, and writes
`session` when it is complete: a start that was cut short proves nothing, because its recovery may
have removed what was damaged.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from msgspec import MsgspecError, Struct, json

from penstock.engine.segment import RecoveryReport
from penstock.meta import StartProof
from penstock.node.directory import CLEAN_STOP, SESSION, NodeDirectory
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)
_SIZE_MAX: Final = 1_024


class RunRecord(Struct, frozen=True):
    """What a node writes of one run."""

    cluster_id: str
    store_id: str
    broker_epoch: int
    boot_id: str


class StartFiles:
    def __init__(self, directory: NodeDirectory, clock: Clock) -> None:
        self._directory: Final = directory
        self._clock: Final = clock

    def consume(self, store_id: str) -> StartProof:
        """Return what the files prove, and remove them durably."""
        clean, session = self._read(CLEAN_STOP), self._read(SESSION)
        self.void()
        if clean is not None and clean.store_id == store_id:
            return _proof(clean, is_proven=True)
        if session is not None and session.store_id == store_id:
            is_same_boot = session.boot_id == self._clock.boot_id()
            if not is_same_boot:
                _log.warning("machine_restarted", path=self._directory.path)
            return _proof(session, is_proven=is_same_boot)
        return StartProof()

    def void(self) -> None:
        """Remove both files durably: the next start proves nothing."""
        disk = self._directory.disk
        present = [
            path for path in map(self._directory.join, (CLEAN_STOP, SESSION)) if disk.exists(path)
        ]
        for path in present:
            disk.remove(path)
        if present:
            disk.sync_directory(self._directory.path)

    def write_session(self, cluster_id: str, store_id: str, broker_epoch: int) -> None:
        self._write(SESSION, cluster_id, store_id, broker_epoch)

    def write_clean_stop(self, cluster_id: str, store_id: str, broker_epoch: int) -> None:
        """All engines are closed, and what they wrote is on the device."""
        self._write(CLEAN_STOP, cluster_id, store_id, broker_epoch)

    def _write(self, name: str, cluster_id: str, store_id: str, broker_epoch: int) -> None:
        record = RunRecord(cluster_id, store_id, broker_epoch, self._clock.boot_id())
        body = json.encode(record)
        line = b"%s %08x\n" % (body, crc32(body))
        self._directory.disk.replace(self._directory.join(name), line)

    def _read(self, name: str) -> RunRecord | None:
        """Return what a file says; None when there is none, or it is damaged."""
        path = self._directory.join(name)
        if not self._directory.disk.exists(path):
            return None
        file = self._directory.disk.open(path, writable=False)
        try:
            line = file.read_at(0, _SIZE_MAX)
        finally:
            file.close()
        body, _, checksum = line.rstrip(b"\n").rpartition(b" ")
        try:
            if int(checksum, 16) == crc32(body):
                return json.decode(body, type=RunRecord)
        except (ValueError, MsgspecError):
            pass
        _log.warning("start_file_damaged", path=path)
        return None


def _proof(record: RunRecord, *, is_proven: bool) -> StartProof:
    return StartProof(
        is_proven=is_proven, previous_epoch=record.broker_epoch, cluster_id=record.cluster_id
    )


def lacks_records(report: RecoveryReport) -> str:
    """Return what recovery found that the end of a process alone cannot have done; empty: nothing.
    A record at the end that was not complete when the process ended was not acknowledged."""
    if report.records_behind_cut:
        return f"{report.records_behind_cut} records after a gap were removed"
    if report.damaged:
        return f"{len(report.damaged)} places of the log are damaged"
    return ""
