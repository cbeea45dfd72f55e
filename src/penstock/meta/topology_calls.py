"""`TopologyCalls`: the typed methods of `meta.proto` for topics, shards and segments.

They propose the same commands as a node's own client, and `UpdateCache` pushes the same changes as
`Watch`: a client that knows only the `.proto` file needs no MessagePack.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from google.protobuf.message import Message as WireMessage

from penstock.errors import BadRequestError, NotSupportedError, UnknownShardError
from penstock.meta.client import DEFAULT_NAMESPACE, MetaClient, Update
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.state.constants import is_plugin_storage
from penstock.meta.topology_messages import (
    config_from_wire,
    segment_to_wire,
    shard_to_wire,
    topic_to_wire,
    update_to_wire,
)
from penstock.meta.watch import Watch
from penstock.platform.calls.parked_calls import Steps
from penstock.platform.calls.wakeup import Pause, Wakeup
from penstock.record import ShardId

_WATCH_QUEUE_MAX: Final = 10_000
_WATCH_WAIT_SECONDS: Final = 5.0

R = TypeVar("R", bound=WireMessage)


class TopologyCalls:
    """A node that does not lead the metadata passes the commands to the leader."""

    def __init__(self, client: MetaClient) -> None:
        self._client = client
        self._ending: Final = threading.Event()

    def placement_create_topic(
        self, request: pb.PlacementCreateTopicRequest
    ) -> pb.PlacementCreateTopicReply:
        self._check_cluster(request.cluster_name)
        if request.config.replication > 1 and is_plugin_storage(request.config.storage_type):
            raise NotSupportedError(
                f"config.replication is {request.config.replication}: create a topic of the engine "
                f"{request.config.storage_type} through a storage node, which knows whether the "
                "engine can copy shards"
            )
        topic = self._client.placement_create_topic(
            request.topic_name,
            namespace=request.namespace or DEFAULT_NAMESPACE,
            partitions=request.partitions or 1,
            config=config_from_wire(request.config),
            request_id=request.request_id,
        )
        return pb.PlacementCreateTopicReply(topic=topic_to_wire(topic))

    def create_shard(self, request: pb.CreateShardRequest) -> pb.CreateShardReply:
        self._check_cluster(request.cluster_name)
        shard = self._client.create_shard(ShardId.parse(request.shard_name))
        return pb.CreateShardReply(shard=shard_to_wire(shard))

    def delete_shard(self, request: pb.DeleteShardRequest) -> pb.DeleteShardReply:
        self._check_cluster(request.cluster_name)
        shard = ShardId.parse(request.shard_name)
        if self._client.get_shard(shard) is None:
            raise UnknownShardError(request.shard_name)
        self._client.delete_shard(shard)
        return pb.DeleteShardReply()

    def create_next_segment(
        self, request: pb.CreateNextSegmentRequest
    ) -> pb.CreateNextSegmentReply:
        self._check_cluster(request.cluster_name)
        segment = self._client.next_segment(
            ShardId.parse(request.shard_name),
            request.segment,
            request.end_offset,
            epoch=request.leader_epoch if request.HasField("leader_epoch") else None,
        )
        return pb.CreateNextSegmentReply(segment=segment_to_wire(segment))

    def seal_up_segment(self, request: pb.SealUpSegmentRequest) -> pb.SealUpSegmentReply:
        self._check_cluster(request.cluster_name)
        segment = self._client.seal_segment(
            ShardId.parse(request.shard_name), request.segment, request.end_offset
        )
        return pb.SealUpSegmentReply(segment=segment_to_wire(segment))

    def update_cache(self, request: pb.UpdateCacheRequest) -> Steps:
        self._check_cluster(request.cluster_name)
        return self.push_updates(
            request.after_revision,
            update_to_wire,
            level=pb.UpdateCacheReply(is_level=True),
            idle=pb.UpdateCacheReply(),
        )

    def push_updates(
        self, after: int, to_replies: Callable[[Update], Iterable[R]], *, level: R, idle: R
    ) -> Steps:
        """Yield every change after a revision, `level` when those from before the call are sent,
        and `idle` while nothing changes, so that the end of a silent client is noticed. A client
        that falls `_WATCH_QUEUE_MAX` updates back is cut off; it continues with another call."""
        wakeup = Wakeup()
        updates: deque[Update] = deque()
        watch: Watch | None = None

        def enqueue(update: Update) -> None:
            updates.append(update)
            if watch is not None and len(updates) >= _WATCH_QUEUE_MAX:
                watch.close()
            wakeup.set()

        watch = self._client.watch(after, enqueue)
        try:
            # The queue's bound does not hold for these: they came before `watch` returned.
            for _ in range(len(updates)):
                for reply in to_replies(updates.popleft()):
                    yield reply
            yield level
            while not (watch.is_closed or self._ending.is_set()):
                if updates:
                    for reply in to_replies(updates.popleft()):
                        yield reply
                elif not (yield Pause(wakeup, _WATCH_WAIT_SECONDS)):
                    yield idle
        finally:
            watch.close()

    def end_watches(self) -> None:
        """End pushes when they look next, before the server stops."""
        self._ending.set()

    def _check_cluster(self, name: str) -> None:
        if name and name != self._client.cluster_id:
            raise BadRequestError(f"this is cluster {self._client.cluster_id}, not {name!r}")
