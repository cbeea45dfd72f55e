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
    assignment: Assignment = {member: set() for member in members}
    for topic, count in counts.items():
        readers = sorted(name for name, wants in members.items() if topic in wants.topics)
        if not readers:
            continue
        share, more = divmod(count, len(readers))
        start = 0
        for number, member in enumerate(readers):
            size = share + (number < more)
            assignment[member].update(
                (topic, partition) for partition in range(start, start + size)
            )
            start += size
    return assignment


def assign_round_robin(members: Subscriptions, counts: Counts) -> Assignment:
    assignment: Assignment = {member: set() for member in members}
    order = sorted(members)
    turn = 0
    for topic in sorted(counts):
        readers = [reader for reader in order if topic in members[reader].topics]
        if not readers:
            continue
        for partition in range(counts[topic]):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            assignment[order[turn % len(order)]].add((topic, partition))
            turn += 1
    return assignment


def assign_cooperative(members: Subscriptions, counts: Counts) -> Assignment:
    owners = _owners(members, counts)
    balanced = _balanced(members, counts, owners)
    for member, partitions in balanced.items():
        partitions -= {
            partition for partition in partitions if owners.get(partition, member) != member
        }
    return balanced


def _owners(members: Subscriptions, counts: Counts) -> dict[TopicPartition, str]:
    """Return who has a partition now. Of two that claim it the newer generation is believed; of
    one generation neither can be, and it counts as free."""
    owners: dict[TopicPartition, str] = {}
    generations: dict[TopicPartition, int] = {}
    for member, subscription in members.items():
        for owned in subscription.owned:
            topic, partition = owned
            if topic not in subscription.topics or partition >= counts.get(topic, 0):
                continue
            if owned not in generations or subscription.generation > generations[owned]:
                owners[owned], generations[owned] = member, subscription.generation
            elif subscription.generation == generations[owned]:
                owners.pop(owned, None)
    return owners


def _balanced(
    members: Subscriptions, counts: Counts, owners: Mapping[TopicPartition, str]
) -> Assignment:
    assignment: Assignment = {member: set() for member in members}
    for owned, member in owners.items():
        assignment[member].add(owned)
    for topic in sorted(counts):
        readers = sorted(reader for reader, wants in members.items() if topic in wants.topics)
        for partition in range(counts[topic]):
            if readers and (topic, partition) not in owners:
                least = min(readers, key=lambda reader: len(assignment[reader]))
                assignment[least].add((topic, partition))
    while _move_one(members, assignment):
        pass
    return assignment


def _move_one(members: Subscriptions, assignment: Assignment) -> bool:
    """Move a partition from a member to one that has fewer by two or more; False: none is left.
    Every move makes the loads more even, so that this ends."""
    by_load = sorted(members, key=lambda member: (len(assignment[member]), member))
    for poor in by_load:
        topics = members[poor].topics
        for rich in reversed(by_load):
            if len(assignment[rich]) < len(assignment[poor]) + 2:
                break
            movable = [partition for partition in assignment[rich] if partition[0] in topics]
            if movable:
                partition = max(movable)
                assignment[rich].remove(partition)
                assignment[poor].add(partition)
                return True
    return False


ASSIGNORS: Final[Mapping[str, Callable[[Subscriptions, Counts], Assignment]]] = {
    COOPERATIVE: assign_cooperative,
    RANGE: assign_range,
    ROUND_ROBIN: assign_round_robin,
}
"""In the order in which a member prefers them."""
