"""The index of retained messages finds what a search of all topics finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.retained.index import RetainedIndex
from penstock.brokers.mqtt.topics.filters import matches

TOPICS = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=3),
    st.sampled_from([["#"], ["a"], ["+"]]),
).map(lambda parts: "/".join(parts[0] + parts[1]))
STEPS = st.lists(st.tuples(TOPICS, st.sampled_from([b"", b"1", b"22"])), max_size=30)


@given(STEPS, FILTERS)
def test_a_filter_finds_the_last_message_of_each_topic(
    steps: list[tuple[str, bytes]], topic_filter: str
) -> None:
    index, model = RetainedIndex(100, 1 << 20), dict[str, bytes]()
    for topic, payload in steps:
        if payload:
            index.put(Message(topic, payload))
            model[topic] = payload
        else:
            assert index.remove(topic) is (model.pop(topic, None) is not None)
    found = [(message.topic, message.payload) for message in index.match(topic_filter)]
    expected = [item for item in model.items() if matches(topic_filter, item[0])]
    assert sorted(found) == sorted(expected)
    assert len(index) == len(model)
    for topic in list(model):
        index.remove(topic)
    assert index.size == 0
    assert not index._root.children


def test_the_limits_count_topics_and_bytes() -> None:
    index = RetainedIndex(2, 3_000)
    index.put(Message("a", b"x"))
    index.put(Message("b", b"x"))
    assert not index.has_room(Message("c", b"x"))
    assert index.has_room(Message("b", b"x" * 1_000))
    assert not index.has_room(Message("b", b"x" * 3_000))


def test_expired_messages_are_dropped() -> None:
    index = RetainedIndex(10, 1 << 20)
    for number in range(4):
        index.put(Message(f"t/{number}", b"x", expires_at_ms=number * 10 or None))
    assert index.drop_expired(20, limit=10) == 2
    assert sorted(message.topic for message in index.match("#")) == ["t/0", "t/3"]


def test_an_index_may_change_while_it_is_searched() -> None:
    index = RetainedIndex(1_000, 1 << 20)
    for number in range(100):
        index.put(Message(f"t/{number}/x", b"x"))
    seen = 0
    for message in index.match("t/+/x"):
        index.remove(message.topic)
        index.put(Message(f"new/{seen}", b"x"))
        seen += 1
    assert seen == 100
