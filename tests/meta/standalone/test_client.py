"""The meta service of one node, through `MetaClient`, on a real RocksDB."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    ClosedError,
    LockedError,
    NotAStoreError,
    StaleWriteError,
    UnknownGroupError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.meta.client import (
    GroupName,
    GroupOffsets,
    MetaClient,
    NewOffset,
    NewTopic,
    OffsetEntry,
    Topic,
    TopicConfig,
    Update,
)
from penstock.meta.events import NodePut, SegmentPut, ShardPut, TopicDeleted, TopicPut
from penstock.meta.identifiers import make_topic_id, make_ulid
from penstock.meta.rejections import encode_checked
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.constants import PLUGIN_STORAGE_ROLE
from penstock.meta.state.metadata import commands
from penstock.meta.state.metadata import machine as metadata
from penstock.meta.storage.database import Database
from penstock.record import ShardId
from penstock.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(tmp_path: Path, clock: ManualClock) -> Iterator[StandaloneMetaClient]:
    with StandaloneMetaClient.open(str(tmp_path / "meta"), clock=clock) as client:
        yield client


def reopen(client: StandaloneMetaClient, path: Path) -> StandaloneMetaClient:
    client.close()
    return StandaloneMetaClient.open(str(path / "meta"))


def entry(shard: str, offset: int, epoch: int, sequence: int) -> OffsetEntry:
    return OffsetEntry(shard, offset, epoch, sequence, 1_000)


def save(client: MetaClient, group: str, *entries: OffsetEntry) -> int:
    return len(client.save_offsets([GroupOffsets("default", group, entries)]))


def test_a_standalone_client_is_a_meta_client(client: StandaloneMetaClient) -> None:
    service: MetaClient = client
    assert service.node_id == 1


def test_a_created_topic_has_an_id_shards_and_first_segments(client: StandaloneMetaClient) -> None:
    topic = client.create_topic("Orders/EU 1", partitions=3)
    assert topic.topic_id.startswith("orders-eu-1-01")
    assert client.get_topic("Orders/EU 1") == topic
    assert client.get_topic_by_id(topic.topic_id) == topic
    shards = client.list_shards(topic.topic_id)
    assert [shard.partition for shard in shards] == [0, 1, 2]
    assert {shard.leader for shard in shards} == {client.node_id}
    (segment,) = client.list_segments(shards[2].id)
    assert (segment.start_offset, segment.status) == (0, "write")


def test_a_topic_can_be_placed_step_by_step(client: StandaloneMetaClient) -> None:
    topic = client.placement_create_topic("orders", partitions=2)
    assert client.list_shards(topic.topic_id) == []
    shard = client.create_shard(ShardId(topic.topic_id, 1))
    assert client.create_shard(ShardId(topic.topic_id, 1)) == shard
    assert client.get_shard(ShardId(topic.topic_id, 0)) is None
    with pytest.raises(BadRequestError):
        client.create_shard(ShardId(topic.topic_id, 2))


def test_a_topic_of_many_partitions_is_created_in_parts(client: StandaloneMetaClient) -> None:
    topic = client.create_topic("wide", partitions=2_500)
    assert len(client.list_shards(topic.topic_id)) == 2_500
    client.alter_topic(topic.topic_id, partitions=4_000)
    assert len(client.list_shards(topic.topic_id)) == 4_000


def test_many_topics_are_created_with_one_synced_write(
    client: StandaloneMetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("there")
    syncs: list[int] = []
    sync = Database.sync

    def counted(database: Database) -> None:
        syncs.append(1)
        sync(database)

    monkeypatch.setattr(Database, "sync", counted)
    config = TopicConfig()
    wanted = [NewTopic(f"t{n}", 1 + n % 3, config) for n in range(100)]
    wanted[7] = NewTopic("there", 1, config)
    wanted[8] = NewTopic("", 1, config)
    wanted[9] = NewTopic("wide", 2_500, config)
    made = client.create_topics(wanted)
    assert len(syncs) <= 8, "one for all, and some for the other shards of the wide one"
    assert isinstance(made[7], AlreadyExistsError)
    assert isinstance(made[8], BadRequestError)
    for topic, one in zip(made, wanted, strict=True):
        if isinstance(topic, Topic):
            assert (topic.name, topic.partitions) == (one.name, one.partitions)
            shards = client.list_shards(topic.topic_id)
            assert [shard.partition for shard in shards] == list(range(one.partitions))
    assert sum(isinstance(topic, Topic) for topic in made) == 98
    assert client.create_topics([]) == []


@pytest.mark.parametrize(
    ("alias", "full"),
    [
        ("memory", "EngineMemory"),
        ("rocksdb", "EngineRocksDB"),
        ("segment", "EngineSegment"),
        ("EngineRocksDB", "EngineRocksDB"),
    ],
)
def test_storage_types_have_short_names(
    client: StandaloneMetaClient, alias: str, full: str
) -> None:
    topic = client.create_topic("t", config=TopicConfig(storage_type=alias))
    assert topic.config.storage_type == full


def test_a_topic_created_again_is_another_one(client: StandaloneMetaClient) -> None:
    first = client.create_topic("orders")
    with pytest.raises(AlreadyExistsError):
        client.create_topic("orders")
    client.delete_topic(first.topic_id)
    assert client.get_topic("orders") is None
    second = client.create_topic("orders")
    assert second.topic_id != first.topic_id
    assert client.list_topics() == [second]
    assert [topic.topic_id for topic in client.list_deleting_topics()] == [first.topic_id]
    client.delete_shard(ShardId(first.topic_id, 0))
    client.delete_shard(ShardId(first.topic_id, 0))
    assert client.list_deleting_topics() == []


def test_names_may_hold_any_characters(client: StandaloneMetaClient) -> None:
    names = ["a", "a/b", "a\0b", "a\0", "é€😀", "_", " ", "x" * 60_000, "%ctl", "a_0"]
    for name in names:
        client.create_topic(name, namespace=name)
    assert sorted(topic.name for topic in client.list_topics()) == sorted(names)
    for name in names:
        assert [topic.name for topic in client.list_topics(name)] == [name]
        epoch = client.claim_groups([GroupName(name, name)])[0].epoch
        client.save_offsets([GroupOffsets(name, name, (entry(name, 5, epoch, 1),))])
        assert list(client.get_offsets(name, name)) == [name]


BAD_CALLS: dict[str, Callable[[StandaloneMetaClient], object]] = {
    "empty topic name": lambda c: c.create_topic(""),
    "half a surrogate pair": lambda c: c.create_topic("a\ud800"),
    "reading half a surrogate pair": lambda c: c.get_topic("a\ud800"),
    "a number for a name": lambda c: c.create_topic(5),  # type: ignore[arg-type]  # on purpose
    "no partitions": lambda c: c.create_topic("t", partitions=0),
    "negative partitions": lambda c: c.create_topic("t", partitions=-1),
    "a text for partitions": lambda c: c.create_topic("t", partitions="2"),  # type: ignore[arg-type]  # on purpose
    "too many partitions": lambda c: c.create_topic("t", partitions=10_001),
    "an immense number": lambda c: c.create_topic("t", config=TopicConfig(retention_ms=1 << 70)),
    "negative retention": lambda c: c.create_topic("t", config=TopicConfig(retention_ms=-2)),
    "unknown storage": lambda c: c.create_topic("t", config=TopicConfig(storage_type="tape")),
    "no config": lambda c: c.create_topic("t", config={}),  # type: ignore[arg-type]  # on purpose
    "no producer ids": lambda c: c.allocate_producer_ids(0),
    "negative partition": lambda c: c.get_shard(ShardId("t", -1)),
    "empty group": lambda c: c.get_offsets("default", ""),
    "no group": lambda c: c.get_offset("default", None, "s"),  # type: ignore[arg-type]  # on purpose
    "negative offset": lambda c: save(c, "g", entry("s", -1, 1, 1)),
    "epoch nobody was given": lambda c: save(c, "g", entry("s", 1, 999, 1)),
    "long metadata": lambda c: save(c, "g", OffsetEntry("s", 1, 1, 1, 1, -1, "x" * 4_097)),
    "no reset": lambda c: c.reset_offsets("default", "g", []),
    "immense request id": lambda c: c.allocate_producer_ids(1, request_id="x" * 1_000),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_and_the_client_stays_usable(
    client: StandaloneMetaClient, name: str
) -> None:
    before = client.revision()
    with pytest.raises(BadRequestError):
        BAD_CALLS[name](client)
    assert client.revision() == before
    client.create_topic("fine")


def test_what_does_not_exist_has_its_own_error(client: StandaloneMetaClient) -> None:
    with pytest.raises(UnknownTopicError):
        client.alter_topic("gone-1", partitions=2)
    with pytest.raises(UnknownTopicError):
        client.delete_topic("gone-1")
    with pytest.raises(UnknownTopicError):
        client.create_shard(ShardId("gone-1", 0))
    with pytest.raises(UnknownShardError):
        client.next_segment(ShardId("gone-1", 0), 0, 10)
    with pytest.raises(UnknownGroupError):
        client.delete_group("default", "nobody")
    assert client.get_offsets("default", "nobody") == {}
    assert client.get_group("default", "nobody") is None


def test_a_topic_is_altered_only_if_nobody_changed_it_since(client: StandaloneMetaClient) -> None:
    topic = client.create_topic("orders")
    altered = client.alter_topic(
        topic.topic_id, config=TopicConfig(cleanup="compact"), expected_revision=topic.revision
    )
    with pytest.raises(StaleWriteError):
        client.alter_topic(topic.topic_id, partitions=2, expected_revision=topic.revision)
    client.alter_topic(topic.topic_id, partitions=2, expected_revision=altered.revision)


def test_segments_roll_and_seal(client: StandaloneMetaClient) -> None:
    shard = ShardId(client.create_topic("orders").topic_id, 0)
    opened = client.next_segment(shard, 0, 100, epoch=0)
    assert (opened.number, opened.start_offset) == (1, 100)
    assert client.next_segment(shard, 0, 100) == opened
    sealed = client.seal_segment(shard, 1, 150)
    assert (sealed.status, sealed.end_offset) == ("sealed", 150)
    client.next_segment(shard, 1, 150)
    for status in ("pre-delete", "deleting"):
        client.set_segment_status(shard, 0, status)
    client.delete_segments(shard, 1)
    assert [segment.number for segment in client.list_segments(shard)] == [1, 2]
    led = client.assign_leader(shard, 1, 5)
    assert led.leader_epoch == 5
    assert led.in_sync == (1,)


def test_leases_are_fenced_by_epochs_and_run_out(
    client: StandaloneMetaClient, clock: ManualClock
) -> None:
    shard = ShardId(client.create_topic("orders").topic_id, 0)
    lease = client.acquire_lease(shard, "broker", 1_000)
    assert lease is not None
    assert client.acquire_lease(shard, "spark", 1_000) is None
    clock.advance(milliseconds=900)
    lease = client.renew_lease(lease, 1_000)
    clock.advance(milliseconds=1_001)
    taken = client.acquire_lease(shard, "spark", 1_000)
    assert taken is not None
    assert taken.epoch > lease.epoch
    with pytest.raises(StaleWriteError):
        client.renew_lease(lease, 1_000)
    with pytest.raises(StaleWriteError):
        client.release_lease(lease)
    client.release_lease(taken)
    assert client.acquire_lease(shard, "broker", 1_000) is not None


def test_plugin_storage_waits_until_every_node_accepts_it(client: StandaloneMetaClient) -> None:
    plugin = TopicConfig(storage_type="plugin:sqlite")
    client.create_topic("alone", config=plugin)
    client.register_node("host-1:9093", roles=["meta", PLUGIN_STORAGE_ROLE])
    client.create_topic("upgraded", config=plugin)
    client.register_node("host-1:9093", roles=["meta"])  # as an older release registers
    with pytest.raises(BadRequestError, match=r"have not said to accept: 1; upgrade them"):
        client.create_topic("mixed", config=plugin)
    with pytest.raises(BadRequestError, match="have not said to accept: 1"):
        client.placement_create_topic("mixed", config=plugin)
    (outcome,) = client.create_topics([NewTopic("mixed", 1, plugin)])
    assert isinstance(outcome, BadRequestError)
    assert client.create_topic("mixed").config.storage_type == "EngineSegment"
    client.remove_node(1)
    client.create_topic("without the older node", config=plugin)


def test_a_member_that_has_not_registered_yet_may_be_of_an_older_release(
    client: StandaloneMetaClient,
) -> None:
    member = commands.Request(1, commands.PutMember(2, "host-2:9093", "incarnation"))
    client._group.propose(encode_checked(member))
    with pytest.raises(BadRequestError, match="have not said to accept: 2"):
        client.create_topic("orders", config=TopicConfig(storage_type="plugin:sqlite"))


def test_everything_is_there_after_a_restart(client: StandaloneMetaClient, tmp_path: Path) -> None:
    topic = client.create_topic("orders", partitions=2)
    client.register_node("localhost:1", listeners={"kafka": "localhost:2"}, roles=["meta"])
    ids = client.allocate_producer_ids(100)
    epoch = client.claim_groups([GroupName("default", "g")])[0].epoch
    for number in range(3):
        save(client, "g", entry(f"{topic.topic_id}_{number}", number, epoch, number))
    nodes, revision, identity = client.list_nodes(), client.revision(), client.cluster_id
    again = reopen(client, tmp_path)
    assert again.list_topics() == [topic]
    assert len(again.list_shards()) == 2
    assert again.list_nodes() == nodes
    assert again.revision() == revision
    assert again.cluster_id == identity
    assert again.allocate_producer_ids(1).start == ids.stop
    assert len(again.get_offsets("default", "g")) == 3
    assert again.claim_groups([GroupName("default", "h")])[0].epoch == epoch + 1
    again.close()


def test_a_directory_has_one_owner(client: StandaloneMetaClient, tmp_path: Path) -> None:
    with pytest.raises(LockedError):
        StandaloneMetaClient.open(str(tmp_path / "meta"))
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.create_topic("late")
    with pytest.raises(ClosedError):
        client.list_topics()
    with pytest.raises(NotAStoreError, match="belongs to node 1"):
        StandaloneMetaClient.open(str(tmp_path / "meta"), node_id=2)
    StandaloneMetaClient.open(str(tmp_path / "meta")).close()


def test_a_request_sent_again_is_done_once(client: StandaloneMetaClient) -> None:
    first = client.create_topic("orders", request_id="r1")
    assert client.create_topic("orders", request_id="r1").topic_id == first.topic_id
    assert client.allocate_producer_ids(5, request_id="r2") == client.allocate_producer_ids(
        5, request_id="r2"
    )
    epoch = client.reset_offsets("default", "g", [NewOffset("s_0", 1)], request_id="r3")
    assert client.reset_offsets("default", "g", [NewOffset("s_0", 1)], request_id="r3") == epoch


def test_a_large_save_is_split_and_complete(client: StandaloneMetaClient) -> None:
    epoch = client.claim_groups([GroupName("default", "g")])[0].epoch
    entries = [entry(f"shard-{number:05}_0", number, epoch, number) for number in range(9_000)]
    notes = [OffsetEntry(f"note-{n}_0", n, epoch, n, 1, -1, "€" * 4_096) for n in range(60)]
    assert save(client, "g", *entries, *notes) == 0
    found = client.get_offsets("default", "g")
    assert len(found) == 9_060
    assert found["shard-08999_0"].offset == 8_999
    assert found["note-59_0"].metadata == "€" * 4_096
    assert save(client, "g", entry("shard-00001_0", 0, epoch, 0)) == 1


def test_groups_are_listed_deleted_and_expire(client: StandaloneMetaClient) -> None:
    names = [GroupName("default", "a"), GroupName("default", "b"), GroupName("other", "a")]
    epochs = [taken.epoch for taken in client.claim_groups(names)]
    for name, epoch in zip(names, epochs, strict=True):
        offsets = GroupOffsets(name.namespace, name.group, (entry("s_0", 1, epoch, 1),))
        client.save_offsets([offsets])
    assert [(one.namespace, one.group) for one in client.list_groups()] == [
        ("default", "a"),
        ("default", "b"),
        ("other", "a"),
    ]
    assert [one.group for one in client.list_groups("default")] == ["a", "b"]
    client.delete_group("default", "a")
    assert client.get_offset("default", "a", "s_0") is None
    assert client.get_group("default", "a") is None
    with pytest.raises(UnknownGroupError):
        client.delete_group("default", "a")
    future = 1 << 50
    assert client.expire_groups(0) == []
    expired = client.expire_groups(future, keep=[GroupName("default", "b")])
    assert expired == [GroupName("default", "a"), GroupName("other", "a")]
    assert [one.group for one in client.list_groups()] == ["b"]


def test_groups_with_more_offsets_than_one_command_removes_go_whole(
    client: StandaloneMetaClient,
) -> None:
    names = [GroupName("default", "big"), GroupName("default", "idle")]
    epochs = [taken.epoch for taken in client.claim_groups(names)]
    for name, epoch in zip(names, epochs, strict=True):
        save(client, name.group, *[entry(f"s{n}_0", n, epoch, n) for n in range(5_500)])
    client.delete_group("default", "big")
    assert client.get_offsets("default", "big") == {}
    assert client.expire_groups(1 << 50) == names
    assert client.list_groups() == []


def test_offsets_of_a_deleted_topic_are_forgotten(client: StandaloneMetaClient) -> None:
    epoch = client.claim_groups([GroupName("default", "g")])[0].epoch
    shards = ["orders-1_0", "orders-1_1", "orders-11_0", "orders-1_x_0", "orders_1"]
    save(client, "g", *[entry(shard, 1, epoch, n) for n, shard in enumerate(shards)])
    assert client.delete_topic_offsets("orders-1") == 2
    left = ["orders-11_0", "orders-1_x_0", "orders_1"]
    assert sorted(client.get_offsets("default", "g")) == left


def test_several_offset_groups_hold_each_group_in_one_place(tmp_path: Path) -> None:
    path = str(tmp_path / "many")
    names = [GroupName("default", f"g{number}") for number in range(20)]
    with StandaloneMetaClient.open(path, offset_groups=3) as client:
        epochs = [taken.epoch for taken in client.claim_groups(names)]
        everything = [
            GroupOffsets(name.namespace, name.group, (entry("s_0", 7, epoch, 1),))
            for name, epoch in zip(names, epochs, strict=True)
        ]
        assert client.save_offsets(everything) == []
        assert all(status.last > 1 for status in client.log_status if status.name != "metadata")
    with StandaloneMetaClient.open(path) as again:  # the directory knows how many groups it has
        assert [one.group for one in again.list_groups()] == sorted(n.group for n in names)
        assert all(again.get_offset("default", name.group, "s_0") for name in names)


# -- watchers -----------------------------------------------------------------------------------


def test_a_watcher_sees_every_change_once_and_in_order(client: StandaloneMetaClient) -> None:
    client.create_topic("before")
    updates: list[Update] = []
    watch = client.watch(0, updates.append)
    assert [update.revision for update in updates] == [1]
    topic = client.create_topic("orders")
    assert [type(event) for event in updates[-1].events] == [TopicPut, ShardPut, SegmentPut]
    client.delete_topic(topic.topic_id)
    assert [type(event) for event in updates[-1].events] == [TopicDeleted]
    assert [update.revision for update in updates] == [1, 2, 3]
    watch.close()
    client.create_topic("unseen")
    assert len(updates) == 3


def test_a_watcher_that_returns_gets_what_it_missed(client: StandaloneMetaClient) -> None:
    for name in "abc":
        client.create_topic(name)
    client.allocate_producer_ids(1)  # a revision without events
    missed: list[Update] = []
    client.watch(1, missed.append)
    assert [update.revision for update in missed] == [2, 3]
    nothing: list[Update] = []
    client.watch(client.revision(), nothing.append)
    assert nothing == []


def test_a_change_between_its_apply_and_its_delivery_is_seen_once(
    client: StandaloneMetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchers = client._watchers
    with monkeypatch.context() as patch:
        patch.setattr(watchers, "deliver", lambda: None)
        client.create_topic("orders")
    updates: list[Update] = []
    client.watch(0, updates.append)
    client.create_topic("more")
    assert [update.revision for update in updates] == [1, 2]


def test_a_watcher_that_missed_too_much_starts_over(
    client: StandaloneMetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "EVENTS_MAX", 3)
    topics = [client.create_topic(name) for name in "abcdef"]
    client.delete_topic(topics[0].topic_id)
    client.register_node("localhost:1")
    for after in (0, 3, client.revision() + 100):
        updates: list[Update] = []
        client.watch(after, updates.append)
        (update,) = updates
        assert update.is_reset
        assert update.revision == client.revision()
        names = [event.topic.name for event in update.events if isinstance(event, TopicPut)]
        assert names == list("bcdef")
        assert sum(isinstance(event, ShardPut) for event in update.events) == 5
        assert sum(isinstance(event, NodePut) for event in update.events) == 1
    recent: list[Update] = []
    client.watch(client.revision() - 2, recent.append)
    assert [update.is_reset for update in recent] == [False, False]


def test_a_watcher_may_change_things_itself(client: StandaloneMetaClient) -> None:
    seen: list[int] = []

    def react(update: Update) -> None:
        seen.append(update.revision)
        if len(seen) == 1:
            client.create_topic("reaction")

    client.watch(0, react)
    client.create_topic("cause")
    assert seen == [1, 2]


def test_a_watcher_that_raises_is_dropped_and_harms_nobody(client: StandaloneMetaClient) -> None:
    def fail(_update: Update) -> None:
        raise RuntimeError("a watcher's own mistake")

    others: list[Update] = []
    watch = client.watch(0, fail)
    client.watch(0, others.append)
    client.create_topic("orders")
    client.create_topic("more")
    assert watch.is_closed
    assert len(others) == 2


def test_watchers_see_one_order_while_many_threads_change_things(
    client: StandaloneMetaClient,
) -> None:
    updates: list[Update] = []
    client.watch(0, updates.append)

    def work(number: int) -> None:
        for step in range(10):
            client.create_topic(f"t{number}-{step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.create_topic("last")
    assert [update.revision for update in updates] == list(range(1, 62))


# -- crashes ------------------------------------------------------------------------------------


def test_an_image_of_the_files_at_any_moment_has_what_was_answered(
    client: StandaloneMetaClient, tmp_path: Path
) -> None:
    epoch = client.claim_groups([GroupName("default", "g")])[0].epoch
    for number in range(5):
        client.create_topic(f"t{number}")
        save(client, "g", entry("s_0", number, epoch, number + 1))
        image = tmp_path / f"image{number}"
        shutil.copytree(tmp_path / "meta", image, ignore=shutil.ignore_patterns("LOCK"))
        with StandaloneMetaClient.open(str(image)) as killed:
            assert len(killed.list_topics()) == number + 1
            found = killed.get_offset("default", "g", "s_0")
            assert found is not None
            assert found.offset == number


# -- identifiers --------------------------------------------------------------------------------


def test_ulids_sort_by_time_and_topic_ids_are_legal_whatever_the_name() -> None:
    ulids = [make_ulid(time_ms, b"\xff" * 10) for time_ms in (0, 1, 31, 32, 1 << 40)]
    assert ulids == sorted(ulids)
    assert {len(ulid) for ulid in ulids} == {26}
    for name in ("", "---", "Ünï/코드", "x" * 500, "a_b%c|d"):
        topic_id = make_topic_id(name, 0, bytes(10))
        assert len(topic_id) <= 100
        assert set(topic_id) <= metadata_characters()


def metadata_characters() -> frozenset[str]:
    from penstock.meta.state.constants import TOPIC_ID_CHARACTERS

    return TOPIC_ID_CHARACTERS
