"""Topics: created, altered, deleted, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.adapter.bench import Bench

from penstock.adapter.requests import DeleteBefore, ReadByKey, ReadByTag
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    BusyError,
    DeadlineError,
    DiskFailedError,
    DiskFullError,
    StaleWriteError,
    StoreError,
    UnknownTopicError,
)
from penstock.meta.client import Topic, Update
from penstock.meta.events import TopicPut
from penstock.record import Offset, Record, ShardId

FULL = DiskFullError("no room for another shard")


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


def nothing_is_left(bench: Bench, name: str) -> None:
    assert bench.meta.list_topics() == []
    assert bench.meta.list_deleting_topics() == []
    assert bench.meta.list_shards() == []
    assert bench.engine.list_shard() == []
    assert bench.storage_cache.shards == {}
    with pytest.raises(UnknownTopicError):
        bench.routes.find(name)


class TestCreating:
    def test_a_topic_can_be_written_when_the_call_returns(self, bench: Bench) -> None:
        topic_id = bench.create("orders", 3)
        for partition in range(3):
            where = bench.manager.write("orders", Record(b"v"), partition=partition)
            assert where == (partition, 0)
        assert sorted(bench.storage_cache.shards) == [f"{topic_id}_{n}" for n in range(3)]

    def test_a_name_is_given_once_in_a_namespace(self, bench: Bench) -> None:
        bench.create("orders")
        with pytest.raises(AlreadyExistsError):
            bench.create("orders")
        bench.admin.create_topic_full("orders", 1, {"storage": "memory"}, namespace="other")
        assert len(bench.broker_cache.list_topics()) == 2
        assert len(bench.broker_cache.list_topics("other")) == 1

    @pytest.mark.parametrize("partition", [0, 2, 4])
    @pytest.mark.parametrize("error", [FULL, DiskFailedError("disk", "gone"), BusyError("busy")])
    def test_a_creation_that_an_engine_cannot_finish_is_undone(
        self, bench: Bench, partition: int, error: StoreError
    ) -> None:
        bench.engine.fails_at = {partition: error}
        with pytest.raises(type(error)):
            bench.create("orders", 5)
        nothing_is_left(bench, "orders")
        bench.engine.fails_at = {}
        bench.create("orders", 5)
        assert len(bench.engine.list_shard()) == 5

    def test_an_interrupted_creation_is_undone_too(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(bench.handler, "open_shard", interrupt)
            with pytest.raises(KeyboardInterrupt):
                bench.create("orders", 2)
        nothing_is_left(bench, "orders")

    def test_waiting_for_the_topic_ends_after_30_seconds_and_undoes_it(self, bench: Bench) -> None:
        bench.is_deaf = True
        error = self.fails_after(bench, 30)
        assert "30 s" in str(error)
        assert bench.meta.list_topics() == []
        assert bench.meta.list_shards() == []

    def test_waiting_for_the_shards_ends_after_3_seconds_and_undoes_it(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take_over = bench.storage_cache.apply

        def without_shards(update: Update) -> None:
            events = tuple(one for one in update.events if isinstance(one, TopicPut))
            take_over(replace(update, events=events))

        monkeypatch.setattr(bench.storage_cache, "apply", without_shards)
        error = self.fails_after(bench, 3)
        assert "3 s" in str(error)
        assert bench.meta.list_topics() == []
        assert bench.meta.list_shards() == []
        assert bench.engine.list_shard() == []

    def fails_after(self, bench: Bench, seconds: int) -> StoreError:
        errors: list[StoreError] = []

        def create() -> None:
            try:
                bench.create("orders", 2)
            except StoreError as error:
                errors.append(error)

        creating = threading.Thread(target=create)
        creating.start()
        while bench.clock.waiting == 0:
            pass
        bench.clock.advance(seconds - 1)
        creating.join(0.05)
        assert errors == []
        bench.clock.advance(1)
        creating.join()
        assert isinstance(errors[0], DeadlineError)
        return errors[0]

    def test_the_news_may_come_late(self, bench: Bench) -> None:
        bench.is_deaf = True
        creating = threading.Thread(target=bench.create, args=("orders", 2))
        creating.start()
        while not bench.unheard:
            pass
        bench.clock.advance(20)
        bench.is_deaf = False
        for update in bench.unheard:
            bench.take_over(update)
        creating.join()
        assert bench.routes.find("orders").partitions == 2

    @pytest.mark.parametrize(
        ("name", "partitions", "options", "message"),
        [
            ("", 1, {}, "1 to 1000 characters"),
            ("n" * 1001, 1, {}, "1 to 1000 characters"),
            (7, 1, {}, "a topic's name"),
            ("t", 0, {}, "1 to 10000 partitions"),
            ("t", -1, {}, "1 to 10000 partitions"),
            ("t", 10_001, {}, "1 to 10000 partitions"),
            ("t", "3", {}, "partitions is a number"),
            ("t", True, {}, "partitions is a number"),
            ("t", 1, {"storag": "memory"}, "did you mean 'storage'"),
            ("t", 1, {"storage": "tape"}, "tape"),
            ("t", 1, {"storage": 7}, "storage: Expected `str`"),
            ("t", 1, {"flush": "sometimes"}, "sometimes"),
            ("t", 1, {"cleanup": "never"}, "never"),
            ("t", 1, {"partitioner": "random"}, "random"),
            ("t", 1, {"queue": "priority"}, "priority"),
            ("t", 1, {"retention_ms": 0}, "retention_ms"),
            ("t", 1, {"retention_bytes": -2}, "retention_bytes: Expected `int` >= -1"),
            ("t", 1, {"retention_records": "many"}, "retention_records"),
            ("t", 1, {"record_size_max": 1 << 30}, "engine.record_size_max"),
            ("t", 1, {"min_insync": 2}, "min_insync"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(
        self,
        bench: Bench,
        name: str,
        partitions: int,
        options: dict[str, object],
        message: str,
    ) -> None:
        with pytest.raises(BadRequestError, match=message):
            bench.admin.create_topic_full(name, partitions, {"storage": "memory", **options})
        assert bench.meta.list_topics() == []

    @pytest.mark.parametrize("name", ["a/b", "名", "a b", "%", "..", "x" * 1000, "🚢", "a_0", "\n"])
    def test_a_topic_may_be_called_anything(self, bench: Bench, name: str) -> None:
        bench.create(name, 2)
        bench.manager.batch_write(name, [Record(b"v")] * 4)
        assert bench.broker_cache.get_topic(name).name == name
        assert bench.manager.shard_info(name, 1).latest == 2

    def test_ten_threads_create_one_topic_once(self, bench: Bench) -> None:
        outcomes: list[str] = []

        def create() -> None:
            try:
                outcomes.append(bench.create("orders", 2))
            except AlreadyExistsError:
                outcomes.append("exists")

        threads = [threading.Thread(target=create) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes).count("exists") == 9
        assert len(bench.engine.list_shard()) == 2


class TestAltering:
    def test_what_is_not_named_stays(self, bench: Bench) -> None:
        bench.create("orders", 2, retention_ms=5, cleanup="compact")
        altered = bench.admin.alter_topic("orders", options={"retention_bytes": 7, "flush": "sync"})
        config = altered.config
        assert (config.retention_ms, config.retention_bytes, config.cleanup, config.flush) == (
            5,
            7,
            "compact",
            "SYNC_FLUSH",
        )
        assert altered.partitions == 2
        again = bench.admin.alter_topic("orders", options={"retention_ms": None})
        assert again.config.retention_ms is None

    def test_the_engines_use_the_new_configuration_at_once(self, bench: Bench) -> None:
        bench.create("orders", 2)
        bench.admin.alter_topic("orders", options={"record_size_max": 3})
        for partition in range(2):
            with pytest.raises(StoreError, match="the limit is 3"):
                bench.manager.write("orders", Record(b"four"), partition=partition)

    def test_partitions_grow_and_never_shrink(self, bench: Bench) -> None:
        bench.create("orders", 2)
        bench.admin.alter_topic("orders", partitions=5)
        assert bench.manager.write("orders", Record(b"v"), partition=4) == (4, 0)
        with pytest.raises(BadRequestError, match="cannot become fewer"):
            bench.admin.alter_topic("orders", partitions=3)
        assert bench.routes.find("orders").partitions == 5

    def test_while_it_grows_a_topic_is_written_on_the_partitions_it_had(self, bench: Bench) -> None:
        bench.create("orders", 2, partitioner="key")
        keys = [b"%d" % n for n in range(20)]
        before = [bench.manager.write("orders", Record(b"v", key=k)).partition for k in keys]
        bench.engine.fails_at = {4: FULL}
        with pytest.raises(DiskFullError):
            bench.admin.alter_topic("orders", partitions=6)
        assert bench.routes.find("orders").partitions == 2
        after = [bench.manager.write("orders", Record(b"v", key=k)).partition for k in keys]
        assert after == before
        bench.engine.fails_at = {}
        bench.admin.create_storage_resource(bench.broker_cache.get_topic("orders"))
        assert bench.routes.find("orders").partitions == 6

    @pytest.mark.parametrize("option", [{"storage": "rocksdb"}, {"queue": "batch"}])
    def test_what_is_fixed_cannot_be_altered(self, bench: Bench, option: dict[str, str]) -> None:
        bench.create("orders")
        with pytest.raises(BadRequestError, match="cannot be altered"):
            bench.admin.alter_topic("orders", options=option)

    def test_a_change_can_be_bound_to_what_was_seen(self, bench: Bench) -> None:
        bench.create("orders")
        seen = bench.broker_cache.get_topic("orders").revision
        bench.admin.alter_topic("orders", options={"retention_ms": 1}, expected_revision=seen)
        with pytest.raises(StaleWriteError):
            bench.admin.alter_topic("orders", options={"retention_ms": 2}, expected_revision=seen)

    def test_a_topic_deleted_meanwhile_is_unknown_at_once(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.create("orders", 2)
        alter = bench.meta.alter_topic

        def alter_and_delete(topic_id: str, *, partitions: int, **_: object) -> Topic:
            altered = alter(topic_id, partitions=partitions)
            bench.meta.delete_topic(topic_id)
            return altered

        monkeypatch.setattr(bench.meta, "alter_topic", alter_and_delete)
        with pytest.raises(UnknownTopicError):
            bench.admin.alter_topic("orders", partitions=3)

    def test_a_topic_that_does_not_exist_cannot_be_altered(self, bench: Bench) -> None:
        with pytest.raises(UnknownTopicError):
            bench.admin.alter_topic("nothing", partitions=2)


class TestDeleting:
    def test_nothing_is_left_of_a_deleted_topic(self, bench: Bench) -> None:
        bench.create("orders", 3)
        bench.manager.batch_write("orders", [Record(b"v")] * 6)
        bench.offsets.commit_offset("billing", {("orders", 1): 2})
        bench.admin.delete_topic("orders")
        nothing_is_left(bench, "orders")
        assert bench.offset_manager.get_offsets("billing") == {}
        with pytest.raises(UnknownTopicError):
            bench.admin.delete_topic("orders")
        with pytest.raises(UnknownTopicError):
            bench.manager.write("orders", Record(b"v"))

    def test_a_topic_created_again_sees_nothing_of_the_old_one(self, bench: Bench) -> None:
        first = bench.create("orders", 2)
        bench.manager.batch_write("orders", [Record(b"old", key=b"k", tags=("t",))] * 6)
        bench.offsets.commit_offset("billing", {("orders", 0): 3})
        bench.admin.delete_topic("orders")
        assert bench.create("orders", 2) != first
        assert bench.manager.execute(ReadByKey("orders", b"k")) is None
        assert bench.manager.execute(ReadByTag("orders", "t")) == []
        assert bench.manager.read_by_offset("orders", 0, Offset(0)) == []
        assert bench.offsets.get_offset_by_group("billing") == {}
        assert bench.manager.write("orders", Record(b"new"), partition=0).offset == 0

    def test_what_an_engine_cannot_delete_is_deleted_later(self, bench: Bench) -> None:
        topic_id = bench.create("orders", 2)
        bench.engine.fails_to_delete = FULL
        bench.admin.delete_topic("orders")
        with pytest.raises(UnknownTopicError):
            bench.routes.find("orders")
        assert [topic.topic_id for topic in bench.meta.list_deleting_topics()] == [topic_id]
        bench.create("orders", 1)
        bench.engine.fails_to_delete = None
        assert bench.admin.finish_deletions() == 1
        assert len(bench.engine.list_shard()) == 1
        assert bench.meta.list_deleting_topics() == []

    def test_a_shard_that_cannot_be_deleted_keeps_no_other_one(self, bench: Bench) -> None:
        topic_id = bench.create("orders", 3)
        bench.engine.fails_to_delete_at[1] = FULL
        bench.admin.delete_topic("orders")
        left = [ShardId(topic_id, 1)]
        assert bench.engine.list_shard() == left
        assert [shard.id for shard in bench.meta.list_shards(topic_id)] == left
        bench.engine.fails_to_delete_at.clear()
        assert bench.admin.finish_deletions() == 1
        assert bench.engine.list_shard() == []


class TestDescribing:
    def test_a_description_has_the_bounds_of_every_partition(self, bench: Bench) -> None:
        bench.create("orders", 2)
        bench.manager.batch_write("orders", [Record(b"v")] * 3, partition=1)
        bench.manager.execute(DeleteBefore("orders", 1, Offset(2)))
        described = bench.admin.describe_topic("orders")
        bounds = [(one.info.earliest, one.info.latest) for one in described.partitions]
        assert bounds == [(0, 0), (2, 3)]
        assert [(p.leader, p.replicas, p.segments) for p in described.partitions] == [
            (1, (1,), 1)
        ] * 2
