"""Rate limits: token buckets for new connections, and for the publishes of each connection.

A publish above the rate is not refused: the connection stops reading until the bucket has refilled.
A connection attempt above the rate is refused with 0x9F (connection rate exceeded).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

ADDRESSES_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Units per second; 0: no limit."""

    connections: float = 0
    connections_per_address: float = 0
    publishes: float = 0
    publish_bytes: float = 0


class TokenBucket:
    """Holds one second of its rate, at least one unit."""

    __slots__ = ("_burst", "_rate", "_time", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate: Final = rate
        self._burst: Final = max(1.0, rate)
        self._tokens = self._burst
        self._time = now

    def try_spend(self, now: float) -> bool:
        """Spend one unit if there is one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def spend(self, units: float, now: float) -> float:
        """Spend units, also such that are not there; return the seconds until they are."""
        self._refill(now)
        self._tokens -= units
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self._tokens >= self._burst

    def _refill(self, now: float) -> None:
        if now > self._time:
            self._tokens = min(self._burst, self._tokens + (now - self._time) * self._rate)
            self._time = now


class ConnectionRates:
    """New connections, in total and of each address."""

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._limits: Final = limits
        self._total: Final = TokenBucket(limits.connections, now) if limits.connections else None
        self._addresses: Final[OrderedDict[str, TokenBucket]] = OrderedDict()

    def admits(self, address: str, now: float) -> bool:
        """Count a connection attempt; return whether it is within the rates."""
        rate = self._limits.connections_per_address
        if rate and address:
            bucket = self._addresses.get(address)
            if bucket is None:
                bucket = self._addresses[address] = TokenBucket(rate, now)
            self._addresses.move_to_end(address)
            if len(self._addresses) > ADDRESSES_MAX:
                self._addresses.popitem(last=False)
            if not bucket.try_spend(now):
                return False
        return self._total is None or self._total.try_spend(now)


class PublishRate:
    """The publishes of one connection."""

    __slots__ = ("_bytes", "_count")

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._count: Final = TokenBucket(limits.publishes, now) if limits.publishes else None
        self._bytes: Final = (
            TokenBucket(limits.publish_bytes, now) if limits.publish_bytes else None
        )

    def delay_s(self, count: int, size: int, now: float) -> float:
        """Count publishes; return for how many seconds the connection shall not be read."""
        delay = 0.0
        if self._count is not None:
            delay = self._count.spend(count, now)
        if self._bytes is not None:
            delay = max(delay, self._bytes.spend(size, now))
        return delay
