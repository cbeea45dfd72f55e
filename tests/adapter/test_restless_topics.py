"""Topics come and go while others write, read and commit."""

from __future__ import annotations

import random
import threading

from tests.adapter.bench import Bench

from penstock.adapter.requests import ReadByKey
from penstock.errors import AlreadyExistsError, BusyError, RequestError
from penstock.record import Offset, Record

NAMES = ["a", "b", "c"]


class Restless:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.failures: list[BaseException] = []
        self.writes = 0

    def administrate(self, choose: random.Random) -> None:
        name = choose.choice(NAMES)
        match choose.randrange(3):
            case 0:
                self.bench.create(name, choose.randint(1, 3))
            case 1:
                self.bench.admin.delete_topic(name)
            case _:
                self.bench.admin.alter_topic(name, partitions=choose.randint(1, 4))

    def use(self, choose: random.Random) -> None:
        name = choose.choice(NAMES)
        batch = [Record(name.encode(), key=b"k")] * choose.randint(1, 5)
        places = self.bench.manager.batch_write(name, batch)
        self.writes += 1
        partition, offset = places[0]
        for record in self.bench.manager.read_by_offset(name, partition, Offset(0)):
            assert record.value == name.encode(), "another topic's record"
        newest = self.bench.manager.execute(ReadByKey(name, b"k"))
        assert newest is None or newest.value == name.encode()
        self.bench.offsets.commit_offset("g", {(name, partition): offset})

    def run(self, seed: int) -> None:
        choose = random.Random(seed)
        step = self.administrate if seed % 4 == 0 else self.use
        for _ in range(150):
            try:
                step(choose)
            except (RequestError, BusyError, AlreadyExistsError):
                pass  # it has just gone, is being made, or is there
            except BaseException as error:
                self.failures.append(error)
                raise


def test_nobody_sees_another_topics_records_and_nothing_is_left_over() -> None:
    with Bench() as bench:
        for name in NAMES:
            bench.create(name, 2)
        restless = Restless(bench)
        threads = [threading.Thread(target=restless.run, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert restless.failures == []
        assert restless.writes > 0
        topics = bench.meta.list_topics()
        assert bench.broker_cache.list_topics() == topics
        expected = sorted(
            (topic.topic_id, partition) for topic in topics for partition in range(topic.partitions)
        )
        assert bench.engine.list_shard() == expected
        assert sorted(bench.storage_cache.shards) == sorted(f"{t}_{p}" for t, p in expected)
        for name in [topic.name for topic in topics]:
            bench.admin.delete_topic(name)
        assert bench.engine.list_shard() == []
        assert bench.offset_manager.get_offsets("g") == {}
