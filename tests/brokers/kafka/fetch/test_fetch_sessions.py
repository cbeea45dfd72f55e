"""Fetch sessions whose client changes its version, or whose topics are deleted and made again."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.brokers.kafka.running import Running, WireClient
from tests.brokers.kafka.wire.test_data_requests import FETCH, batch, make, write

from penstock.brokers.kafka.fetch.handler import REQUEST_SIZE_MAX
from penstock.brokers.kafka.wire.fields import Fields

UNKNOWN_TOPIC, SESSION_UNKNOWN, UNKNOWN_TOPIC_ID, TOPIC_ID_ERROR = 3, 70, 100, 106
PARTITION = {
    "partition": 0,
    "fetch_offset": 0,
    "current_leader_epoch": -1,
    "partition_max_bytes": 1 << 20,
}


def id_of(client: WireClient, topic: str) -> UUID:
    described = client.ask(3, 12, topics=[{"name": topic, "topic_id": UUID(int=0)}])
    return described.items_of("topics")[0].uuid("topic_id")


def ask(
    client: WireClient, version: int, session: tuple[int, int], topic: str | UUID | None
) -> Fields:
    topics: list[dict[str, object]] = []
    if topic is not None:
        name = "topic" if isinstance(topic, str) else "topic_id"
        topics.append({name: topic, "partitions": [PARTITION]})
    return client.ask(
        FETCH,
        version,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
    )


def code_of_partition(response: Fields) -> int:
    return response.items_of("responses")[0].items_of("partitions")[0].number("error_code")


@pytest.mark.parametrize(("opened", "continued"), [(12, 17), (7, 13), (17, 12), (13, 7)])
@pytest.mark.parametrize("names_again", [True, False])
def test_a_session_cannot_go_from_names_to_ids_or_back(
    server: Running, client: WireClient, opened: int, continued: int, names_again: bool
) -> None:
    topic = make(server, f"mixed-{opened}-{continued}-{names_again}")
    write(client, topic, batch(b"v"))
    identifier = id_of(client, topic)
    first: str | UUID = topic if opened < 13 else identifier
    then: str | UUID = topic if continued < 13 else identifier
    session = ask(client, opened, (0, 0), first).number("session_id")
    assert session > 0
    response = ask(client, continued, (session, 1), then if names_again else None)
    assert response.number("error_code") == TOPIC_ID_ERROR
    assert (response.number("session_id"), response.items_of("responses")) == (0, [])
    # As a client does then: a full request, which opens another session.
    full = ask(client, continued, (session, 0), then)
    assert full.number("error_code") == 0
    assert full.number("session_id") not in {0, session}
    assert code_of_partition(full) == 0
    assert ask(client, opened, (session, 1), None).number("error_code") == SESSION_UNKNOWN


@pytest.mark.parametrize(("opened", "continued"), [(7, 12), (12, 7), (13, 17), (17, 13)])
def test_a_session_goes_on_in_another_version_of_the_same_kind(
    server: Running, client: WireClient, opened: int, continued: int
) -> None:
    topic = make(server, f"kept-{opened}-{continued}")
    named: str | UUID = topic if opened < 13 else id_of(client, topic)
    session = ask(client, opened, (0, 0), named).number("session_id")
    write(client, topic, batch(b"v"))
    response = ask(client, continued, (session, 1), None)
    assert (response.number("error_code"), response.number("session_id")) == (0, session)
    found = response.items_of("responses")[0]
    if continued < 13:
        assert found.text("topic") == topic
    else:
        assert found.uuid("topic_id") == named
    assert found.items_of("partitions")[0].blob("records")


def test_a_session_by_id_does_not_show_the_topic_that_took_the_name(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "reborn-by-id")
    old = id_of(client, topic)
    session = ask(client, 17, (0, 0), old).number("session_id")
    server.node.admin.delete_topic(topic)
    gone = ask(client, 17, (session, 1), None)
    assert gone.number("error_code") == 0
    assert code_of_partition(gone) == UNKNOWN_TOPIC_ID
    make(server, topic)
    write(client, topic, batch(b"new"))
    assert code_of_partition(ask(client, 17, (session, 2), None)) == UNKNOWN_TOPIC_ID
    new = id_of(client, topic)
    both = ask(client, 17, (session, 3), new)
    codes = {
        one.uuid("topic_id"): one.items_of("partitions")[0].number("error_code")
        for one in both.items_of("responses")
    }
    assert codes == {old: UNKNOWN_TOPIC_ID, new: 0}


def test_a_session_by_name_goes_on_with_the_topic_that_took_the_name(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "reborn-by-name")
    session = ask(client, 12, (0, 0), topic).number("session_id")
    server.node.admin.delete_topic(topic)
    assert code_of_partition(ask(client, 12, (session, 1), None)) == UNKNOWN_TOPIC
    make(server, topic)
    write(client, topic, batch(b"new"))
    response = ask(client, 12, (session, 2), None)
    assert code_of_partition(response) == 0
    assert response.items_of("responses")[0].items_of("partitions")[0].blob("records")


def test_many_unknown_ids_are_answered_one_by_one(client: WireClient) -> None:
    topics = [{"topic_id": UUID(int=n + 1), "partitions": [PARTITION]} for n in range(2_000)]
    response = client.ask(FETCH, 17, max_wait=0, session_epoch=-1, max_bytes=1, topics=topics)
    codes = [
        one.items_of("partitions")[0].number("error_code") for one in response.items_of("responses")
    ]
    assert codes == [UNKNOWN_TOPIC_ID] * 2_000


def test_a_fetch_larger_than_its_limit_closes_the_connection(client: WireClient) -> None:
    partitions = [PARTITION] * (REQUEST_SIZE_MAX // 28 + 1)
    with pytest.raises((ConnectionError, BrokenPipeError)):
        client.ask(FETCH, 11, session_epoch=-1, topics=[{"topic": "t", "partitions": partitions}])
