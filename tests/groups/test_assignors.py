"""Which member reads what, and the bytes that say so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.assignors import (
    ASSIGNORS,
    COOPERATIVE,
    assign_cooperative,
    assign_range,
    assign_round_robin,
)
from penstock.groups.consumer_protocol import (
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

NAMES = st.sampled_from(["a", "b", "c"])
COUNTS = st.dictionaries(NAMES, st.integers(1, 7), max_size=3)
MEMBERS = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4"]), st.lists(NAMES, unique=True, min_size=1), min_size=1
)


def all_of(counts: dict[str, int], members: dict[str, Subscription]) -> set[TopicPartition]:
    read = {topic for one in members.values() for topic in one.topics}
    return {(topic, p) for topic, count in counts.items() for p in range(count) if topic in read}


@given(MEMBERS, COUNTS)
def test_every_partition_has_one_reader_that_subscribes_to_it(
    topics: dict[str, list[str]], counts: dict[str, int]
) -> None:
    members = {name: Subscription(tuple(wanted)) for name, wanted in topics.items()}
    for assign in ASSIGNORS.values():
        found = assign(members, counts)
        given_out = [at for parts in found.values() for at in parts]
        assert len(given_out) == len(set(given_out))
        assert set(given_out) == all_of(counts, members)
        assert all(at[0] in topics[name] for name, parts in found.items() for at in parts)


@given(st.lists(st.sampled_from(["m1", "m2", "m3", "m4", "m5"]), unique=True), COUNTS, st.data())
def test_cooperative_rounds_end_even_and_never_give_a_partition_to_two(
    joining: list[str], counts: dict[str, int], data: st.DataObject
) -> None:
    """Members come and go; each revokes what it is not assigned any more and joins again."""
    topics = ("a", "b", "c")
    owned: dict[str, set[TopicPartition]] = {"m0": set()}
    for name in joining:
        if name != "m0" and len(owned) > 1 and data.draw(st.booleans()):
            owned.pop(next(iter(owned)))
        owned[name] = set()
        members: dict[str, Subscription] = {}
        for generation in range(4):
            members = {
                one: Subscription(topics, frozenset(parts), generation)
                for one, parts in owned.items()
            }
            found = assign_cooperative(members, counts)
            for one, parts in found.items():
                others = set().union(*(owned[two] for two in owned if two != one))
                assert not parts & others  # its owner has it still
            moved = any(owned[one] - found[one] for one in owned)
            owned = {one: set(found[one]) for one in owned}
            if not moved:
                break
        loads = sorted(len(parts) for parts in owned.values())
        assert loads[-1] - loads[0] <= 1
        assert set().union(*owned.values()) == all_of(counts, members)


def test_a_member_that_joins_takes_no_more_than_its_share() -> None:
    parts = frozenset(("a", p) for p in range(8))
    members = {"m1": Subscription(("a",), parts, 3), "m2": Subscription(("a",))}
    found = assign_cooperative(members, {"a": 8})
    assert len(found["m1"]) == 4
    assert found["m2"] == set()  # what m1 has to give up first


def test_of_two_claims_the_newer_generation_is_believed() -> None:
    both = frozenset({("a", 0)})
    members = {
        "old": Subscription(("a",), both, 3),
        "new": Subscription(("a",), both, 4),
    }
    assert assign_cooperative(members, {"a": 1}) == {"old": set(), "new": {("a", 0)}}


def test_ranges_and_turns_are_those_of_kafkas_clients() -> None:
    members = {"b": Subscription(("t",)), "a": Subscription(("t",))}
    assert assign_range(members, {"t": 3}) == {"a": {("t", 0), ("t", 1)}, "b": {("t", 2)}}
    assert assign_round_robin(members, {"t": 3}) == {"a": {("t", 0), ("t", 2)}, "b": {("t", 1)}}


def test_the_bytes_are_those_of_kafkas_consumer_protocol() -> None:
    assert encode_assignment([("t", 2), ("t", 1)]) == bytes.fromhex(
        "0000 00000001 0001 74 00000002 00000001 00000002 ffffffff"
    )
    plain = encode_subscription(Subscription(("t",)), version=0)
    assert plain == bytes.fromhex("0000 00000001 0001 74 ffffffff")
    owning = encode_subscription(Subscription(("t",), frozenset({("t", 3)}), 5), version=1)
    assert owning == bytes.fromhex(
        "0001 00000001 0001 74 00000004 00000005 00000001 0001 74 00000001 00000003"
    )


@given(st.sets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=9))
def test_assignments_and_subscriptions_are_read_as_they_were_written(
    partitions: set[TopicPartition],
) -> None:
    assert decode_assignment(encode_assignment(partitions)) == partitions
    wanted = Subscription(("x", "é"), frozenset(partitions), 7)
    assert decode_subscription(encode_subscription(wanted, version=1)) == wanted
    assert decode_subscription(encode_subscription(wanted, version=0)).topics == ("x", "é")


@given(st.binary(max_size=60))
def test_any_bytes_of_a_client_are_survived(data: bytes) -> None:
    decode_assignment(data)
    decode_subscription(data)
    decode_subscription(b"\x00\x01" + data)


def test_the_cooperative_protocol_is_preferred() -> None:
    assert next(iter(ASSIGNORS)) == COOPERATIVE
