"""Shards: where their replicas are, who leads them under which epoch.

A leader epoch only grows. Two controllers may both try to win one epoch: the log has an order, the
first wins, and the second is refused.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.meta.events import Event, SegmentPut, ShardDeleted, ShardPut
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import ACTIVE, LOST
from penstock.meta.state.metadata.commands import (
    AssignLeader,
    Change,
    ChangeInSync,
    CreateShards,
    DeleteShards,
    Done,
    Moment,
    Placement,
    ShardsResult,
)
from penstock.meta.state.metadata.replica_sets import is_replicated
from penstock.meta.state.metadata.rows import LEASES, LOSSES, SEGMENTS, SHARDS, TOPICS
from penstock.meta.state.model import Segment, Shard, Topic
from penstock.meta.state.view import Reader, View


def check_placements(placements: tuple[Placement, ...], partitions: int) -> Rejected | None:
    seen: set[int] = set()
    for placement in placements:
        partition = placement.partition
        if partition >= partitions:
            return Rejected("bad_request", f"partition {partition} of {partitions} is placed")
        if partition in seen:
            return Rejected("bad_request", f"partition {partition} is placed twice")
        seen.add(partition)
        if len(set(placement.replicas)) != len(placement.replicas):
            return Rejected("bad_request", f"partition {partition} names a replica twice")
        if placement.leader not in placement.replicas:
            return Rejected(
                "bad_request", f"leader {placement.leader} of partition {partition} has no replica"
            )
    return None


def first_segment(shard: Shard, moment: Moment) -> Segment:
    """Return the segment with which a shard begins."""
    return Segment(
        topic_id=shard.topic_id,
        partition=shard.partition,
        number=0,
        start_offset=0,
        end_offset=None,
        status="write",
        leader=shard.leader,
        leader_epoch=shard.leader_epoch,
        created_at_ms=moment.time_ms,
    )


def open_shards(
    view: View, topic: Topic, placements: tuple[Placement, ...], moment: Moment
) -> list[Event]:
    """Create those of the placed shards that do not exist, each with its first segment."""
    events: list[Event] = []
    for placement in placements:
        if SHARDS.get(view, topic.topic_id, placement.partition) is not None:
            continue
        shard = Shard(
            topic_id=topic.topic_id,
            partition=placement.partition,
            replicas=placement.replicas,
            in_sync=placement.replicas,
            leader=placement.leader,
            leader_epoch=0,
            active_segment=0,
            first_segment=0,
            status=ACTIVE,
            revision=moment.revision,
        )
        segment = first_segment(shard, moment)
        SHARDS.put(view, shard, shard.topic_id, shard.partition)
        SEGMENTS.put(view, segment, shard.topic_id, shard.partition, 0)
        events += [ShardPut(shard), SegmentPut(segment)]
    return events


def create_shards(view: View, command: CreateShards, moment: Moment) -> Change | Rejected:
    topic = TOPICS.get(view, command.topic_id)
    if topic is None or topic.status != ACTIVE:
        return Rejected(
            "unknown_topic", f"topic {command.topic_id} does not exist", command.topic_id
        )
    misplaced = check_placements(command.placements, topic.partitions)
    if misplaced is not None:
        return misplaced
    events = open_shards(view, topic, command.placements, moment)
    shards = [
        SHARDS.get(view, topic.topic_id, placement.partition) for placement in command.placements
    ]
    return Change(ShardsResult(tuple(s for s in shards if s is not None)), tuple(events))


def delete_shards(view: View, command: DeleteShards, _moment: Moment) -> Change | Rejected:
    events: list[Event] = []
    for partition in command.partitions:
        shard = SHARDS.get(view, command.topic_id, partition)
        if shard is None:
            continue
        left = tuple(node for node in shard.replicas if node != command.node_id)
        if command.node_id is not None and left:
            # Without an event: the topic is deleted, and its shards are known to no watcher.
            SHARDS.put(view, replace(shard, replicas=left), command.topic_id, partition)
            continue
        for number in range(shard.first_segment, shard.active_segment + 1):
            SEGMENTS.delete(view, command.topic_id, partition, number)
        SHARDS.delete(view, command.topic_id, partition)
        LEASES.delete(view, command.topic_id, partition)
        if shard.leader_epoch:  # it may have been lost
            LOSSES.delete(view, command.topic_id, partition)
        events.append(ShardDeleted(command.topic_id, partition))
    topic = TOPICS.get(view, command.topic_id)
    if topic is not None and topic.status != ACTIVE and not has_shards(view, topic):
        TOPICS.delete(view, command.topic_id)
    return Change(Done(), tuple(events))


def has_shards(view: View, topic: Topic) -> bool:
    """Return whether a topic has a shard left. By their names: a scan looks at all rows that are
    not written yet, which are thousands when thousands of topics are deleted."""
    return any(
        SHARDS.get(view, topic.topic_id, partition) is not None
        for partition in range(topic.partitions)
    )


def assign_leader(view: View, command: AssignLeader, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    if shard.status == LOST:
        return Rejected("bad_request", f"the records of {shard.name} are lost", shard.name)
    if _is_replicated(view, shard):
        return Rejected("bad_request", f"{shard.name} is replicated: elect a leader", shard.name)
    if command.epoch <= shard.leader_epoch:
        return Rejected(
            "stale",
            f"epoch {command.epoch} of {shard.name} is not after {shard.leader_epoch}",
            shard.name,
        )
    if command.expected_revision not in {None, shard.revision}:
        return Rejected(
            "stale",
            f"{shard.name} is at revision {shard.revision}, not {command.expected_revision}",
            shard.name,
        )
    replicas = shard.replicas if command.replicas is None else command.replicas
    if command.in_sync is not None:
        in_sync = command.in_sync
    else:
        in_sync = tuple(node for node in shard.in_sync if node in replicas)
    problem = _membership_problem(shard, replicas, in_sync)
    if problem is None and command.leader is not None and command.leader not in in_sync:
        problem = f"node {command.leader} is not in sync in {shard.name} and cannot lead it"
    if problem is not None:
        return Rejected("bad_request", problem, shard.name)
    led = replace(
        shard,
        replicas=replicas,
        in_sync=in_sync,
        leader=command.leader,
        leader_epoch=command.epoch,
        revision=moment.revision,
    )
    return Change(ShardsResult((led,)), tuple(put_led(view, led)))


def put_led(view: View, shard: Shard) -> list[Event]:
    """Store a shard whose leader may have changed; its open segment has the same one."""
    SHARDS.put(view, shard, shard.topic_id, shard.partition)
    events: list[Event] = [ShardPut(shard)]
    segment = SEGMENTS.get(view, shard.topic_id, shard.partition, shard.active_segment)
    if segment is not None and segment.end_offset is None:
        led_segment = replace(segment, leader=shard.leader, leader_epoch=shard.leader_epoch)
        SEGMENTS.put(view, led_segment, shard.topic_id, shard.partition, segment.number)
        events.append(SegmentPut(led_segment))
    return events


def change_in_sync(view: View, command: ChangeInSync, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    if command.epoch != shard.leader_epoch:
        return Rejected(
            "stale",
            f"epoch {command.epoch} of {shard.name} is not the current {shard.leader_epoch}",
            shard.name,
        )
    problem = _membership_problem(shard, shard.replicas, command.in_sync)
    if _is_replicated(view, shard):
        problem = f"{shard.name} is replicated: its in-sync set changes under broker epochs"
    if problem is None and shard.leader is not None and shard.leader not in command.in_sync:
        problem = f"the leader {shard.leader} of {shard.name} is always in sync"
    if problem is not None:
        return Rejected("bad_request", problem, shard.name)
    changed = replace(shard, in_sync=command.in_sync, revision=moment.revision)
    SHARDS.put(view, changed, shard.topic_id, shard.partition)
    return Change(ShardsResult((changed,)), (ShardPut(changed),))


def find_shard(view: Reader, topic_id: str, partition: int) -> Shard | Rejected:
    shard = SHARDS.get(view, topic_id, partition)
    if shard is None:
        name = f"{topic_id}_{partition}"
        return Rejected("unknown_shard", f"shard {name} does not exist", name)
    return shard


def _is_replicated(view: Reader, shard: Shard) -> bool:
    topic = TOPICS.get(view, shard.topic_id)
    return topic is not None and is_replicated(shard, topic.config)


def _membership_problem(
    shard: Shard, replicas: tuple[int, ...], in_sync: tuple[int, ...]
) -> str | None:
    if len(set(replicas)) != len(replicas) or len(set(in_sync)) != len(in_sync):
        return f"a node is named twice in {shard.name}"
    strangers = sorted(set(in_sync) - set(replicas))
    if strangers:
        return f"node {strangers[0]} has no replica of {shard.name}"
    if not in_sync:
        return f"{shard.name} would have no replica in sync"
    return None
