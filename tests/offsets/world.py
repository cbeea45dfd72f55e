"""A meta service, a local database and a manager over them, for tests to break."""

from __future__ import annotations

from tests.meta.simulated_database import SimulatedDatabase
from tests.offsets.flaky_meta import FlakyMeta

from penstock.offsets.config import CACHE_FAMILY, OffsetConfig
from penstock.offsets.manager import OffsetManager
from penstock.record import ShardId
from penstock.testing import ManualClock

S0, S1, S2 = (ShardId("orders-1", number) for number in range(3))
SMALL = OffsetConfig(pending_max=3, commit_timeout_ms=200)


class World:
    """A meta service, a local database and a manager without a thread: tests call `flush`."""

    def __init__(self, config: OffsetConfig | None = None) -> None:
        self.clock = ManualClock()
        self.meta = FlakyMeta(SimulatedDatabase(), self.clock)
        self.local = SimulatedDatabase(families=(CACHE_FAMILY,))
        self.config = config
        self.manager = self.new_manager()

    def new_manager(self) -> OffsetManager:
        return OffsetManager(self.meta, self.local, clock=self.clock, config=self.config)

    def kill(self) -> None:
        """The process of the manager dies and another one starts."""
        self.local = self.local.after_kill()
        self.manager = self.new_manager()

    def cut_power(self) -> None:
        self.local = self.local.after_power_cut()
        self.manager = self.new_manager()

    def at(self, group: str, shard: ShardId) -> int | None:
        found = self.manager.get_offset(group, shard)
        return None if found is None else found.offset

    def saved(self, group: str, shard: ShardId) -> int | None:
        found = self.meta.get_offset("default", group, shard.name)
        return None if found is None else found.offset
