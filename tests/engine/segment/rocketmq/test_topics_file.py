"""The list of topics that RocketMQ reads: right when written, and not read before it has to be."""

from __future__ import annotations

from penstock.engine.segment.rocketmq.config_files import (
    TopicConfig,
    Topics,
    read_topics,
    write_topics,
)
from penstock.engine.segment.rocketmq.topics_file import TopicsFile
from penstock.record import QueueKind, ShardId
from penstock.testing import FaultyDisk, ManualClock

PATH = "store/config/topics.json"
SIMPLE, BATCH = QueueKind.SIMPLE, QueueKind.BATCH


class World:
    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.shards: list[tuple[ShardId, QueueKind]] = []

    def open(self) -> TopicsFile:
        return TopicsFile(self.disk, PATH, ManualClock(), lambda: self.shards)

    def put(self, *configs: TopicConfig) -> None:
        topics = Topics({config.name: config for config in configs})
        self.disk.replace(PATH, write_topics(topics))

    def listed(self) -> dict[str, TopicConfig]:
        file = self.disk.open(PATH, writable=False)
        return read_topics(file.read_at(0, file.size()), PATH).configs


def test_every_topic_is_listed_with_its_kind_and_as_many_queues_as_it_has_shards() -> None:
    world = World()
    world.shards = [
        (ShardId("a", 0), SIMPLE),
        (ShardId("a", 2), SIMPLE),
        (ShardId("b", 0), BATCH),
    ]
    world.open().save()
    listed = world.listed()
    assert {name: (config.queues, config.kind) for name, config in listed.items()} == {
        "a": (3, SIMPLE),
        "b": (1, BATCH),
    }


def test_a_file_that_is_current_is_neither_read_nor_written() -> None:
    world = World()
    world.shards = [(ShardId("a", 0), SIMPLE)]
    world.disk.replace(PATH, b"whatever it says")
    file = world.open()
    file.save()
    assert world.disk.open(PATH, writable=False).read_at(0, 100) == b"whatever it says"


def test_a_file_that_may_be_out_of_date_is_written() -> None:
    world = World()
    world.shards = [(ShardId("a", 0), SIMPLE)]
    world.put()
    file = world.open()
    file.mark_stale()
    file.save()
    assert list(world.listed()) == ["a"]


def test_what_the_file_says_about_topics_is_kept() -> None:
    world = World()
    strange = TopicConfig("strange", 8, (("+retention", "x"),), (("order", True), ("perm", 4)))
    ours = TopicConfig("ours", 4, (("+message.type", "FIFO"),))
    world.put(strange, ours)
    world.shards = [(ShardId("ours", 0), SIMPLE)]
    file = world.open()
    for partition in (1, 5):
        world.shards.append((ShardId("ours", partition), SIMPLE))
        file.mark_stale()
        file.save()
        listed = world.listed()
        assert listed["strange"] == strange
        assert listed["ours"].queues == max(4, partition + 1)
        assert listed["ours"].attributes == ours.attributes


def test_a_topic_without_shards_goes_and_one_that_comes_back_is_listed_anew() -> None:
    world = World()
    world.put(TopicConfig("gone", 7), TopicConfig("stays"))
    world.shards = [(ShardId("gone", 0), SIMPLE), (ShardId("gone", 1), SIMPLE)]
    file = world.open()
    world.shards.pop()
    file.mark_deleted("gone")
    file.save()
    assert world.listed()["gone"].queues == 7
    world.shards.pop()
    file.mark_deleted("gone")
    file.save()
    assert list(world.listed()) == ["stays"]
    world.shards = [(ShardId("gone", 0), BATCH)]
    file.mark_stale()
    file.save()
    assert (world.listed()["gone"].queues, world.listed()["gone"].kind) == (1, BATCH)


def test_a_damaged_file_is_written_anew_from_the_shards() -> None:
    world = World()
    world.disk.replace(PATH, b'{"topicConfigTable":{"a":{"perm"')
    world.shards = [(ShardId("a", 0), SIMPLE)]
    file = world.open()
    file.mark_stale()
    file.save()
    assert list(world.listed()) == ["a"]
