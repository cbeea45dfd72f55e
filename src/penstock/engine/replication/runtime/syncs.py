"""`Syncs`: puts copies on the device where their topics ask for that, from a thread of its own.

All shards of an engine that asked since the last sync share the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.contract import ReplicatedEngine
from penstock.errors import StoreError
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


class Syncs:
    def __init__(self, on_synced: Callable[[Sequence[str]], None]) -> None:
        self._on_synced: Final = on_synced
        self._changed: Final = threading.Condition()
        self._engines: Final[dict[str, ReplicatedEngine]] = {}
        self._requested: dict[str, None] = {}
        self._is_closed = False
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-replica-sync", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def add_shard(self, shard: str, engine: ReplicatedEngine) -> None:
        with self._changed:
            self._engines[shard] = engine

    def remove_shard(self, shard: str) -> None:
        with self._changed:
            self._engines.pop(shard, None)
            self._requested.pop(shard, None)

    def request(self, shard: str) -> None:
        with self._changed:
            self._requested[shard] = None
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._requested or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
                shards, self._requested = list(self._requested), {}
                engines = {id(e): e for s in shards if (e := self._engines.get(s)) is not None}
            try:
                for engine in engines.values():
                    engine.sync()
            except StoreError as error:
                _log.error("replica_not_synced", reason=str(error))
                continue
            self._on_synced(shards)
