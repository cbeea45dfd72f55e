"""`Following`: how this node learns that shards have grown which other nodes lead.

    leader     a shard's `known_end` moves ─▶ at the end of the turn, one message to each follower
    follower   `Delivery.advertise` ─▶ reads the log, at the leader, if there are subscriptions

One stream for each pair of nodes carries the ends of all shards. A node asks for it when it is
connected, and again from time to time; the answer has all ends. As long as the stream lasts, the
watch of a local replica is not used: the leader knows earlier what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.cluster import frames
from penstock.brokers.mqtt.cluster.links import Links
from penstock.brokers.mqtt.cluster.placement import Placement
from penstock.brokers.mqtt.deliver.delivery import Delivery
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.sessions.recovery import ReachableTopics
from penstock.engine.contract import ShardInfo
from penstock.errors import StoreError
from penstock.platform.log import get_logger

REFRESH_S: Final = 2.0
"""How often nodes are asked again, and report all ends."""

_log: Final = get_logger(__name__)


class Following:
    def __init__(
        self,
        drivers: StorageDriverManager,
        placement: Placement,
        delivery: Delivery,
        mapping: ReachableTopics,
        other_ends: Callable[[], dict[str, int]],
        on_other_end: Callable[[str, int], None],
    ) -> None:
        """`other_ends` returns those of shards that have no subscribers, and are followed in
        another way; `on_other_end` gets what their leaders say."""
        self._drivers: Final = drivers
        self._placement: Final = placement
        self._delivery: Final = delivery
        self._mapping: Final = mapping
        self._other_ends: Final = other_ends
        self._on_other_end: Final = on_other_end
        self._links: Links | None = None
        self._followers: Final[set[int]] = set()
        self._streams: Final[set[int]] = set()
        """Nodes that say how their shards grow."""
        self._grown: Final[dict[str, int]] = {}
        self._refreshed_s = 0.0
        self._scanned: Final = asyncio.Event()
        self._version = -1
        self._opening: Final[dict[str, asyncio.Task[None]]] = {}
        delivery.on_advance = self._advanced
        delivery.skips_unread = True

    def start(self, links: Links) -> None:
        self._links = links

    async def until_followed(self) -> None:
        """Return when all shards are followed that could be read at the start."""
        await self._scanned.wait()

    # Which shards there are

    def update(self) -> None:
        """Follow new shards, and learn who leads them; called often."""
        version = self._drivers.routes.version
        if version != self._version or not self._scanned.is_set():
            self._version = version
            self._scan()
        self._refresh()

    def _scan(self) -> None:
        tails = self._delivery.tails
        is_first = not self._scanned.is_set()
        for topic in self._mapping.stored_topics_for("#"):
            for partition, name in enumerate(topic.shards):
                if name in tails.by_name or name in self._opening:
                    continue
                if not is_first:
                    self._delivery.look(tails.open(topic.name, partition, name, 0))
                    continue
                opening = asyncio.get_running_loop().create_task(
                    self._open(topic.name, partition, name), name="mqtt-open-shard"
                )
                self._opening[name] = opening
        if is_first and not self._opening:
            self._scanned.set()
        for tail in list(tails):
            self._place(tail)

    async def _open(self, topic: str, partition: int, name: str) -> None:
        """Follow a shard that was there before the start, from its end."""
        try:
            info = await self._info(topic, partition)
        except StoreError as error:
            _log.warning("mqtt_shard_not_followed", shard=name, reason=str(error))
            await asyncio.sleep(REFRESH_S)
        else:
            if info.shard.name == name:
                self._place(self._delivery.tails.open(topic, partition, name, info.commit))
        finally:
            self._opening.pop(name, None)
            if not self._opening:
                self._scanned.set()

    async def _info(self, topic: str, partition: int) -> ShardInfo:
        return await self._drivers.run_blocking(partial(self._drivers.shard_info, topic, partition))

    def _place(self, tail: ShardTail) -> None:
        """Use the stream of the node that leads a shard, or its watch."""
        leader = self._placement.leader(tail.name)
        is_remote = leader != self._placement.node_id and leader in self._streams
        if is_remote == tail.is_remote:
            return
        tail.is_remote = is_remote
        tail.advertised = 0
        self._delivery.look(tail)

    # The node that leads

    def follow(self, node: int) -> None:
        """Another node wants to know how the shards of this one grow."""
        self._followers.add(node)
        self._post_ends(node, self._all_ends())

    def _all_ends(self) -> dict[str, int]:
        ends = {
            tail.name: tail.known_end for tail in self._delivery.tails if self._leads(tail.name)
        }
        others = self._other_ends()
        ends.update((name, end) for name, end in others.items() if self._leads(name))
        return ends

    def _leads(self, name: str) -> bool:
        return self._placement.epoch_led(name) is not None

    def _advanced(self, tail: ShardTail) -> None:
        self.grown(tail.name, tail.known_end)

    def grown(self, name: str, end: int) -> None:
        """Records of a shard up to `end` are committed, as this node knows."""
        if not self._followers:
            return
        if not self._grown:
            asyncio.get_running_loop().call_soon(self._post_grown)
        self._grown[name] = end

    def _post_grown(self) -> None:
        grown = {name: end for name, end in self._grown.items() if self._leads(name)}
        self._grown.clear()
        if grown:
            for node in list(self._followers):
                self._post_ends(node, grown)

    def _post_ends(self, node: int, ends: dict[str, int]) -> None:
        if self._links is not None:
            self._links.post(node, frames.ENDS, content=frames.ends(ends))

    # The node that follows

    def ends_received(self, node: int, ends: dict[str, int]) -> None:
        """Another node says how far shards go that it leads."""
        tails = self._delivery.tails.by_name
        is_new = node not in self._streams
        self._streams.add(node)
        for name, end in ends.items():
            tail = tails.get(name)
            if tail is None:
                self._on_other_end(name, end)
            elif not tail.is_gone:
                self._delivery.advertise(tail, end)
        if is_new:
            for tail in list(self._delivery.tails):
                self._place(tail)

    def connected(self, node: int) -> None:
        if self._links is not None:
            self._links.post(node, frames.FOLLOW)

    def lost(self, node: int) -> None:
        self._followers.discard(node)
        self._streams.discard(node)
        for tail in list(self._delivery.tails):
            self._place(tail)

    def _refresh(self) -> None:
        """Ask the nodes that lead shards again, from time to time."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refreshed_s < REFRESH_S or self._links is None:
            return
        self._refreshed_s = now_s
        for tail in list(self._delivery.tails):
            self._place(tail)
        for node in self.nodes():
            if self._links.is_connected(node):
                self._links.post(node, frames.FOLLOW)
            else:
                self._links.open(node)

    def nodes(self) -> set[int]:
        """Return the other nodes that lead shards which the front end uses."""
        names = [tail.name for tail in self._delivery.tails]
        route = self._placement.route()
        if route is not None:
            names += route.shards
        names += self._other_ends()
        found = {self._placement.leader(name) for name in names}
        found |= self._streams | self._followers
        return {node for node in found if node is not None} - {self._placement.node_id}

    async def close(self) -> None:
        for task in list(self._opening.values()):
            task.cancel()
