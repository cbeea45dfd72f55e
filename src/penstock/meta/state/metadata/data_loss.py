"""Data loss: nodes that come back without their records, and the state of their shards.

A node names its data directory when it registers. Another one than the last time means that its
replicas are empty: it must neither lead nor count as in sync. A shard without another replica in
sync is lost; the shard keeps that status, and is not replaced by an empty one, until an operator
deletes the topic or accepts the loss.

All this is for shards with one copy; those with several follow the rules of `replica_sets`.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.meta.events import Event, SegmentDeleted, SegmentPut, ShardPut
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import ACTIVE, LOST, MEMORY_STORAGE
from penstock.meta.state.metadata.commands import (
    AcceptDataLoss,
    Change,
    Done,
    Moment,
    ReportEngineLoss,
    RestoreShard,
    ShardsResult,
)
from penstock.meta.state.metadata.replica_sets import is_replicated
from penstock.meta.state.metadata.replication import Restart, restart_node
from penstock.meta.state.metadata.rows import LEASES, LOSSES, SEGMENTS, SHARDS, TOPICS
from penstock.meta.state.metadata.shards import find_shard, first_segment, put_led
from penstock.meta.state.model import Loss, Shard
from penstock.meta.state.view import View


def lose_replicas(
    view: View, node_id: int, moment: Moment, storage_type: str | None = None
) -> list[Event]:
    """Note in all shards with one copy that their node has nothing any more, or nothing of one
    storage type."""
    events: list[Event] = []
    for shard in list(SHARDS.scan(view)):
        if (
            node_id in shard.in_sync
            and shard.status == ACTIVE
            and _is_kept(view, shard, storage_type)
        ):
            others = tuple(node for node in shard.in_sync if node != node_id)
            is_led = shard.leader not in {None, node_id}
            without = replace(
                shard,
                in_sync=others or shard.in_sync,
                leader=shard.leader if is_led else None,
                leader_epoch=shard.leader_epoch if is_led else shard.leader_epoch + 1,
                status=ACTIVE if others else LOST,
                revision=moment.revision,
            )
            events += put_led(view, without)
    return events


def report_engine_loss(view: View, command: ReportEngineLoss, moment: Moment) -> Change:
    events = lose_replicas(view, command.node_id, moment, command.storage_type)
    restart = Restart(is_same_run=False, is_proven=False, is_store_lost=True)
    events += restart_node(view, command.node_id, restart, moment, command.storage_type)
    loss = Loss(engine_id=command.engine_id)
    for event in events:
        if isinstance(event, ShardPut) and event.shard.status == LOST:
            LOSSES.put(view, loss, event.shard.topic_id, event.shard.partition)
    return Change(Done(), tuple(events))


def restore_lost_shard(view: View, command: RestoreShard, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    loss = LOSSES.get(view, command.topic_id, command.partition)
    is_known = loss is not None and loss.engine_id == command.engine_id
    if shard.status == LOST and not (is_known and command.node_id in shard.in_sync):
        return Rejected("stale", f"{shard.name} was not lost with this directory", shard.name)
    if shard.status != LOST:
        if is_known:
            return Change(ShardsResult((shard,)), ())  # found before
        return Rejected("bad_request", f"{shard.name} is {shard.status}, not lost", shard.name)
    restored = replace(
        shard,
        in_sync=(command.node_id,),
        leader=command.node_id,
        leader_epoch=shard.leader_epoch + 1,
        status=ACTIVE,
        revision=moment.revision,
    )
    return Change(ShardsResult((restored,)), tuple(put_led(view, restored)))


def _is_kept(view: View, shard: Shard, storage_type: str | None) -> bool:
    """Whether losing the records counts as data loss: topics in memory lose them with every start,
    and those of deleted topics are not needed."""
    topic = TOPICS.get(view, shard.topic_id)
    if topic is None or topic.status != ACTIVE or is_replicated(shard, topic.config):
        return False
    kept_in = topic.config.storage_type
    return kept_in != MEMORY_STORAGE and storage_type in {None, kept_in}


def accept_data_loss(view: View, command: AcceptDataLoss, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    if shard.status != LOST:
        return Rejected("bad_request", f"{shard.name} is {shard.status}, not lost", shard.name)
    events: list[Event] = []
    for number in range(shard.first_segment, shard.active_segment + 1):
        SEGMENTS.delete(view, shard.topic_id, shard.partition, number)
        events.append(SegmentDeleted(shard.topic_id, shard.partition, number))
    LEASES.delete(view, shard.topic_id, shard.partition)
    LOSSES.delete(view, shard.topic_id, shard.partition)
    begun = replace(
        shard,
        in_sync=shard.replicas,
        # Of several the controller chooses one.
        leader=shard.replicas[0] if len(shard.replicas) == 1 else None,
        leader_epoch=shard.leader_epoch + 1,
        active_segment=0,
        first_segment=0,
        status=ACTIVE,
        revision=moment.revision,
    )
    segment = first_segment(begun, moment)
    SHARDS.put(view, begun, shard.topic_id, shard.partition)
    SEGMENTS.put(view, segment, shard.topic_id, shard.partition, 0)
    return Change(ShardsResult((begun,)), (*events, ShardPut(begun), SegmentPut(segment)))
