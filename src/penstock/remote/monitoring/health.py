"""What is wrong with a node, as its health endpoints tell it.

    failed    a part has stopped for good, and only a new start helps: neither live nor ready
    error     requests of some kind are refused at the moment: live, but not ready
    warning   everything is served, and an operator should look: live and ready

Checks read what the node knows already, and one `statvfs` of the data directory; none waits for a
disk, another node or a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.segment import SegmentEngine
from penstock.errors import StoreError
from penstock.node.node import Node
from penstock.platform.disk import Disk
from penstock.remote.server.call_threads import CallThreads
from penstock.tiered import TieredSegmentEngine

Level = Literal["failed", "error", "warning"]

WAITING_S: Final = 2.0
"""Calls that have waited so long for a thread mean that there are too few."""


class Reason(Struct, frozen=True):
    check: str
    level: Level
    reason: str


class NodeHealth:
    def __init__(
        self,
        node: Node,
        disk: Disk,
        threads: Mapping[CallThreads, Level],
        front_ends: Callable[[], dict[str, str]],
    ) -> None:
        """`threads` are the pools of the server, and how serious it is that one is used up.
        `front_ends` returns what is wrong with those that were asked for, by name."""
        self._node: Final = node
        self._disk: Final = disk
        self._threads: Final = threads
        self._front_ends: Final = front_ends

    def live(self) -> dict[str, object]:
        """Say whether a new start would help."""
        return _page({"node": self._node.meta.node_id}, list(self._failures()), {"failed"})

    def ready(self) -> dict[str, object]:
        """Say whether the node takes every kind of request."""
        reasons = list(self.reasons())
        shown: dict[str, object] = {
            "node": self._node.meta.node_id,
            "topics": len(self._node.broker_cache.list_topics(None)),
        }
        return _page(shown, reasons, {"failed", "error"})

    def reasons(self) -> Iterator[Reason]:
        yield from self._failures()
        yield from self._disk_reasons()
        yield from self._meta_reasons()
        yield from self._thread_reasons()
        clock = self._node.clock.status()
        if clock.held:
            problem = (
                f"the clock {clock.reason}; nothing is deleted by age until it is set right or "
            )
            yield Reason("clock", "warning", f"{problem}confirmed (penstock clock confirm)")
        yield from self._tier_reasons()
        yield from self._scrub_reasons()
        for name, problem in self._front_ends().items():
            yield Reason(name, "error", problem)

    def _thread_reasons(self) -> Iterator[Reason]:
        for threads, level in self._threads.items():
            waiting, seconds = threads.waiting()
            if seconds >= WAITING_S:
                yield Reason(
                    "grpc",
                    level,
                    f"{waiting} calls wait for one of {threads.threads_max} threads "
                    f"({threads.name}), since {seconds:.0f} s",
                )

    def _failures(self) -> Iterator[Reason]:
        """Yield why parts of the node have stopped for good: only a new start helps."""
        failures: list[tuple[str, StoreError | None]] = [("metadata", self._node.meta.failure)]
        if self._node.replicator is not None:
            failures.append(("replication", self._node.replicator.failure))
        for engine in self._node.engines.opened().values():
            if isinstance(engine, SegmentEngine):
                failures.append(("log", engine.store.log_failure()))
            elif isinstance(engine, RocksDBStorageEngine):
                failures.append(("rocksdb", engine.failure))
        for check, failure in failures:
            if failure is not None:
                yield Reason(check, "failed", str(failure))

    def _disk_reasons(self) -> Iterator[Reason]:
        for engine in self._node.engines.opened().values():
            if isinstance(engine, SegmentEngine):
                refusal = engine.store.write_refusal()
                if refusal is not None and engine.store.log_failure() is None:
                    yield Reason("disk", "error", str(refusal))
                    return
        limit = self._node.settings.broker.disk_space_warning_level_ratio
        try:
            percent = 100 * self._disk.usage(self._node.path).ratio
        except OSError as error:
            yield Reason("disk", "error", f"{self._node.path}: {error.strerror}")
            return
        if percent >= limit:
            yield Reason(
                "disk",
                "error",
                f"the disk of {self._node.path} is {percent:.0f} % full "
                f"(disk_space_warning_level_ratio = {limit})",
            )

    def _tier_reasons(self) -> Iterator[Reason]:
        for engine in self._node.engines.opened().values():
            damaged = engine.tiers.damage.known() if isinstance(engine, TieredSegmentEngine) else []
            if damaged:
                yield Reason(
                    "tier_damage",
                    "warning",
                    f"{len(damaged)} objects of tiers are damaged or missing, one of them "
                    f"{damaged[-1].object_name}; see penstock tier repair",
                )

    def _scrub_reasons(self) -> Iterator[Reason]:
        damaged = self._node.scrubber.damaged()
        if damaged:
            name, offset = damaged[0]
            yield Reason(
                "damage",
                "warning",
                f"{len(damaged)} shards have damaged records on this node, one of them {name} at "
                f"offset {offset}; those of replicated topics are copied again from another node",
            )

    def _meta_reasons(self) -> Iterator[Reason]:
        problem = self._node.meta.leader_problem()
        if problem:
            yield Reason("metadata_leader", "error", problem)


def _page(
    shown: dict[str, object], reasons: list[Reason], refused: set[Level]
) -> dict[str, object]:
    levels = {reason.level for reason in reasons}
    status = "up"
    for level, word in (("failed", "failed"), ("error", "not_ready"), ("warning", "degraded")):
        if level in levels:
            status = word
            break
    page: dict[str, object] = {"status": status, **shown}
    page["reasons"] = [msgspec.structs.asdict(reason) for reason in reasons]
    problems = [reason.reason for reason in reasons if reason.level in refused]
    if problems:
        page["problem"] = "; ".join(problems)
    return page
