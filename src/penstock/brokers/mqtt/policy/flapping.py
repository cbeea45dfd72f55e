"""Flapping detection: a client id that disconnects too often is refused for a while.

The table holds the times of the last disconnects of the most recently seen client ids.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

CLIENTS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class FlappingLimits:
    disconnects: int = 15
    """Disconnects within the window that lead to a ban; 0: no detection."""
    window_ms: int = 60_000
    ban_ms: int = 300_000


class FlappingDetector:
    def __init__(self, limits: FlappingLimits) -> None:
        self._limits: Final = limits
        self._times: Final[OrderedDict[str, deque[int]]] = OrderedDict()

    def disconnected(self, client_id: str, now_ms: int) -> int | None:
        """Count a disconnect; return the end of the ban if the client id is banned now."""
        limits = self._limits
        if not limits.disconnects or not client_id:
            return None
        times = self._times.setdefault(client_id, deque(maxlen=limits.disconnects))
        self._times.move_to_end(client_id)
        times.append(now_ms)
        if len(self._times) > CLIENTS_MAX:
            self._times.popitem(last=False)
        if len(times) < limits.disconnects or now_ms - times[0] > limits.window_ms:
            return None
        del self._times[client_id]
        return now_ms + limits.ban_ms
