"""The node itself: producer ids, maintenance, the clock."""

from __future__ import annotations

from typing import Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from penstock.adapter import StorageDriverManager
from penstock.adapter.requests import R_co, StoreRequest
from penstock.meta import MetaClient
from penstock.platform.clock_guard import ClockStatus, GuardedClock


class RunningNode(Protocol):
    """The components of a node that a store uses."""

    @property
    def path(self) -> str: ...
    @property
    def driver_manager(self) -> StorageDriverManager: ...
    @property
    def meta(self) -> MetaClient: ...
    @property
    def clock(self) -> GuardedClock: ...

    def run_upkeep(self) -> None: ...

    def confirm_clock(self) -> ClockStatus: ...

    def close(self) -> None: ...


class NodeRequest(Struct, Generic[R_co], frozen=True):
    """A request that the node runs."""

    def run(self, node: RunningNode) -> R_co:
        raise NotImplementedError


R = TypeVar("R")
Request: TypeAlias = StoreRequest[R] | NodeRequest[R]
"""What a backend executes."""


class AllocateProducerId(NodeRequest[int], frozen=True):
    """Return a new producer id."""

    def run(self, node: RunningNode) -> int:
        return node.meta.allocate_producer_ids(1).start


class RunUpkeep(NodeRequest[None], frozen=True):
    """Run background maintenance now: retention, compaction, sealing."""

    def run(self, node: RunningNode) -> None:
        node.run_upkeep()


class ReadClock(NodeRequest[ClockStatus], frozen=True):
    """Return whether the node believes its clock."""

    def run(self, node: RunningNode) -> ClockStatus:
        return node.clock.status()


class ConfirmClock(NodeRequest[ClockStatus], frozen=True):
    """Confirm that the node's clock is right."""

    def run(self, node: RunningNode) -> ClockStatus:
        return node.confirm_clock()
