"""A shard that a front end has resolved: its metadata entry and the driver of its storage type."""

from __future__ import annotations

from typing import Final

from penstock.adapter.engine_adapter import EngineStorageAdapter
from penstock.engine.routing.storage_cache import ShardEntry


class ShardHandle:
    """Stays valid while the shard exists; after its deletion `entry.meta` equals None.

    A caller that uses a shard for many requests keeps the handle (or its two fields) and calls the
    driver with them, so that a request looks up neither the topic nor the driver.
    """

    __slots__ = ("driver", "entry")

    def __init__(self, entry: ShardEntry, driver: EngineStorageAdapter) -> None:
        self.entry: Final = entry
        self.driver: Final = driver

    @property
    def name(self) -> str:
        return self.entry.name

    def check_led(self) -> None:
        """Raise `NotLeaderError` when another node leads the shard."""
        self.driver.check_led(self.entry)
