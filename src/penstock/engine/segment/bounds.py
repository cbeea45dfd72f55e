"""Where a shard of an open store begins and ends."""

from __future__ import annotations

from msgspec import Struct

from penstock.record import Offset, Position


class Bounds(Struct, frozen=True):
    """Where a shard begins and ends. [earliest, commit) can be read; `next` is given out next."""

    earliest: Offset
    commit: Offset
    next: Offset
    start_position: Position
    """Where the log begins; records below it are gone."""
    end_position: Position
