"""Many threads together: each gets exactly its own results."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.engine.contract import StorageEngine, Written
from penstock.errors import UnknownShardError
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.conformance.harness import (
    FIRST,
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    offsets,
    put,
    read_all,
)

WRITERS = 64


def together(count: int, work: Callable[[int], None]) -> None:
    """Run `work` with every number below `count`, each in a thread; raise what any raised."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(run, number) for number in range(count)]:
            done.result()


class Concurrency(Conformance):
    def test_64_writers_on_one_shard_each_get_exactly_their_own_offsets(
        self, engine: StorageEngine
    ) -> None:
        claims: list[list[tuple[Written, list[bytes]]]] = [[] for _ in range(WRITERS)]

        def write(writer: int) -> None:
            choose = random.Random(writer)
            for turn in range(10):
                own = [b"%d/%d/%d" % (writer, turn, n) for n in range(choose.randint(1, 5))]
                if len(own) == 1:
                    written = engine.write(SHARD, Record(value=own[0]))
                else:
                    written = engine.batch_write(SHARD, [Record(value=value) for value in own])
                claims[writer].append((written, own))

        together(WRITERS, write)
        stored = {record.offset: record.value for record in read_all(engine)}
        assert sorted(stored) == list(range(len(stored)))
        for mine in claims:
            firsts = [written.first for written, _ in mine]
            assert firsts == sorted(firsts)
            for written, own in mine:
                assert written.count == len(own)
                assert [stored.pop(Offset(offset)) for offset in written.offsets] == own
        assert stored == {}

    def test_readers_see_only_whole_batches_in_order_while_others_write(
        self, engine: StorageEngine
    ) -> None:
        done = threading.Event()

        def work(number: int) -> None:
            if number < 4:
                for turn in range(40):
                    record = Record(value=b"%d %d" % (number, turn), key=b"k", tags=("t",))
                    engine.batch_write(SHARD, [record] * 5)
                    if number == 0 and turn == 39:
                        done.set()
                return
            while not done.is_set():
                records = read_all(engine)
                assert offsets(records) == list(range(len(records)))
                assert len(records) % 5 == 0
                tagged = engine.read_by_tag(SHARD, "t", max_records=10_000)
                assert offsets(tagged) == list(range(len(tagged)))
                assert len(tagged) >= len(records)
                newest = engine.read_by_key(SHARD, b"k")
                assert newest is None or newest.offset >= len(tagged) - 1

        together(6, work)
        assert bounds(engine) == (0, 800)

    def test_one_write_sent_by_many_threads_is_written_once(self, engine: StorageEngine) -> None:
        results: list[Written] = []

        def send(_: int) -> None:
            for sequence in range(4):
                record = Record(value=b"%d" % sequence)
                results.append(engine.write(SHARD, record, producer=Producer(1, 0, sequence)))

        together(16, send)
        assert bounds(engine) == (0, 4)
        assert sum(not written.repeated for written in results) == 4
        assert {written.first for written in results} == {0, 1, 2, 3}

    def test_every_record_is_deleted_by_exactly_one_of_many(self, engine: StorageEngine) -> None:
        put(engine, *[Record(value=b"v", key=b"k", tags=("t",))] * 40)
        counts = [0] * 8

        def delete(number: int) -> None:
            for offset in range(40):
                counts[number] += engine.delete_by_offset(SHARD, Offset(offset))
            counts[number] += engine.delete_by_key(SHARD, b"k")

        together(8, delete)
        assert sum(counts) == 40
        assert read_all(engine) == []

    def test_a_shard_may_be_deleted_and_created_while_others_use_it(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        shard = ShardId("restless", 0)

        def work(number: int) -> None:
            for turn in range(25):
                if number == 0:
                    engine.create_shard(shard, harness.config())
                    engine.delete_shard(shard)
                    continue
                try:
                    record = Record(value=b"v", key=b"%d" % turn, tags=("t",))
                    written = engine.batch_write(shard, [record] * 3)
                    assert written.first % 3 == 0
                    assert len(engine.read_by_offset(shard, FIRST)) % 3 == 0
                    engine.read_by_tag(shard, "t")
                    engine.read_by_key(shard, b"%d" % turn)
                except UnknownShardError:
                    pass

        together(4, work)
        engine.create_shard(shard, harness.config())
        assert bounds(engine, shard) == (0, 0)
        assert read_all(engine, shard) == []
