"""Checks the index of keys inside batches against its own checksums.

It is filled by a dispatcher that may lag, so it is not compared with the log: what it has not
reached is read, and what it has is guarded by the mark and the page sums that are checked here.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

import msgspec

from penstock.codec.format import INDEX_HEADER
from penstock.codec.select import core
from penstock.engine.segment.dispatch.positions import DispatchPositions
from penstock.engine.segment.index.batch_key_index import BATCH_KEYS, MARK
from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.index_file import IndexMark
from penstock.engine.segment.inspect.report import Findings
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.engine.segment.recovery.checksummed_file import read_whole, unframe
from penstock.errors import CorruptionError, NotSupportedError


class BatchKeyCheck:
    def __init__(self, snapshot: Snapshot, findings: Findings) -> None:
        self._disk: Final = snapshot.disk
        self._paths: Final = snapshot.paths
        self._sizes: Final = snapshot.sizes
        self._log_start: Final = snapshot.files.start
        self._closed: Final = not snapshot.unclosed
        self._findings: Final = findings
        self._directory: Final = f"{snapshot.paths.own}/{BATCH_KEYS}"

    def run(self) -> None:
        path = f"{self._directory}/mark"
        data = read_whole(self._disk, path)
        if data is None:
            return
        try:
            DispatchPositions(self._disk, f"{self._directory}/{BATCH_KEYS}").load()
        except (CorruptionError, NotSupportedError) as error:
            self._findings.add_error(self._directory, error)
        try:
            _, body = unframe(MARK, path, data)
            mark = msgspec.msgpack.decode(body, type=IndexMark)
        except (CorruptionError, NotSupportedError) as error:
            self._findings.add_error(path, error)
            return
        if self._closed:
            for name, end in mark.older:
                # One that only speaks of log files which are gone may have gone with them.
                if end >= self._log_start:
                    self._check_sealed(name)
            if mark.name:
                self._check_newest(mark)

    def _check_sealed(self, name: str) -> None:
        path = f"{self._paths.batch_index}/{name}"
        sums = BlockChecksums(self._disk, f"{self._paths.sums}/{BATCH_KEYS}")
        try:
            checksums = sums.load(f"index/{name}")
        except (CorruptionError, NotSupportedError) as error:
            self._findings.add_error(path, error)
            return
        if checksums is None:
            self._findings.add(path, 0, "its page checksums are missing")
            return
        with closing(self._disk.open(path, writable=False)) as file:
            for page in checksums.damaged_pages(file):
                self._findings.add(path, page * 4096, "page checksum does not match")

    def _check_newest(self, mark: IndexMark) -> None:
        path = f"{self._paths.batch_index}/{mark.name}"
        data = read_whole(self._disk, path)
        if data is None or len(data) != self._sizes.index_file_size:
            self._findings.add(path, 0, "this index file is missing or has another size")
            return
        expected = bytearray(data)
        expected[: INDEX_HEADER.size] = mark.header
        count = max(1, int(INDEX_HEADER.unpack(mark.header)[-1]))
        core.index_relink(expected, self._sizes.index_slots, self._sizes.index_entries_max, count)
        if bytes(expected) != data or not mark.covers(data, self._sizes):
            self._findings.add(path, 0, "the entries, slots or chains are not what was written")
