"""`Takeovers`: what a node has to load before it serves shards that it leads newly.

A thread of its own calls `prepare` with all shards that came since the last call, and reports them
as ready. While that fails (no leader of the metadata) it tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from penstock.errors import StoreError
from penstock.platform.log import get_logger

RETRY_S: Final = 0.2

_log: Final = get_logger(__name__)


class Takeovers:
    def __init__(
        self,
        prepare: Callable[[Collection[str]], None],
        on_ready: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._prepare: Final = prepare
        self._on_ready: Final = on_ready
        self._changed: Final = threading.Condition()
        self._shards: dict[str, int] = {}
        """The leader epochs of the shards to prepare."""
        self._is_closed = False
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-takeover", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def add(self, shard: str, epoch: int) -> None:
        with self._changed:
            self._shards[shard] = epoch
            self._changed.notify()

    def remove(self, shard: str) -> None:
        with self._changed:
            self._shards.pop(shard, None)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._shards or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
                shards = dict(self._shards)
            try:
                self._prepare(shards.keys())
            except StoreError as error:
                _log.warning("takeover_delayed", shards=len(shards), reason=str(error))
                with self._changed:
                    self._changed.wait(RETRY_S)
                continue
            with self._changed:
                for shard, epoch in shards.items():
                    if self._shards.get(shard) == epoch:
                        del self._shards[shard]
            self._on_ready(shards)
