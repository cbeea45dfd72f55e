"""`SessionPartitions`: the partitions of `__mqtt_sessions` whose sessions this node runs.

    this node leads a partition ──▶ sessions loaded ──▶ mark written ──▶ clients are served
    another node leads it       ──▶ clients disconnected, sessions dropped from memory

Rows are written under the leader epoch under which the sessions were loaded, or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.cluster.placement import Placement
from penstock.brokers.mqtt.cluster.recovery import PartitionRecovery
from penstock.brokers.mqtt.deliver.log_reader import LogReader
from penstock.brokers.mqtt.sessions.recovery import ReachableTopics
from penstock.brokers.mqtt.sessions.registry import SessionRegistry
from penstock.brokers.mqtt.sessions.session import Session
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import StoreError
from penstock.platform.log import get_logger

RETRY_S: Final = 0.5

_log: Final = get_logger(__name__)


class SessionPartitions:
    def __init__(
        self,
        drivers: StorageDriverManager,
        placement: Placement,
        registry: SessionRegistry,
        mapping: ReachableTopics,
        make_reader: Callable[[], LogReader],
        until_followed: Callable[[], Awaitable[object]],
        claim: Callable[[str, int], Awaitable[object]],
        until_idle: Callable[[int], Awaitable[object]],
    ) -> None:
        """`until_followed` returns when all shards are followed that have messages, `claim` when
        the other nodes do nothing more for the sessions of a partition, `until_idle` when this one
        does not."""
        self._claim: Final = claim
        self._until_idle: Final = until_idle
        self._claimed: Final[dict[int, int]] = {}
        """By partition, the highest epoch of another node's claim."""
        self._make_reader: Final = make_reader
        self._until_followed: Final = until_followed
        self._drivers: Final = drivers
        self._placement: Final = placement
        self._registry: Final = registry
        self._mapping: Final = mapping
        self._epochs: Final[dict[int, int]] = {}
        """The epochs of the partitions that are loaded, or being loaded."""
        self._loaded: Final[set[int]] = set()
        self._tasks: Final[dict[int, asyncio.Task[None]]] = {}
        self._shards: Final[dict[int, str]] = {}
        store = registry.store
        store.marked_partitions = lambda: list(self._loaded)
        store.may_write = self._may_write
        store.writer.fence = self.check
        registry.partition_of = self._partition_of

    def is_loaded(self, partition: int) -> bool:
        return partition in self._loaded and self._is_current(partition)

    @property
    def loaded(self) -> list[int]:
        return [partition for partition in self._loaded if self._is_current(partition)]

    def _is_current(self, partition: int) -> bool:
        """Say whether this node leads a partition still, as far as it knows at this moment."""
        epoch = self._placement.epoch_led(self._shards[partition])
        return epoch == self._epochs.get(partition)

    def update(self) -> None:
        """Load and drop what the metadata have changed; called often."""
        route = self._placement.route()
        if route is None:
            for partition in list(self._epochs):
                self._drop(partition)
            return
        for partition in range(route.partitions):
            self._shards[partition] = route.shards[partition]
            epoch = self._placement.epoch_led(route.shards[partition])
            known = self._epochs.get(partition)
            if epoch is not None and epoch < self._claimed.get(partition, -1):
                epoch = None  # the metadata of this node are older than those of the claimant
            if known == epoch:
                continue
            if known is not None:
                self._drop(partition)
            if epoch is not None:
                self._epochs[partition] = epoch
                task = asyncio.get_running_loop().create_task(
                    self._load(partition, epoch), name=f"mqtt-load-{partition}"
                )
                self._tasks[partition] = task

    def _drop(self, partition: int) -> None:
        """Another node runs the sessions of a partition, or none can at the moment."""
        self._epochs.pop(partition, None)
        self._loaded.discard(partition)
        task = self._tasks.pop(partition, None)
        if task is not None:
            task.cancel()
        sessions = self._sessions_of(partition)
        self._registry.unload(sessions, ReasonCode.SERVER_MOVED)
        _log.info("mqtt_sessions_moved", partition=partition, sessions=len(sessions))

    def _sessions_of(self, partition: int) -> list[Session]:
        return [session for session in self._registry if session.partition == partition]

    def _partition_of(self, client_id: str) -> int:
        route = self._placement.route()
        return -1 if route is None else self._placement.partition_of(client_id, route)

    async def _load(self, partition: int, epoch: int) -> None:
        while self._epochs.get(partition) == epoch:
            try:
                await self._load_once(partition)
            except (StoreError, TimeoutError) as error:
                self._registry.unload(self._sessions_of(partition), ReasonCode.SERVER_BUSY)
                _log.warning("mqtt_sessions_not_loaded", partition=partition, reason=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                break
        if self._epochs.get(partition) == epoch:
            self._tasks.pop(partition, None)

    async def _load_once(self, partition: int) -> None:
        registry = self._registry
        await self._until_followed()
        await self._until_idle(partition)
        await self._claim(self._shards[partition], self._epochs[partition])
        recovery = PartitionRecovery(
            self._drivers, registry, self._mapping, self._make_reader(), partition
        )
        sessions = await recovery.load()
        await registry.store.mark_partition(partition, sessions)
        self._loaded.add(partition)
        registry.start_timers(sessions)
        _log.info(
            "mqtt_sessions_loaded",
            partition=partition,
            sessions=len(sessions),
            records=recovery.records,
        )

    def _may_write(self, session: Session) -> bool:
        return session.partition in self._loaded

    def check(self, partition: int) -> None:
        """Raise unless this node runs the sessions of a partition; called in the pool."""
        name = self._shards.get(partition, "")
        self._placement.check_epoch(name, self._epochs.get(partition))

    # Between nodes

    async def release(self, shard: str, epoch: int) -> None:
        """Another node leads a partition under an epoch: do nothing more for its sessions."""
        partition = int(shard.rpartition("_")[2])
        self._claimed[partition] = max(epoch, self._claimed.get(partition, -1))
        known = self._epochs.get(partition)
        if known is not None and known < epoch and self._shards.get(partition) == shard:
            self._drop(partition)
        await self._until_idle(partition)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)
