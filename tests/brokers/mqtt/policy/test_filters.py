"""Relations between filters and names, also against enumeration of all short names."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.mqtt.policy.filters import covers, inner_filter, matches, overlaps

LEVELS = ("", "a", "b")
NAMES = ["/".join(parts) for size in (1, 2, 3, 4) for parts in product(LEVELS, repeat=size)]
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.sampled_from(("", "a", "b", "+")), min_size=1, max_size=3),
    st.sampled_from(((), ("#",))),
)


@pytest.mark.parametrize(
    ("topic_filter", "name", "is_match"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a//c", True),
        ("a/#", "a", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+", "a/b", False),
        ("a/+", "a", False),
    ],
)
def test_a_filter_selects_names_as_the_standard_says(
    topic_filter: str, name: str, is_match: bool
) -> None:
    assert matches(topic_filter, name) is is_match


@given(filters, filters)
def test_overlap_and_cover_agree_with_the_enumeration_of_names(first: str, second: str) -> None:
    left = {name for name in NAMES if matches(first, name)}
    right = {name for name in NAMES if matches(second, name)}
    assert overlaps(first, second) is bool(left & right)
    assert overlaps(second, first) is overlaps(first, second)
    if covers(first, second):
        assert right <= left


@given(filters)
def test_a_filter_covers_itself_and_is_covered_by_everything(topic_filter: str) -> None:
    assert covers(topic_filter, topic_filter)
    assert covers("#", topic_filter)


def test_a_wildcard_at_the_first_level_covers_no_system_topic() -> None:
    assert not covers("#", "$SYS/#")
    assert not overlaps("#", "$SYS/#")


@pytest.mark.parametrize(
    ("topic_filter", "inner"),
    [
        ("$share/group/a/b", "a/b"),
        ("$queue/a/b", "a/b"),
        ("$exclusive/a", "a"),
        ("$replay/earliest/a/#", "a/#"),
        ("$share/group/$replay/1h/a", "a"),
        ("a/$share/b", "a/$share/b"),
    ],
)
def test_the_inner_filter_of_a_prefix_is_found(topic_filter: str, inner: str) -> None:
    assert inner_filter(topic_filter) == inner
