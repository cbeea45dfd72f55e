"""Which member of a group reads which partition: the leader of a generation decides.

range                each topic in runs, members in the order of their ids
roundrobin           all partitions in turn
cooperative-sticky   as evenly as can be, each member keeps what it has; a partition that moves is
                     withheld for one generation, until its owner has revoked it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.groups.consumer_protocol import Subscription, TopicPartition

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
COOPERATIVE: Final = "cooperative-sticky"

Subscriptions = Mapping[str, Subscription]
"""By member id."""
Counts = Mapping[str, int]
"""Partitions by topic; topics that do not exist are absent."""
Assignment = dict[str, set[TopicPartition]]


def assign_range(members: Subscriptions, counts: Counts) -> Assignment:
    found: Assignment = {member: set() for member in members}
    for topic, count in counts.items():
        readers = sorted(one for one, wants in members.items() if topic in wants.topics)
        if not readers:
            continue
        each, more = divmod(count, len(readers))
        start = 0
        for number, member in enumerate(readers):
            size = each + (number < more)
            found[member].update((topic, one) for one in range(start, start + size))
            start += size
    return found


def assign_round_robin(members: Subscriptions, counts: Counts) -> Assignment:
    found: Assignment = {member: set() for member in members}
    order = sorted(members)
    turn = 0
    for topic in sorted(counts):
        readers = [one for one in order if topic in members[one].topics]
        if not readers:
            continue
        for partition in range(counts[topic]):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            found[order[turn % len(order)]].add((topic, partition))
            turn += 1
    return found


def assign_cooperative(members: Subscriptions, counts: Counts) -> Assignment:
    owners = _owners(members, counts)
    wanted = _balanced(members, counts, owners)
    for member, partitions in wanted.items():
        partitions -= {one for one in partitions if owners.get(one, member) != member}
    return wanted


def _owners(members: Subscriptions, counts: Counts) -> dict[TopicPartition, str]:
    """Return who has a partition now. Of two that claim it the newer generation is believed; of
    one generation neither can be, and it counts as free."""
    owners: dict[TopicPartition, str] = {}
    generations: dict[TopicPartition, int] = {}
    for member, subscription in members.items():
        for at in subscription.owned:
            topic, partition = at
            if topic not in subscription.topics or partition >= counts.get(topic, 0):
                continue
            if at not in generations or subscription.generation > generations[at]:
                owners[at], generations[at] = member, subscription.generation
            elif subscription.generation == generations[at]:
                owners.pop(at, None)
    return owners


def _balanced(
    members: Subscriptions, counts: Counts, owners: Mapping[TopicPartition, str]
) -> Assignment:
    found: Assignment = {member: set() for member in members}
    for at, member in owners.items():
        found[member].add(at)
    for topic in sorted(counts):
        readers = sorted(one for one, wants in members.items() if topic in wants.topics)
        for partition in range(counts[topic]):
            if readers and (topic, partition) not in owners:
                least = min(readers, key=lambda one: len(found[one]))
                found[least].add((topic, partition))
    while _move_one(members, found):
        pass
    return found


def _move_one(members: Subscriptions, found: Assignment) -> bool:
    """Move a partition from a member to one that has fewer by two or more; False: none is left.
    Every move makes the loads more even, so that this ends."""
    by_load = sorted(members, key=lambda one: (len(found[one]), one))
    for poor in by_load:
        topics = members[poor].topics
        for rich in reversed(by_load):
            if len(found[rich]) < len(found[poor]) + 2:
                break
            movable = [at for at in found[rich] if at[0] in topics]
            if movable:
                at = max(movable)
                found[rich].remove(at)
                found[poor].add(at)
                return True
    return False


ASSIGNORS: Final[Mapping[str, Callable[[Subscriptions, Counts], Assignment]]] = {
    COOPERATIVE: assign_cooperative,
    RANGE: assign_range,
    ROUND_ROBIN: assign_round_robin,
}
"""In the order in which a member prefers them."""
