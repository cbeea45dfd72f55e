"""The native tree and route cache answer what the references answer."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.mqtt.deliver.run import Run
from penstock.brokers.mqtt.subscriptions.filters import matches
from penstock.brokers.mqtt.subscriptions.interface import Match, Route, Subscription, Tree
from penstock.brokers.mqtt.subscriptions.route_cache import RouteCache
from penstock.brokers.mqtt.subscriptions.routing import make_routing
from penstock.brokers.mqtt.subscriptions.tree import SubscriptionTree


class Reader:
    """A subscriber that counts nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def deliver(self, run: Run, match: Match) -> None:
        """Do nothing."""


READERS = [Reader(number) for number in (1, 2, 3, -4)]
_LEVELS = ["a", "b", "", "$x"]
FILTERS = st.lists(st.sampled_from([*_LEVELS, "+"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"]), "#"])
)
TOPICS = ["/".join(levels) for size in (1, 2, 3) for levels in product(_LEVELS, repeat=size)]
SUBSCRIPTIONS = st.builds(
    lambda inner, own, qos, no_local, published, identifier: Subscription(
        f"$replay/1h/{inner}" if own else inner,
        qos,
        no_local=no_local,
        retain_as_published=published,
        identifier=identifier,
        inner=inner,
    ),
    FILTERS.filter(bool),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
CHANGES = st.lists(
    st.tuples(st.booleans(), st.sampled_from(READERS), SUBSCRIPTIONS), min_size=1, max_size=40
)


def seen(route: Route) -> dict[int, tuple[object, tuple[object, ...]]]:
    """Return a route's content by the number of the subscriber."""
    found: dict[int, tuple[object, tuple[object, ...]]] = {
        subscriber.number: (subscriber, match.key()) for subscriber, match in route.entries
    }
    assert len(found) == len(route.entries)
    return found


@given(CHANGES)
def test_both_trees_have_the_same_routes_after_any_changes(
    changes: list[tuple[bool, Reader, Subscription]],
) -> None:
    native, cached = make_routing(20)
    reference = SubscriptionTree()
    expected = RouteCache(reference, 20)
    present: dict[tuple[int, str, str], Subscription] = {}
    for is_added, reader, subscription in changes:
        key = (reader.number, subscription.filter, subscription.inner)
        if is_added:
            native.add(reader, subscription)
            reference.add(reader, subscription)
            present[key] = subscription
        else:
            assert native.remove(reader, subscription) == reference.remove(reader, subscription)
            present.pop(key, None)
        assert len(native) == len(reference) == len(present)
        for topic in TOPICS[::7]:
            assert seen(cached.find(topic)) == seen(expected.find(topic))
    for topic in TOPICS:
        found = seen(native.match(topic))
        assert found == seen(reference.match(topic))
        assert found == seen(cached.find(topic))
        assert found.keys() == {number for number, _, inner in present if matches(inner, topic)}
    for number, filter_, inner in present:
        reader = next(reader for reader in READERS if reader.number == number)
        assert native.remove(reader, Subscription(filter_, inner=inner))
    assert len(native) == 0
    assert not native.match("a").entries


@pytest.mark.parametrize("tree", [make_routing(20)[0], SubscriptionTree()])
def test_a_generation_changes_where_a_route_may_have(tree: Tree) -> None:
    tree.add(READERS[0], Subscription("a/b"))
    a, b = tree.generation("a/b"), tree.generation("b")
    tree.add(READERS[0], Subscription("a/+"))
    assert tree.generation("a/x") != a
    assert tree.generation("b") == b
    tree.add(READERS[0], Subscription("+/x"))
    assert tree.generation("b") != b


@pytest.mark.parametrize("tree", [make_routing(20, 50)[0], SubscriptionTree(50)])
def test_a_match_of_too_many_steps_is_counted_and_matches_nothing_wrongly(tree: Tree) -> None:
    for levels in product("a+", repeat=8):
        tree.add(READERS[0], Subscription("/".join(levels)))
    tree.add(READERS[1], Subscription("a/a/a"))
    assert not tree.match("a/a/a/a/a/a/a/a").entries
    assert tree.incomplete == 1


def test_topics_with_the_same_subscribers_share_a_route() -> None:
    tree, routes = make_routing(100)
    tree.add(READERS[0], Subscription("s/#", 1))
    tree.add(READERS[1], Subscription("s/b", 1))
    assert routes.find("s/a") is routes.find("s/c")
    assert routes.find("s/b") is not routes.find("s/a")
    assert routes.misses == 3
    routes.find("s/b")
    assert routes.misses == 3


def test_a_cache_keeps_what_was_used_lately() -> None:
    _, routes = make_routing(8)
    for number in range(100):
        routes.find(f"t/{number}")
        routes.find("often")
    assert len(routes) <= 9
    assert routes.misses <= 130
