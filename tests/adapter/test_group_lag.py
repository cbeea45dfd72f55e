"""The lag of a group is told as far as it is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from penstock.adapter.driver_manager import StorageDriverManager
from penstock.adapter.group_lag import lag_of
from penstock.engine.contract import ShardInfo
from penstock.errors import CorruptionError, DeadlineError, NotLeaderError, StoreError
from penstock.record import Offset, ShardId


class Partitions:
    """A topic whose partitions are led by nodes, of which some are away."""

    def __init__(self, leaders: dict[int, int | None]) -> None:
        self.leaders = leaders
        self.asked: list[int] = []
        self.errors: dict[int | None, StoreError] = {}
        self.routes = SimpleNamespace(find=lambda _topic, _namespace: self)

    def shard(self, partition: int) -> str:
        return f"t_{partition}"

    def open_shard(self, shard: str) -> SimpleNamespace:
        leader = self.leaders[int(shard.removeprefix("t_"))]
        return SimpleNamespace(entry=SimpleNamespace(meta=SimpleNamespace(leader=leader)))

    def shard_info(self, _topic: str, partition: int, *, namespace: str) -> ShardInfo:
        assert namespace == "default"
        self.asked.append(partition)
        error = self.errors.get(self.leaders[partition])
        if error is not None:
            raise error
        return ShardInfo(ShardId("t", partition), Offset(2), Offset(10), Offset(12), 100)


def lag(partitions: Partitions) -> tuple[dict[int, int], dict[int, str]]:
    offsets = {("orders", partition): Offset(1 + partition) for partition in partitions.leaders}
    known, problems = lag_of(cast("StorageDriverManager", partitions), offsets, "default")
    return {at[1]: one for at, one in known.items()}, {at[1]: one for at, one in problems.items()}


def test_partitions_of_a_node_that_is_away_are_left_out_and_it_is_asked_once() -> None:
    partitions = Partitions({0: 1, 1: 2, 2: 1, 3: 2, 4: None})
    partitions.errors = {2: DeadlineError("no answer"), None: NotLeaderError("t_4", leader=None)}
    known, problems = lag(partitions)
    assert known == {0: 8, 2: 7}
    assert list(problems) == [1, 3, 4]
    assert problems[1] == problems[3] == "no answer"
    assert partitions.asked == [0, 1, 2, 4]


def test_damage_is_not_taken_for_a_node_that_is_away() -> None:
    partitions = Partitions({0: 1})
    partitions.errors = {1: CorruptionError("file", position=0, reason="flipped")}
    with pytest.raises(CorruptionError):
        lag(partitions)
