"""`Syncs`: puts copies on the device where their topics ask for that, from a thread of its own.

All shards of an engine that asked since the last sync share the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.contract import ReplicatedEngine
from penstock.engine.replication.runtime.batch_worker import BatchWorker
from penstock.errors import StoreError
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


Batch = tuple[list[str], list[ReplicatedEngine]]


class Syncs(BatchWorker[Batch]):
    def __init__(self, on_synced: Callable[[Sequence[str]], None]) -> None:
        super().__init__("penstock-replica-sync")
        self._on_synced: Final = on_synced
        self._engines: Final[dict[str, ReplicatedEngine]] = {}
        self._requested: dict[str, None] = {}

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

    def _next_batch(self) -> Batch | None:
        if not self._requested:
            return None
        shards, self._requested = list(self._requested), {}
        engines = {id(e): e for s in shards if (e := self._engines.get(s)) is not None}
        return shards, list(engines.values())

    def _run_batch(self, batch: Batch) -> None:
        shards, engines = batch
        try:
            for engine in engines:
                engine.sync()
        except StoreError as error:
            _log.error("replica_not_synced", reason=str(error))
            return
        self._on_synced(shards)
