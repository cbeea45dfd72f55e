"""Reads of a replicated shard that meet a damaged record on its leader.

The leader resigns, another replica in sync leads, and the damaged copy is repaired from it. So the
reader does not get `CorruptionError` but `NotLeaderError`, which clients answer by asking the new
leader. Only when no other replica has the record it gets `CorruptionError`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import CorruptionError, NotLeaderError


class ResigningRead:
    """A context manager around reads of an engine."""

    __slots__ = ("_entry", "_offset")

    def __init__(self, entry: ShardEntry, offset: int | None = None) -> None:
        """`offset` is where the read begins, if that is known."""
        self._entry: Final = entry
        self._offset: Final = offset

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, CorruptionError):
            return
        entry, replica = self._entry, self._entry.replica
        if replica is not None and replica.resign_damaged(self._offset):
            raise NotLeaderError(entry.name, leader=None) from error
