"""What the event loop knows of partitions, and who is told when one is written to."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from penstock.brokers.kafka.metadata.partitions import Partition, PartitionTable
from penstock.node.node import Node
from penstock.record import Record


class Counter:
    def __init__(self) -> None:
        self.append_count = 0

    def on_append(self, partition: Partition) -> None:
        self.append_count += 1


def test_bounds_that_a_write_made_void_are_not_kept(tmp_path: Path) -> None:
    async def go(node: Node) -> None:
        node.admin.create_topic_full("t", 1, {"queue": "batch"})
        table = PartitionTable(node.driver_manager, "default")
        topic = table.by_name(b"t")
        assert topic is not None
        (partition,) = topic.partitions
        table.watch(partition, Counter())
        mark, bounds = partition.mark, node.handler.bounds(partition.entry)
        node.driver_manager.write("t", Record(b"v"))
        # As a thread would that asked before the write and was held up since.
        partition.cache_bounds(mark, bounds)
        assert partition.cached_bounds() is None
        partition.cache_bounds(partition.mark, (0, 1))
        assert partition.cached_bounds() == (0, 1)

    with Node(str(tmp_path / "data")) as node:
        asyncio.run(go(node))


def test_writes_of_other_threads_are_told_on_the_loop_once_for_many(tmp_path: Path) -> None:
    async def go(node: Node) -> int:
        node.admin.create_topic_full("t", 1, {"queue": "batch"})
        table = PartitionTable(node.driver_manager, "default")
        topic = table.by_name(b"t")
        assert topic is not None
        counter = Counter()
        table.watch(topic.partitions[0], counter)

        def write() -> None:
            for _ in range(100):
                node.driver_manager.write("t", Record(b"v"))

        writer = threading.Thread(target=write)
        writer.start()
        writer.join()  # the loop stands still meanwhile
        assert counter.append_count == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        table.unwatch(topic.partitions[0], counter)
        node.driver_manager.write("t", Record(b"v"))
        await asyncio.sleep(0)
        return counter.append_count

    with Node(str(tmp_path / "data")) as node:
        assert asyncio.run(go(node)) == 1
        # The loop has ended; nobody who writes notices.
        node.driver_manager.write("t", Record(b"v"))


def test_a_topic_made_again_is_another_one(tmp_path: Path) -> None:
    async def go(node: Node) -> None:
        node.admin.create_topic_full("t", 1, {"queue": "batch"})
        table = PartitionTable(node.driver_manager, "default")
        first = table.by_name(b"t")
        assert first is not None
        assert table.by_name(b"t") is first
        assert table.by_id(first.id_bytes) is first
        node.admin.delete_topic("t")
        assert table.by_name(b"t") is None
        assert table.by_id(first.id_bytes) is None
        node.admin.create_topic_full("t", 2, {"queue": "batch"})
        second = table.by_name(b"t")
        assert second is not None
        assert len(second.partitions) == 2
        assert second.id_bytes != first.id_bytes

    with Node(str(tmp_path / "data")) as node:
        asyncio.run(go(node))
