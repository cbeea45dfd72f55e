"""`CatchUpThrottle`: how fast a node copies shards of which it is not in sync.

What a replica in sync copies is not counted: its leader waits for it. Bytes are counted when they
have come; a node that has copied more than its rate allows asks for no more until the time has
passed for which they are enough.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""For how long a node that copied nothing may copy immediately what it has saved."""
RATES_MAX: Final = 64


class _Budget:
    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: int, now: float) -> None:
        self._rate: Final = rate
        self._left = rate * BURST_S
        self._at = now

    def left(self, now: float) -> float:
        self._left = min(self._left + self._rate * (now - self._at), self._rate * BURST_S)
        self._at = now
        return self._left

    def spend(self, now: float, size: int) -> None:
        self._left = self.left(now) - size


class CatchUpThrottle:
    """A rate of 0 has no limit."""

    def __init__(self, node_rate: int) -> None:
        self._node_rate: Final = node_rate
        self._budgets: Final[dict[int, _Budget]] = {}
        """By rate: all moves with the same one share it, and the node's own."""

    def spend(self, now: float, size: int, rate: int) -> None:
        """Count bytes that were copied under the rate of a move, and that of the node."""
        for budget in self._of(now, rate):
            budget.spend(now, size)

    def may_copy(self, now: float, rate: int) -> bool:
        return all(budget.left(now) >= 0 for budget in self._of(now, rate))

    def _of(self, now: float, rate: int) -> list[_Budget]:
        rates = {used for used in (rate, self._node_rate) if used}
        if len(self._budgets) > RATES_MAX:
            self._budgets.clear()
        return [self._budgets.setdefault(used, _Budget(used, now)) for used in rates]


class CatchUpDelays:
    """Shards that are copied again when the throttle allows it."""

    def __init__(self, node_rate: int) -> None:
        self._throttle: Final = CatchUpThrottle(node_rate)
        self._rates: Final[dict[str, int]] = {}

    def __contains__(self, shard: str) -> bool:
        return shard in self._rates

    def may_go_on(self, now: float, shard: str, rate: int, size: int) -> bool:
        """Count bytes of a shard; return whether more may be asked for. Otherwise it is `due`
        later."""
        if size:
            self._throttle.spend(now, size, rate)
        if self._throttle.may_copy(now, rate):
            return True
        self._rates[shard] = rate
        return False

    def due(self, now: float) -> list[str]:
        """Return the shards of which more may be asked for now, and drop them here."""
        due = [shard for shard, rate in self._rates.items() if self._throttle.may_copy(now, rate)]
        for shard in due:
            del self._rates[shard]
        return due
