"""The replicas that a client names for partitions, checked as Kafka checks them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.admin.responses import RejectedError
from penstock.brokers.kafka.wire.fields import Fields

NOT_SET = -1

Replicas = tuple[tuple[int, ...], ...]


def assigned_replicas(topic: Fields, nodes: Collection[int], online: Collection[int]) -> Replicas:
    """Return the replicas of each partition of a topic to create; none: the request names none."""
    assignments = topic.items_of("assignments")
    if not assignments:
        return ()
    for name, field in (("replication factor", "replication_factor"), ("count", "num_partitions")):
        if topic.number(field, NOT_SET) != NOT_SET:
            raise RejectedError(
                ErrorCode.invalid_request,
                f"replicas are assigned to partitions: the {name} must be -1, not "
                f"{topic.number(field)}",
            )
    by_partition: dict[int, list[int]] = {}
    for assignment in assignments:
        index = assignment.number("partition_index")
        if index in by_partition:
            raise _bad(f"partition {index} is assigned twice")
        by_partition[index] = assignment.numbers("broker_ids")
    if sorted(by_partition) != list(range(len(by_partition))):
        raise _bad("partitions must be numbered from 0 on, without gaps")
    lists = [by_partition[index] for index in range(len(by_partition))]
    return check_replicas(lists, len(lists[0]), nodes, online)


def added_replicas(
    topic: Fields, added: int, replication: int, nodes: Collection[int], online: Collection[int]
) -> Replicas:
    """Return the replicas of the partitions that a topic grows by; none: the request names none."""
    assignments = topic.optional_items("assignments")
    if not assignments:
        return ()
    if len(assignments) != added:
        raise _bad(f"{added} partitions are added, and {len(assignments)} have replicas assigned")
    lists = [assignment.numbers("broker_ids") for assignment in assignments]
    return check_replicas(lists, replication, nodes, online)


def check_replicas(
    lists: Sequence[Sequence[int]],
    replication: int,
    nodes: Collection[int],
    online: Collection[int],
) -> Replicas:
    """Return the replicas of partitions if they can be these nodes."""
    for replicas in lists:
        if not replicas:
            raise _bad("a partition has an empty list of replicas")
        for node in replicas:
            if node not in nodes:
                raise _bad(f"broker {node} is assigned, and no such broker is registered")
            if replicas.count(node) > 1:
                raise _bad(f"broker {node} is assigned to a partition twice")
        if len(replicas) != replication:
            raise _bad(
                f"a partition has {len(replicas)} replicas assigned, and others have {replication}"
            )
        if not any(node in online for node in replicas):
            raise _bad(f"none of the brokers {', '.join(map(str, replicas))} is online")
    return tuple(tuple(replicas) for replicas in lists)


def _bad(reason: str) -> RejectedError:
    return RejectedError(ErrorCode.invalid_replica_assignment, reason)
