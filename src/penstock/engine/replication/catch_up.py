"""`CatchUpThrottle`: how fast a node copies shards of which it is not in sync.

What a replica in sync copies is not counted: its leader waits for it. Bytes are counted when they
have come; a node that has copied more than its rate allows asks for no more until the time has
passed for which they are enough.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.replication.counts import ReplicationCounts

BURST_S: Final = 1.0
"""For how long a node that copied nothing may copy what it has saved in one go."""
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
        self._delayed: Final[dict[str, int]] = {}
        """Shards that are copied again when their rate allows it."""
        self._waited_s = 0.0
        self._counted_at = 0.0

    def admits(self, now: float, shard: str, rate: int, size: int) -> bool:
        """Count `size` bytes of a shard that came; return whether more may be copied now. If not,
        `due` names the shard later."""
        if size:
            self.spend(now, size, rate)
        if self.may_copy(now, rate):
            return True
        self._count_wait(now)
        self._delayed[shard] = rate
        return False

    def report(self, now: float, counts: ReplicationCounts) -> None:
        """Set what metrics show of the throttle."""
        self._count_wait(now)
        rates = {self._node_rate, *self._delayed.values()} - {0}
        counts.throttled_s = self._waited_s
        counts.throttled_shards = len(self._delayed)
        counts.catch_up_limit = min(rates, default=0)

    def _count_wait(self, now: float) -> None:
        if self._delayed:
            self._waited_s += now - self._counted_at
        self._counted_at = now

    def is_delayed(self, shard: str) -> bool:
        return shard in self._delayed

    def due(self, now: float) -> list[str]:
        """Return the delayed shards of which more may be copied now."""
        due = sorted(shard for shard, rate in self._delayed.items() if self.may_copy(now, rate))
        for shard in due:
            del self._delayed[shard]
        return due

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
