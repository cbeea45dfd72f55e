"""Stores that are killed in the midst of everything, again and again: nothing acknowledged is lost,
topics exist whole or not at all, and engines and metadata agree.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.adapter.requests import ReadByKey
from penstock.node.node import Node

USER = Path(__file__).with_name("killed_store.py")


class TopicModel:
    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.values: dict[int, list[str]] = {}
        self.commits: dict[int, int] = {}


class Model:
    """What was acknowledged, and what was about to be when the process died."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicModel] = {}
        self.open: list[str] = []
        self.changes = 0

    def read(self, line: str) -> None:
        state, *words = line.split()
        if state == "try":
            self.open = words
        elif state == "did":
            self.open = []
            self.changes += 1
            self.apply(words)

    def apply(self, words: list[str]) -> None:
        operation, name, *rest = words
        if operation == "create":
            self.topics[name] = TopicModel(int(rest[0]))
        elif operation == "delete":
            del self.topics[name]
        elif operation == "grow":
            self.topics[name].partitions = int(rest[0])
        elif operation == "commit":
            self.topics[name].commits[int(rest[0])] = int(rest[1])
        else:
            partition, count, value = int(rest[0]), int(rest[1]), rest[2]
            stored = self.stored(name, partition)
            assert int(rest[3]) == len(stored), "an offset was given twice, or left out"
            stored += [value] * count

    def settle(self, node: Node) -> None:
        """Find out what became of the change that was under way, and keep it in the model."""
        if self.open and self.was_done(node, *self.open):
            is_write = self.open[0] == "write"
            first = [str(len(self.stored(self.open[1], int(self.open[2]))))] if is_write else []
            self.apply([*self.open, *first])
        self.open = []

    def was_done(self, node: Node, operation: str, name: str, *rest: str) -> bool:
        exists = any(topic.name == name for topic in node.broker_cache.list_topics())
        match operation:
            case "create":
                return exists
            case "delete":
                return not exists
            case "grow":
                return node.driver_manager.routes.find(name).partitions == int(rest[0])
            case "commit":
                found = node.offsets.get_offset_by_group("g").get((name, int(rest[0])))
                return found == int(rest[1])
            case _:
                latest = node.driver_manager.shard_info(name, int(rest[0])).latest
                return latest > len(self.stored(name, int(rest[0])))

    def stored(self, name: str, partition: int) -> list[str]:
        return self.topics[name].values.setdefault(partition, [])

    def check(self, node: Node) -> None:
        assert {topic.name for topic in node.broker_cache.list_topics()} == set(self.topics)
        shards: set[str] = set()
        for name, model in self.topics.items():
            route = node.driver_manager.routes.find(name)
            assert route.partitions == model.partitions
            shards.update(route.shards)
            for partition in range(route.partitions):
                self.check_partition(node, name, partition)
        held = {
            shard.name for engine in node.engines.opened().values() for shard in engine.list_shard()
        }
        assert held == shards == set(node.storage_cache.shards)
        commits = {
            (name, partition): offset
            for name, model in self.topics.items()
            for partition, offset in model.commits.items()
        }
        assert node.offsets.get_offset_by_group("g") == commits

    def check_partition(self, node: Node, name: str, partition: int) -> None:
        expected = self.stored(name, partition)
        info = node.driver_manager.shard_info(name, partition)
        assert (info.earliest, info.commit, info.latest) == (0, len(expected), len(expected))
        found = node.driver_manager.read_by_offset(
            name, partition, info.earliest, max_records=1 << 20, max_size=1 << 30
        )
        assert [(r.offset, (r.value or b"").decode()) for r in found] == list(enumerate(expected))
        if expected:
            newest = node.driver_manager.execute(ReadByKey(name, expected[-1].encode()))
            assert newest is not None
        entry = node.handler.find(node.driver_manager.routes.find(name).shards[partition])
        ends = [0, *(segment.end_offset for segment in entry.segments)]
        assert [segment.start_offset for segment in entry.segments] == ends[:-1]


def run_round(directory: Path, model: Model, seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, str(USER), str(directory), str(seed)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    killer = threading.Timer(random.Random(seed).uniform(0.0, 0.5), process.kill)
    killer.start()
    for line in process.stdout:
        if line.endswith(b"\n"):
            model.read(line.decode())
    process.wait()
    process.stdout.close()
    killer.join()
    assert process.returncode == -9
    with Node(str(directory)) as node:
        model.settle(node)
        model.check(node)


def run_rounds(directory: Path, rounds: int, seed: int) -> None:
    model = Model()
    for number in range(rounds):
        run_round(directory, model, seed + number)
    assert model.changes > rounds


def test_a_store_survives_being_killed(directory: Path) -> None:
    run_rounds(directory, rounds=4, seed=20261115)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_store_survives_being_killed_300_times(directory: Path) -> None:
    run_rounds(directory, rounds=300, seed=7)
