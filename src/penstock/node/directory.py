"""The files of a node's directory that the node itself writes: its lock, ids, and last start.

DATA/penstock.lock   held while the node runs
DATA/meta            the metadata log (RocksDB)
DATA/segment         the segment engine: commit log, queues, indexes
DATA/rocksdb         the RocksDB engine
DATA/plugins         a directory for each engine of another package
DATA/tier            flat files of topics with tiering, unless they are elsewhere
DATA/tier-url        the address of the node's own tier, for readers of the directory
DATA/tier-meta       the metadata store of the tiers (RocksDB)
DATA/tier-cache      cached parts of tiers, if the settings say so
DATA/offsets         cached commits (RocksDB)
DATA/store-id        the id of the directory, for the other nodes of a cluster
DATA/engines         ids of the engine directories: see `engine.engine_identity`
DATA/clock           the last trusted time: see `clock_guard`
DATA/quarantine      shards that the metadata do not name: see `engine.routing.quarantine`
DATA/session         which run of which boot the engines are from: see `start_proof`
DATA/clean-stop      the last stop was complete: see `start_proof`
DATA/reconciled      the revision of the metadata that the engines agreed with at the last start
"""

from __future__ import annotations

import os
from typing import Final

from penstock.engine.engine_identity import KNOWN_ENGINES
from penstock.engine.routing.quarantine import QUARANTINE
from penstock.engine.segment import opening_errors
from penstock.errors import SetupError
from penstock.meta import ULID_RANDOM_SIZE, make_ulid
from penstock.platform.clock import Clock
from penstock.platform.clock_guard import CLOCK_FILE
from penstock.platform.data_directory import LOCK, lock_directory
from penstock.platform.disk import Disk, Lock
from penstock.platform.log import get_logger
from penstock.tiered import ATTACHING, TIER_URL

SESSION: Final = "session"
CLEAN_STOP: Final = "clean-stop"
_RECONCILED: Final = "reconciled"
_STORE_ID: Final = "store-id"
_NEW_STORE_ID: Final = "store-id.new"
"""Chosen, and perhaps not registered yet."""
_NAMES: Final = frozenset(
    {
        LOCK,
        CLOCK_FILE,
        _RECONCILED,
        QUARANTINE,
        SESSION,
        CLEAN_STOP,
        _STORE_ID,
        _NEW_STORE_ID,
        KNOWN_ENGINES,
        "meta",
        "segment",
        "rocksdb",
        "plugins",
        "offsets",
        "tier",
        "tier-meta",
        "tier-cache",
        TIER_URL,
    }
)

_log: Final = get_logger(__name__)


class NodeDirectory:
    def __init__(self, path: str, disk: Disk) -> None:
        self.path: Final = path
        self.disk: Final = disk

    def join(self, name: str) -> str:
        return f"{self.path}/{name}"

    def lock(self) -> Lock:
        """Lock the directory, created when there is none; the errors of `lock_directory`."""
        lock = lock_directory(self.disk, self.path, _NAMES)
        if self.disk.exists(self.join(ATTACHING)):
            lock.release()
            raise SetupError(
                f"{self.path} holds half of a tier: `penstock tier attach` was cut short; repeat it"
            )
        return lock

    def choose_store_id(self, clock: Clock) -> str:
        """Return the id of this directory. A new one is stored before it is announced: after a
        crash the same directory must not appear as another one, which has lost its records."""
        with opening_errors(self.path):
            chosen = self.store_id or self._read(_NEW_STORE_ID)
            if not chosen:
                chosen = draw_id(clock)
                self.disk.replace(self.join(_NEW_STORE_ID), f"{chosen}\n".encode())
            return chosen

    @property
    def store_id(self) -> str:
        """The id that this node has registered; empty: none yet."""
        return self._read(_STORE_ID)

    def write_store_id(self, store_id: str) -> None:
        """It is registered: from now on this node need not wait for that before it serves."""
        if self.store_id != store_id:
            self.disk.replace(self.join(_STORE_ID), f"{store_id}\n".encode())
            self.disk.remove(self.join(_NEW_STORE_ID))

    @property
    def reconciled_revision(self) -> int:
        """The revision of the last start, or 0, which reconciles more than is needed."""
        text = self._read(_RECONCILED)
        return int(text) if text.isdigit() else 0

    def write_reconciled(self, revision: int) -> None:
        try:
            self.disk.replace(self.join(_RECONCILED), b"%d\n" % revision)
        except OSError as error:
            # A full disk, perhaps: the next start does again what this one did.
            _log.warning("start_not_noted", path=self.path, reason=str(error))

    def _read(self, name: str) -> str:
        """Return what a small file of this directory says; empty when there is none."""
        path = self.join(name)
        if not self.disk.exists(path):
            return ""
        file = self.disk.open(path, writable=False)
        try:
            return file.read_at(0, 32).decode("ascii", "replace").strip()
        finally:
            file.close()


def draw_id(clock: Clock) -> str:
    return make_ulid(clock.now_ms(), os.urandom(ULID_RANDOM_SIZE))
