"""What opening a store found and did."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

Progress = Callable[[int, int], None]
"""Called with the bytes looked at and the bytes to look at."""


class DamagedPlace(Struct, frozen=True):
    path: str
    position: int
    reason: str


class RecoveryReport(Struct):
    """What opening a store found and did."""

    clean_stop: bool = True
    from_position: int = 0
    records_scanned: int = 0
    bytes_scanned: int = 0
    end_position: int = 0
    bytes_cut: int = 0
    cut_reason: str | None = None
    records_behind_cut: int = 0
    damaged: list[DamagedPlace] = []
    rebuilt: list[str] = []
    seconds: float = 0.0

    @property
    def was_in_order(self) -> bool:
        """Whether everything was as the last stop left it."""
        return self.clean_stop and not (self.records_scanned or self.rebuilt)
