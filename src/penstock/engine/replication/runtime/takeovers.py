"""`Takeovers`: what a node has to load before it serves shards that it leads newly.

A thread of its own calls `prepare` with all shards that came since the last call, and reports them
as ready. While that fails (no leader of the metadata) it tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from penstock.engine.replication.runtime.batch_worker import BatchWorker
from penstock.errors import StoreError
from penstock.platform.log import get_logger

RETRY_S: Final = 0.2

_log: Final = get_logger(__name__)


class Takeovers(BatchWorker[dict[str, int]]):
    def __init__(
        self,
        prepare: Callable[[Collection[str]], None],
        on_ready: Callable[[Mapping[str, int]], None],
    ) -> None:
        super().__init__("penstock-takeover")
        self._prepare: Final = prepare
        self._on_ready: Final = on_ready
        self._shards: dict[str, int] = {}
        """The leader epochs of the shards to prepare."""

    def add(self, shard: str, epoch: int) -> None:
        with self._changed:
            self._shards[shard] = epoch
            self._changed.notify()

    def remove(self, shard: str) -> None:
        with self._changed:
            self._shards.pop(shard, None)

    def _next_batch(self) -> dict[str, int] | None:
        return dict(self._shards) or None

    def _run_batch(self, batch: dict[str, int]) -> None:
        try:
            self._prepare(batch.keys())
        except StoreError as error:
            _log.warning("takeover_delayed", shards=len(batch), reason=str(error))
            with self._changed:
                self._changed.wait(RETRY_S)
            return
        with self._changed:
            for shard, epoch in batch.items():
                if self._shards.get(shard) == epoch:
                    del self._shards[shard]
        self._on_ready(batch)
