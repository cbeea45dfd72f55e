"""Groups over a connection, message by message, in the oldest and the newest versions."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.brokers.kafka.running import Running, WireClient, running

from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.wire.fields import Fields

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
COMMIT, FETCH, FIND, DESCRIBE, LIST, DELETE, DELETE_OFFSETS = 8, 9, 10, 15, 16, 42, 47

SUBSCRIPTION = struct.pack(">hih6s", 1, 1, 6, b"orders") + struct.pack(">ii", -1, 0)


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as started:
        started.node.admin.create_topic_full("orders", 2)
        yield started


def join(client: WireClient, version: int = 9, **fields: object) -> Fields:
    request: dict[str, object] = {
        "group_id": "readers",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    return client.ask(JOIN, version, **(request | fields))


def join_alone(client: WireClient) -> str:
    """Join as the only member and sync; return the member's id."""
    told = join(client)
    assert told["error_code"] == ErrorCode.member_id_required
    joined = join(client, member_id=told["member_id"])
    assert joined["error_code"] == 0
    assert joined["leader"] == joined["member_id"] == told["member_id"]
    synced = client.ask(
        SYNC,
        5,
        group_id="readers",
        generation_id=1,
        member_id=told["member_id"],
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": told["member_id"], "assignment": b"all"}],
    )
    assert (synced["error_code"], synced["assignment"]) == (0, b"all")
    return joined.text("member_id")


def commit(client: WireClient, version: int, offset: int, **fields: object) -> int:
    partition = {
        "partition_index": 1,
        "committed_offset": offset,
        "committed_leader_epoch": 3,
        "committed_metadata": "note",
    }
    topics = [{"name": "orders", "partitions": [partition]}]
    request: dict[str, object] = {
        "group_id": "readers",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": topics,
    }
    response = client.ask(COMMIT, version, **(request | fields))
    return response.items_of("topics")[0].items_of("partitions")[0].number("error_code")


def fetched(client: WireClient) -> Fields:
    requested = [{"name": "orders", "partition_indexes": [1]}]
    groups = [{"group_id": "readers", "topics": requested}]
    response = client.ask(FETCH, 9, groups=groups, require_stable=True)
    return response.items_of("groups")[0].items_of("topics")[0].items_of("partitions")[0]


def test_a_member_joins_commits_and_leaves(client: WireClient) -> None:
    member = join_alone(client)
    beat = {"group_id": "readers", "generation_id": 1, "member_id": member}
    assert client.ask(HEARTBEAT, 4, **beat)["error_code"] == 0
    assert commit(client, 9, 7, generation_id_or_member_epoch=1, member_id=member) == 0
    assert commit(client, 9, 9, generation_id_or_member_epoch=0, member_id=member) == (
        ErrorCode.illegal_generation
    )
    assert commit(client, 9, 9) == ErrorCode.unknown_member_id
    found = fetched(client)
    assert found["committed_offset"] == 7
    assert found["committed_leader_epoch"] == 3
    assert found["metadata"] == "note"
    left = client.ask(LEAVE, 5, group_id="readers", members=[{"member_id": member}])
    assert left.items_of("members")[0]["error_code"] == 0
    assert commit(client, 9, 11) == 0
    assert fetched(client)["committed_offset"] == 11


def test_the_oldest_versions_do_the_same(client: WireClient) -> None:
    joined = join(client, 0)
    member = joined.text("member_id")
    assert (joined["error_code"], joined["generation_id"]) == (0, 1)
    assignments = [{"member_id": member, "assignment": b"x"}]
    request = {"group_id": "readers", "generation_id": 1, "member_id": member}
    assert client.ask(SYNC, 0, **request, assignments=assignments)["assignment"] == b"x"
    assert client.ask(HEARTBEAT, 0, **request)["error_code"] == 0
    assert commit(client, 2, 5, generation_id_or_member_epoch=1, member_id=member) == 0
    requested = [{"name": "orders", "partition_indexes": [0, 1]}]
    old = client.ask(FETCH, 1, group_id="readers", topics=requested)
    offsets = [one["committed_offset"] for one in old.items_of("topics")[0].items_of("partitions")]
    assert offsets == [-1, 5]
    assert client.ask(LEAVE, 0, group_id="readers", member_id=member)["error_code"] == 0
    found = client.ask(FIND, 0, key="readers")
    assert (found["error_code"], found["host"]) == (0, "127.0.0.1")


def test_commits_survive_a_restart_of_the_server(data_path: Path) -> None:
    path = data_path
    with running(path) as first:
        first.node.admin.create_topic_full("orders", 2)
        with WireClient(first.server.port) as client:
            assert commit(client, 9, 42) == 0
    with running(path) as second, WireClient(second.server.port) as client:
        assert fetched(client)["committed_offset"] == 42
        beat = {"group_id": "readers", "generation_id": 1, "member_id": "somebody"}
        assert client.ask(HEARTBEAT, 4, **beat)["error_code"] == ErrorCode.unknown_member_id


def test_topics_are_named_by_id_in_the_newest_versions(server: Running, client: WireClient) -> None:
    topic = server.node.broker_cache.get_topic("orders")
    identifier = uuid_of(topic.topic_id)
    partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": None}
    topics = [{"topic_id": identifier, "partitions": [partition]}]
    response = client.ask(COMMIT, 10, group_id="readers", topics=topics, member_id="")
    assert response.items_of("topics")[0].items_of("partitions")[0]["error_code"] == 0
    found = client.ask(FETCH, 10, groups=[{"group_id": "readers", "topics": None}])
    shown = found.items_of("groups")[0].items_of("topics")[0]
    assert shown["topic_id"] == identifier
    assert shown.items_of("partitions")[0]["committed_offset"] == 3


def test_what_cannot_be_committed_is_refused_and_the_rest_is_kept(client: WireClient) -> None:
    def partition(index: int, offset: int, text: str = "") -> dict[str, object]:
        return {"partition_index": index, "committed_offset": offset, "committed_metadata": text}

    topics = [
        {"name": "orders", "partitions": [partition(0, 1), partition(2, 1), partition(1, -2)]},
        {"name": "nothing", "partitions": [partition(0, 1)]},
        {"name": "orders", "partitions": [partition(1, 1, "x" * 5_000)]},
    ]
    response = client.ask(COMMIT, 9, group_id="readers", member_id="", topics=topics)
    codes = [
        one["error_code"] for t in response.items_of("topics") for one in t.items_of("partitions")
    ]
    assert codes == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_metadata_too_large,
    ]


def test_groups_are_listed_described_and_deleted(client: WireClient) -> None:
    assert commit(client, 9, 1, group_id="idle") == 0
    member = join_alone(client)
    listed = client.ask(LIST, 5)
    groups = {one["group_id"]: one["group_state"] for one in listed.items_of("groups")}
    assert groups == {"idle": "Empty", "readers": "Stable"}
    only_empty = client.ask(LIST, 5, states_filter=["empty"])
    assert [one["group_id"] for one in only_empty.items_of("groups")] == ["idle"]
    described = client.ask(DESCRIBE, 6, groups=["readers", "idle", "nobody"]).items_of("groups")
    assert [one["group_state"] for one in described] == ["Stable", "Empty", "Dead"]
    assert described[2]["error_code"] == ErrorCode.group_id_not_found
    (shown,) = described[0].items_of("members")
    assert (shown["member_id"], shown["member_assignment"]) == (member, b"all")
    deleted = client.ask(DELETE, 2, groups_names=["readers", "idle", "nobody"])
    assert [one["error_code"] for one in deleted.items_of("results")] == [
        ErrorCode.non_empty_group,
        ErrorCode.none,
        ErrorCode.group_id_not_found,
    ]


def test_offsets_of_a_topic_in_use_are_not_deleted(client: WireClient) -> None:
    member = join_alone(client)
    assert commit(client, 9, 4, generation_id_or_member_epoch=1, member_id=member) == 0
    topics = [{"name": "orders", "partitions": [{"partition_index": 1}]}]
    in_use = client.ask(DELETE_OFFSETS, 0, group_id="readers", topics=topics)
    code = in_use.items_of("topics")[0].items_of("partitions")[0]["error_code"]
    assert code == ErrorCode.group_subscribed_to_topic
    client.ask(LEAVE, 5, group_id="readers", members=[{"member_id": member}])
    gone = client.ask(DELETE_OFFSETS, 0, group_id="readers", topics=topics)
    assert gone.items_of("topics")[0].items_of("partitions")[0]["error_code"] == 0
    assert fetched(client)["committed_offset"] == -1


def test_offsets_are_deleted_off_the_event_loop(
    server: Running, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may have to be asked for the group: other connections must not wait for it."""
    assert commit(client, 9, 4) == 0
    offsets, threads = server.broker.offsets, list[str]()
    get_group = offsets.get_group

    def watch(group: str, *, namespace: str) -> object:
        threads.append(threading.current_thread().name)
        return get_group(group, namespace=namespace)

    monkeypatch.setattr(offsets, "get_group", watch)
    topics = [{"name": "orders", "partitions": [{"partition_index": 1}]}]
    assert client.ask(DELETE_OFFSETS, 0, group_id="readers", topics=topics)["error_code"] == 0
    assert threads
    assert "penstock-kafka" not in threads


def test_a_member_whose_session_ends_makes_room(server: Running, client: WireClient) -> None:
    with WireClient(server.server.port) as silent:
        told = join(silent, session_timeout=200)
        join(silent, session_timeout=200, member_id=told["member_id"])
        told = join(client)
        # The silent member never joins again; its session ends, and the second is alone.
        joined = join(client, member_id=told["member_id"], rebalance_timeout=60_000)
    assert joined["error_code"] == 0
    assert [one["member_id"] for one in joined.items_of("members")] == [told["member_id"]]


def test_a_client_that_goes_while_it_waits_holds_nobody_up(
    server: Running, client: WireClient
) -> None:
    member = join_alone(client)
    with WireClient(server.server.port) as newcomer:
        told = join(newcomer)
        newcomer.send(
            JOIN,
            9,
            group_id="readers",
            session_timeout=10_000,
            rebalance_timeout=10_000,
            member_id=told["member_id"],
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
        )
        beat = {"group_id": "readers", "generation_id": 1, "member_id": member}
        while client.ask(HEARTBEAT, 4, **beat)["error_code"] == 0:
            pass
    joined = join(client, member_id=member)
    assert joined["generation_id"] == 2
    assert len(joined.items_of("members")) == 2
