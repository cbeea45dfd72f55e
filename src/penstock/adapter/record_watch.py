"""`RecordWatch`: whether one of several partitions has a record at or after an offset.

It calls back after each write to one of them, until it is closed; the reader then looks again. A
shard that another node leads is written to without a word to this one: its reader looks again after
`pause_s` in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.append_notifications import AppendSubscription
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.record import Offset

PAUSE_S: Final = 30.0
ELSEWHERE_PAUSE_S: Final = 1.0


class RecordPositions:
    """Offsets in shards, and whether there is something to read from there on."""

    def __init__(self, handler: StorageEngineHandler, positions: Mapping[str, Offset]) -> None:
        """`wanted` has offsets by shard name. Raises `UnknownShardError`."""
        self._handler: Final = handler
        self._entries: Final[dict[ShardEntry, Offset]] = {
            handler.find(name): offset for name, offset in positions.items()
        }

    @property
    def shards(self) -> list[str]:
        return [entry.name for entry in self._entries]

    def has_records(self) -> bool:
        """Ask the engines, here or on other nodes."""
        info = self._handler.stable_info
        return any(info(entry.name).commit > offset for entry, offset in self._entries.items())

    def has_news(self) -> bool:
        """Say whether records were written through this node. A shard that was deleted is news,
        too: its reader must look again."""
        stable_until = self._handler.limits.stable_until
        for entry, offset in self._entries.items():
            if entry.meta is None:
                return True
            if entry.end_offset > offset:
                stable = stable_until(entry.name)
                if stable is None or stable > offset:
                    return True
        return False

    def is_gone(self) -> bool:
        """Say whether one of the shards was deleted."""
        return any(entry.meta is None for entry in self._entries)

    def move(self, offset: Offset) -> None:
        """Look for records from `offset` on, in all shards."""
        for entry in self._entries:
            self._entries[entry] = offset

    def pause_s(self) -> float:
        here = self._handler.node_id
        is_here = all(entry.meta and entry.meta.leader == here for entry in self._entries)
        return PAUSE_S if is_here else ELSEWHERE_PAUSE_S


class RecordWatch(RecordPositions):
    def __init__(
        self,
        handler: StorageEngineHandler,
        positions: Mapping[str, Offset],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(handler, positions)
        self.close: Final = AppendSubscription(handler.cache, list(positions), wake).close

    @property
    def is_over(self) -> bool:
        """Whether the node is about to stop, and calls wait for records no longer."""
        return self._handler.waits_ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
