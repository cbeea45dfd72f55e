"""Consumers of a topic that is deleted and created again: nothing of the new one is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

import penstock
from penstock import Store
from penstock.api import Consumer, EmbeddedBackend
from penstock.api.requests.groups import CommitOffsets, CommittedOffsets
from penstock.api.requests.topics import LocateTopic
from penstock.errors import BadRequestError, BusyError, TopicReplacedError, UnknownTopicError
from penstock.record import Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.server.node_server import Server
from penstock.remote.wire import records as wire
from penstock.settings import EMBEDDED, merge_settings


@pytest.fixture(params=["embedded", "remote"])
def store(request: pytest.FixtureRequest, directory: Path) -> Iterator[Store]:
    if request.param == "embedded":
        with penstock.open(directory) as store:
            yield store
        return
    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    with (
        Server(str(directory), merge_settings(EMBEDDED, ports)) as server,
        penstock.connect(f"127.0.0.1:{server.port}") as store,
    ):
        yield store


def replace(store: Store, name: str, values: int, *, partitions: int = 1) -> None:
    if name in store:
        store[name].delete()
    created = store.create_topic(name, partitions=partitions)
    if values:
        created.write_many([b"%s %d" % (name.encode(), number) for number in range(values)])


def rest(store: Store, *names: str) -> int:
    """Return how many records a consumer finds that begins where the group stopped."""
    return len(list(store.consumer("g", names, assign="all")))


def read_up(
    store: Store, *names: str, values: int = 100, assign: Literal["all"] | None = None
) -> Consumer:
    for name in names:
        replace(store, name, values)
    consumer = store.consumer("g", names, assign=assign)
    assert len(list(consumer)) == values * len(names)
    return consumer


def test_a_commit_never_gives_a_new_topic_the_positions_of_the_old_one(store: Store) -> None:
    consumer = read_up(store, "t")
    replace(store, "t", 50)
    consumer.commit()
    assert rest(store, "t") == 50
    assert consumer.positions == {("t", 0): 0}
    assert len(consumer.poll()) == 50
    consumer.commit()
    assert rest(store, "t") == 0


def test_the_other_topics_of_the_commit_keep_theirs(store: Store) -> None:
    consumer = read_up(store, "a", "b")
    replace(store, "a", 50)
    consumer.commit()
    assert consumer.committed()["b", 0] == 100
    assert (rest(store, "a"), rest(store, "b")) == (50, 0)


def test_a_topic_created_again_is_read_from_its_beginning_whatever_the_start_was(
    store: Store,
) -> None:
    replace(store, "t", 5)
    consumer = store.consumer("g", ["t"], start="latest")
    assert consumer.poll() == []
    replace(store, "t", 3)
    consumer.commit()
    assert len(consumer.poll()) == 3


def test_what_the_group_committed_in_the_new_topic_counts(store: Store) -> None:
    consumer = read_up(store, "t", assign="all")
    replace(store, "t", 50)
    store.reset_group("g", {("t", 0): 30})
    consumer.commit()
    assert consumer.positions == {("t", 0): 30}
    assert rest(store, "t") == 20


def test_offsets_that_are_given_are_for_the_topic_of_now(store: Store) -> None:
    consumer = read_up(store, "t")
    replace(store, "t", 50)
    consumer.commit({("t", 0): 20})
    assert rest(store, "t") == 30
    consumer.commit()
    assert rest(store, "t") == 30


def test_the_rest_of_a_page_of_the_old_topic_is_not_handed_out(store: Store) -> None:
    """Also when the position in the new topic happens to be where the old one stood."""
    replace(store, "t", 10)
    consumer = store.consumer("g", ["t"], assign="all")
    seen = []
    for message in consumer:
        seen.append(message.value)
        if len(seen) == 3:
            store["t"].delete()
            store.create_topic("t").write_many([b"new %d" % number for number in range(5)])
            store.reset_group("g", {("t", 0): 3})
            consumer.commit()
    assert seen == [b"t 0", b"t 1", b"t 2", b"new 3", b"new 4"]
    assert consumer.positions == {("t", 0): 5}


def test_a_topic_that_is_gone_is_said_and_its_positions_wait(store: Store) -> None:
    consumer = read_up(store, "t")
    store["t"].delete()
    with pytest.raises(UnknownTopicError):
        consumer.commit()
    replace(store, "t", 4)
    consumer.commit()
    assert len(consumer.poll()) == 4


def test_seeking_and_the_lag_are_about_the_topic_of_now(store: Store) -> None:
    consumer = read_up(store, "t")
    replace(store, "t", 50, partitions=2)
    assert sum(consumer.lag().values()) == 50
    consumer.seek("t", 1, 20)
    assert {message.partition: message.offset for message in consumer.poll()} == {0: 24, 1: 24}
    replace(store, "t", 50)
    consumer.seek("t", 0, 45)
    assert [message.offset for message in consumer.poll()] == [45, 46, 47, 48, 49]
    with pytest.raises(BadRequestError):
        consumer.seek("t", 1, 0)
    replace(store, "t", 50)
    consumer.seek_to("latest")
    assert consumer.poll() == []
    store["t"].write(b"next")
    assert [message.offset for message in consumer.poll()] == [50]


def test_a_topic_that_never_stays_ends_the_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = read_up(store, "t", values=1)
    monkeypatch.setattr(consumer._places, "locate", lambda _: ("another", 1))
    monkeypatch.setattr(consumer._places, "committed_of", lambda _: {})
    consumer._places.topic_ids["t"] = "yet another"
    with pytest.raises(BusyError, match="created again"):
        consumer.commit()


def test_the_id_is_looked_at_where_the_offset_gets_its_topic(directory: Path) -> None:
    """A caller that asks first and then commits leaves time in between."""
    with penstock.open(directory) as store:
        replace(store, "a", 1)
        replace(store, "b", 1)
        backend = store._backend
        assert isinstance(backend, EmbeddedBackend)
        old = {"a": backend.execute(LocateTopic("a"))[0]}
        replace(store, "a", 1)
        for offsets in ({("a", 0): Offset(1)}, {("b", 0): Offset(1), ("a", 0): Offset(1)}):
            with pytest.raises(TopicReplacedError, match="'a' was deleted and created again"):
                backend.execute(CommitOffsets("g", offsets, old))
        assert backend.execute(CommittedOffsets("g", ["a", "b"])) == {}
        new = {"a": backend.execute(LocateTopic("a"))[0]}
        backend.execute(CommitOffsets("g", {("a", 0): Offset(1)}, new))
        assert backend.execute(CommittedOffsets("g", ["a"])) == {("a", 0): 1}


def test_ids_travel_with_positions_where_they_are_known() -> None:
    positions = {("a", 0): Offset(1), ("a", 1): Offset(2), ("b", 0): Offset(3)}
    ids: Mapping[str, str] = {"a": "a-1"}
    sent = wire.positions_to_wire(positions, ids)
    assert wire.topic_ids_from_wire(sent) == {"a": "a-1"}
    assert wire.positions_from_wire(sent) == positions
    two = [pb.TopicPosition(topic="a", topic_id=topic_id) for topic_id in ("a-1", "a-2")]
    with pytest.raises(BadRequestError, match="two ids"):
        wire.topic_ids_from_wire(two)


def test_what_was_handled_of_the_old_topic_is_not_committed_for_the_new_one(store: Store) -> None:
    replace(store, "t", 100)
    consumer = store.consumer("g", ["t"])
    handled = consumer.poll(max_records=10)[-1].offset + 1
    assert consumer.commit_handled({("t", 0): Offset(handled)})
    assert rest(store, "t") == 90
    replace(store, "t", 50)
    assert not consumer.commit_handled({("t", 0): Offset(handled)})
    assert rest(store, "t") == 50
    assert len(list(consumer)) == 50
