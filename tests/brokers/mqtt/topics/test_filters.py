"""Topic filters level by level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.mqtt.topics.filters import captures, matches, overlap

LEVELS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4)
PATTERNS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
).map(lambda parts: parts[0] + parts[1])


@pytest.mark.parametrize(
    ("topic_filter", "topic", "found"),
    [
        ("a/+/c", "a/b/c", ["b"]),
        ("a/+/c", "a//c", [""]),
        ("a/#", "a/b/c", ["b/c"]),
        ("a/#", "a", [""]),
        ("#", "a/b", ["a/b"]),
        ("+/+", "a/b", ["a", "b"]),
        ("a", "a/b", None),
        ("a/b", "a", None),
        ("+", "a/b", None),
    ],
)
def test_wildcards_capture_text(topic_filter: str, topic: str, found: list[str] | None) -> None:
    assert captures(topic_filter.split("/"), topic.split("/")) == found


@pytest.mark.parametrize("topic_filter", ["#", "+/x", "+/#"])
def test_a_leading_wildcard_matches_no_system_topic(topic_filter: str) -> None:
    assert not matches(topic_filter, "$SYS/x")
    assert matches(topic_filter, "SYS/x")


@given(PATTERNS, PATTERNS, st.lists(LEVELS, max_size=30))
def test_filters_that_match_one_topic_overlap(
    first: list[str], second: list[str], topics: list[list[str]]
) -> None:
    is_common = any(
        captures(first, topic) is not None and captures(second, topic) is not None
        for topic in topics
    )
    if is_common:
        assert overlap(first, second)
    assert overlap(first, second) == overlap(second, first)


@given(PATTERNS, PATTERNS)
def test_filters_that_overlap_match_one_topic(first: list[str], second: list[str]) -> None:
    if overlap(first, second):
        size = max(len(first), len(second))
        assert any(_both(first, second, count) for count in range(1, size + 1))


def _both(first: list[str], second: list[str], size: int) -> bool:
    """Say whether a topic of so many levels matches both filters."""
    topic = []
    for number in range(size):
        wanted = {
            pattern[number]
            for pattern in (first, second)
            if number < len(pattern) and "#" not in pattern[: number + 1]
        } - {"+"}
        topic.append(next(iter(wanted), "z"))
    return captures(first, topic) is not None and captures(second, topic) is not None
