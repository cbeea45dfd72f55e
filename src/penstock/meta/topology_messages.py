"""Topics, shards, segments and nodes as the typed messages of `meta.proto`, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.meta import events as cmd
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.state.model import (
    RECORD_SIZE_MAX,
    TOMBSTONE_RETENTION_MS,
    Node,
    Segment,
    Shard,
    TieringPolicy,
    Topic,
    TopicConfig,
)
from penstock.meta.watch import Update
from penstock.record import ShardId

REPLY_SIZE_MAX: Final = 1 << 20
"""Bytes of updates in one pushed reply: gRPC clients accept messages of 4 MiB by default."""


def config_from_wire(message: pb.TopicConfig) -> TopicConfig:
    """Return the configuration of a request; absent fields have their defaults."""
    has = message.HasField
    return TopicConfig(
        storage_type=message.storage_type or "EngineSegment",
        replication=message.replication if has("replication") else 1,
        min_insync=message.min_insync if has("min_insync") else None,
        retention_ms=message.retention_ms if has("retention_ms") else None,
        retention_bytes=message.retention_bytes if has("retention_bytes") else None,
        retention_records=message.retention_records if has("retention_records") else None,
        flush=message.flush or "ASYNC_FLUSH",
        cleanup=message.cleanup or "delete",
        partitioner=message.partitioner or "round_robin",
        record_size_max=message.record_size_max if has("record_size_max") else RECORD_SIZE_MAX,
        queue_kind=message.queue_kind or "SimpleCQ",
        tiering=_tiering_from_wire(message.tiering) if has("tiering") else None,
        memory_records_max=message.memory_records_max if has("memory_records_max") else None,
        memory_bytes_max=message.memory_bytes_max if has("memory_bytes_max") else None,
        segment_size=message.segment_size if has("segment_size") else None,
        segment_age_ms=message.segment_age_ms if has("segment_age_ms") else None,
        tombstone_retention_ms=(
            message.tombstone_retention_ms
            if has("tombstone_retention_ms")
            else TOMBSTONE_RETENTION_MS
        ),
        compaction_lag_ms=message.compaction_lag_ms,
        tag_header=message.tag_header if has("tag_header") else None,
        kafka_settings=tuple(sorted(message.kafka_settings.items())),
    )


def _tiering_from_wire(message: pb.TieringPolicy) -> TieringPolicy:
    has = message.HasField
    return TieringPolicy(
        provider=message.provider,
        storage_level=message.storage_level or "NOT_IN_DISK",
        uploader=message.uploader or "broker",
        local_retention_ms=message.local_retention_ms if has("local_retention_ms") else None,
        local_retention_bytes=(
            message.local_retention_bytes if has("local_retention_bytes") else None
        ),
        tier_retention_ms=message.tier_retention_ms if has("tier_retention_ms") else None,
        upload_interval_ms=message.upload_interval_ms if has("upload_interval_ms") else None,
        upload_bytes=message.upload_bytes if has("upload_bytes") else None,
    )


def config_to_wire(config: TopicConfig) -> pb.TopicConfig:
    return pb.TopicConfig(
        storage_type=config.storage_type,
        replication=config.replication,
        min_insync=config.min_insync,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        retention_records=config.retention_records,
        flush=config.flush,
        cleanup=config.cleanup,
        partitioner=config.partitioner,
        record_size_max=config.record_size_max,
        queue_kind=config.queue_kind,
        tiering=None if config.tiering is None else _tiering_to_wire(config.tiering),
        memory_records_max=config.memory_records_max,
        memory_bytes_max=config.memory_bytes_max,
        segment_size=config.segment_size,
        segment_age_ms=config.segment_age_ms,
        tombstone_retention_ms=config.tombstone_retention_ms,
        compaction_lag_ms=config.compaction_lag_ms,
        tag_header=config.tag_header,
        kafka_settings=dict(config.kafka_settings),
    )


def _tiering_to_wire(policy: TieringPolicy) -> pb.TieringPolicy:
    return pb.TieringPolicy(
        provider=policy.provider,
        storage_level=policy.storage_level,
        uploader=policy.uploader,
        local_retention_ms=policy.local_retention_ms,
        local_retention_bytes=policy.local_retention_bytes,
        tier_retention_ms=policy.tier_retention_ms,
        upload_interval_ms=policy.upload_interval_ms,
        upload_bytes=policy.upload_bytes,
    )


def topic_to_wire(topic: Topic) -> pb.Topic:
    return pb.Topic(
        topic_id=topic.topic_id,
        namespace=topic.namespace,
        topic_name=topic.name,
        partitions=topic.partitions,
        config=config_to_wire(topic.config),
        status=topic.status,
        created_at_ms=topic.created_at_ms,
        revision=topic.revision,
    )


def shard_to_wire(shard: Shard) -> pb.Shard:
    return pb.Shard(
        shard_name=shard.name,
        topic_id=shard.topic_id,
        partition=shard.partition,
        replicas=shard.replicas,
        in_sync=shard.in_sync,
        leader=shard.leader,
        leader_epoch=shard.leader_epoch,
        first_segment=shard.first_segment,
        active_segment=shard.active_segment,
        status=shard.status,
        revision=shard.revision,
    )


def segment_to_wire(segment: Segment) -> pb.Segment:
    return pb.Segment(
        shard_name=segment.shard.name,
        number=segment.number,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        status=segment.status,
        leader=segment.leader,
        leader_epoch=segment.leader_epoch,
        created_at_ms=segment.created_at_ms,
        sealed_at_ms=segment.sealed_at_ms,
    )


def _node_to_wire(node: Node) -> pb.Node:
    return pb.Node(
        node_id=node.node_id,
        address=node.address,
        listeners=node.listeners,
        roles=node.roles,
        boot_id=node.boot_id,
        epoch=node.epoch,
        status=node.status,
        registered_at_ms=node.registered_at_ms,
    )


def update_to_wire(update: Update) -> Iterator[pb.UpdateCacheReply]:
    """Yield one reply, or several when one would be larger than `REPLY_SIZE_MAX`."""
    reply = pb.UpdateCacheReply(revision=update.revision, is_reset=update.is_reset)
    size = 0
    for event in update.events:
        change = _event_to_wire(event)
        size += change.ByteSize()
        if reply.updates and size > REPLY_SIZE_MAX:
            reply.has_more = True
            yield reply
            reply = pb.UpdateCacheReply(revision=update.revision)
            size = change.ByteSize()
        reply.updates.append(change)
    yield reply


def _event_to_wire(event: cmd.Event) -> pb.CacheUpdate:
    match event:
        case cmd.TopicPut(topic):
            return pb.CacheUpdate(topic_put=topic_to_wire(topic))
        case cmd.TopicDeleted(topic):
            return pb.CacheUpdate(topic_deleted=topic_to_wire(topic))
        case cmd.ShardPut(shard):
            return pb.CacheUpdate(shard_put=shard_to_wire(shard))
        case cmd.ShardDeleted(topic_id, partition):
            return pb.CacheUpdate(shard_deleted=ShardId(topic_id, partition).name)
        case cmd.SegmentPut(segment):
            return pb.CacheUpdate(segment_put=segment_to_wire(segment))
        case cmd.SegmentDeleted(topic_id, partition, number):
            name = pb.SegmentName(shard_name=ShardId(topic_id, partition).name, number=number)
            return pb.CacheUpdate(segment_deleted=name)
        case cmd.NodePut(node):
            return pb.CacheUpdate(node_put=_node_to_wire(node))
        case cmd.NodeRemoved(node_id):
            return pb.CacheUpdate(node_removed=node_id)
