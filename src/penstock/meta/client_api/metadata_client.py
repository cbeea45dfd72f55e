"""`MetadataClient` over a log: proposes commands and reads rows.

Shared by the standalone, the Raft and the remote client; without an override of `_place` this node
holds and leads every shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from penstock.errors import BadRequestError, StoreError, UnknownTopicError
from penstock.meta.client import NewTopic
from penstock.meta.client_api.metadata_proposer import expect_result
from penstock.meta.client_api.node_client import LogNodeClient
from penstock.meta.controller.decisions import storage_nodes
from penstock.meta.identifiers import ULID_RANDOM_SIZE, make_topic_id
from penstock.meta.rejections import check_partition, check_text
from penstock.meta.state.constants import (
    ACTIVE,
    DEFAULT_NAMESPACE,
    PLUGIN_STORAGE_ROLE,
    STORAGE_ALIASES,
    STORAGE_TYPES,
    is_plugin_storage,
    storage_type,
)
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.rows import (
    MEMBERS,
    NODES,
    SEGMENTS,
    SHARDS,
    TOPICS,
    find_topic,
    list_topics,
)
from penstock.meta.state.model import Segment, Shard, Topic, TopicConfig
from penstock.record import ShardId


class LogMetadataClient(LogNodeClient):
    """See `MetadataClient` for what the methods promise."""

    # -- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        partitions: int = 1,
        config: TopicConfig | None = None,
        request_id: str = "",
    ) -> Topic:
        command = self._placed_topic(name, namespace, partitions, config)
        topic = self._done(command, cmd.TopicResult, request_id).topic
        self.create_shards(topic.topic_id, range(cmd.PLACEMENTS_MAX, topic.partitions))
        return topic

    def create_topics(
        self, topics: Sequence[NewTopic], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Topic | StoreError]:
        commands: list[cmd.CreateTopic | StoreError] = []
        for topic in topics:
            try:
                command = self._new_topic(topic.name, namespace, topic.partitions, topic.config)
                placements = self._assigned(range(topic.partitions), topic.replicas)
                commands.append(replace(command, placements=placements))
            except StoreError as error:
                commands.append(error)
        outcomes: list[Topic | StoreError | None] = []
        requests: list[bytes] = []
        for placed in self._place_all(commands):
            try:
                if isinstance(placed, StoreError):
                    raise placed
                requests.append(self._encoded(placed))
                outcomes.append(None)
            except StoreError as error:
                outcomes.append(error)
        answers = iter(self._group.propose_many(requests))
        self._watchers.deliver()
        return [
            self._created(next(answers)) if outcome is None else outcome for outcome in outcomes
        ]

    def _place_all(
        self, commands: Sequence[cmd.CreateTopic | StoreError]
    ) -> Iterator[cmd.CreateTopic | StoreError]:
        """Place the shards of several topics as if they were one topic's: spread over the nodes."""
        counts: Counter[int] = Counter()
        for command in commands:
            if not isinstance(command, StoreError) and not command.placements:
                counts[command.config.replication] += _placed_count(command)
        places = {
            replication: iter(self._place(range(count), replication))
            for replication, count in counts.items()
        }
        for command in commands:
            if isinstance(command, StoreError) or command.placements:
                yield command
            else:
                own = islice(places[command.config.replication], _placed_count(command))
                numbered = (
                    replace(entry, partition=partition) for partition, entry in enumerate(own)
                )
                yield replace(command, placements=tuple(numbered))

    def _created(self, answer: cmd.Answer | StoreError) -> Topic | StoreError:
        if isinstance(answer, StoreError):
            return answer
        try:
            topic = expect_result(answer, cmd.TopicResult).topic
            self.create_shards(topic.topic_id, range(cmd.PLACEMENTS_MAX, topic.partitions))
        except StoreError as error:
            return error
        return topic

    def placement_create_topic(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        partitions: int = 1,
        config: TopicConfig | None = None,
        request_id: str = "",
    ) -> Topic:
        command = self._new_topic(name, namespace, partitions, config)
        return self._done(command, cmd.TopicResult, request_id).topic

    def restore_topic(
        self, topic_id: str, name: str, namespace: str, partitions: int, config: TopicConfig
    ) -> Topic:
        """Create a topic under the id that it had elsewhere; `AlreadyExistsError` when the id or
        the name is taken."""
        command = replace(
            self._placed_topic(name, namespace, partitions, config),
            topic_id=check_text("a topic id", topic_id),
        )
        topic = self._done(command, cmd.TopicResult).topic
        self.create_shards(topic.topic_id, range(cmd.PLACEMENTS_MAX, topic.partitions))
        return topic

    def alter_topic(
        self,
        topic_id: str,
        *,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        expected_revision: int | None = None,
        replicas: Sequence[Sequence[int]] = (),
        request_id: str = "",
    ) -> Topic:
        before = self.get_topic_by_id(topic_id)
        if before is None:
            raise UnknownTopicError(topic_id)
        added = range(before.partitions, before.partitions if partitions is None else partitions)
        command = cmd.AlterTopic(
            topic_id=topic_id,
            partitions=partitions,
            config=None if config is None else _named(config),
            expected_revision=expected_revision,
            placements=self._assigned(added, replicas),
        )
        self._check_alteration(before, partitions, command.config)
        topic = self._done(command, cmd.TopicResult, request_id).topic
        if topic.partitions > before.partitions and not replicas:
            self.create_shards(topic_id, range(before.partitions, topic.partitions))
        return topic

    def _check_alteration(
        self, before: Topic, partitions: int | None, config: TopicConfig | None
    ) -> None:
        """Raise when the nodes are too few for what a topic is to become."""
        config = config if config is not None else before.config
        is_larger = partitions is not None and partitions > before.partitions
        is_copied_more = config.replication > before.config.replication
        if config.replication > 1 and (is_larger or is_copied_more):
            self._check_replication(config.replication)
        if config.replication != before.config.replication:
            self._check_reassignment()
        if is_copied_more:
            shards = self.list_shards(before.topic_id)
            self._check_replicas_on({node for shard in shards for node in shard.replicas})

    def delete_topic(self, topic_id: str) -> Topic:
        return self._done(cmd.DeleteTopic(topic_id), cmd.TopicResult).topic

    def get_topic(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> Topic | None:
        check_text("a namespace", namespace)
        return find_topic(self._reader, namespace, check_text("a topic", name))

    def get_topic_by_id(self, topic_id: str) -> Topic | None:
        return TOPICS.get(self._reader, check_text("a topic id", topic_id))

    def list_topics(self, namespace: str | None = None) -> list[Topic]:
        if namespace is not None:
            check_text("a namespace", namespace)
        return list(list_topics(self._reader, namespace))

    def list_deleting_topics(self) -> list[Topic]:
        return [topic for topic in TOPICS.scan(self._reader) if topic.status != ACTIVE]

    # -- shards and segments ----------------------------------------------------------------------

    def create_shard(self, shard: ShardId) -> Shard:
        (created,) = self.create_shards(shard.topic, [shard.partition])
        return created

    def create_shards(self, topic_id: str, partitions: Sequence[int]) -> list[Shard]:
        created: list[Shard] = []
        topic = self.get_topic_by_id(topic_id) if partitions else None
        replication = 1 if topic is None else topic.config.replication
        for start in range(0, len(partitions), cmd.PLACEMENTS_MAX):
            some = partitions[start : start + cmd.PLACEMENTS_MAX]
            placements = self._place(some, replication, topic_id)
            result = self._done(cmd.CreateShards(topic_id, placements), cmd.ShardsResult)
            created += result.shards
        return created

    def delete_shard(self, shard: ShardId) -> None:
        self.delete_shards(shard.topic, [shard.partition])

    def delete_shards(
        self, topic_id: str, partitions: Sequence[int], *, node_id: int | None = None
    ) -> None:
        for start in range(0, len(partitions), cmd.PLACEMENTS_MAX):
            some = tuple(partitions[start : start + cmd.PLACEMENTS_MAX])
            self._done(cmd.DeleteShards(topic_id, some, node_id), cmd.Done)

    def get_shard(self, shard: ShardId) -> Shard | None:
        check_text("a topic id", shard.topic)
        return SHARDS.get(self._reader, shard.topic, check_partition(shard.partition))

    def list_shards(self, topic_id: str | None = None) -> list[Shard]:
        parts = () if topic_id is None else (check_text("a topic id", topic_id),)
        return list(SHARDS.scan(self._reader, *parts))

    def assign_leader(
        self,
        shard: ShardId,
        leader: int | None,
        epoch: int,
        *,
        replicas: Sequence[int] | None = None,
        in_sync: Sequence[int] | None = None,
    ) -> Shard:
        command = cmd.AssignLeader(
            topic_id=shard.topic,
            partition=shard.partition,
            leader=leader,
            epoch=epoch,
            replicas=None if replicas is None else tuple(replicas),
            in_sync=None if in_sync is None else tuple(in_sync),
        )
        return self._done(command, cmd.ShardsResult).shards[0]

    def next_segment(
        self, shard: ShardId, number: int, end_offset: int, *, epoch: int | None = None
    ) -> Segment:
        command = cmd.NextSegment(shard.topic, shard.partition, number, end_offset, epoch)
        return self._done(command, cmd.SegmentResult).segment

    def seal_segment(self, shard: ShardId, number: int, end_offset: int) -> Segment:
        return self.set_segment_status(shard, number, "sealed", end_offset=end_offset)

    def set_segment_status(
        self, shard: ShardId, number: int, status: str, *, end_offset: int | None = None
    ) -> Segment:
        command = cmd.SetSegmentStatus(shard.topic, shard.partition, number, status, end_offset)
        return self._done(command, cmd.SegmentResult).segment

    def delete_segments(self, shard: ShardId, before: int) -> None:
        self._done(cmd.DeleteSegments(shard.topic, shard.partition, before), cmd.Done)

    def list_segments(self, shard: ShardId) -> list[Segment]:
        check_text("a topic id", shard.topic)
        return list(SEGMENTS.scan(self._reader, shard.topic, check_partition(shard.partition)))

    def _new_topic(
        self, name: str, namespace: str, partitions: int, config: TopicConfig | None
    ) -> cmd.CreateTopic:
        check_text("a topic", name)
        check_partition(partitions)
        full_config = _named(config if config is not None else TopicConfig())
        if is_plugin_storage(full_config.storage_type):
            self._check_plugin_storage(full_config.storage_type)
        if full_config.replication > 1:
            self._check_replication(full_config.replication)
        topic_id = make_topic_id(name, self._clock.now_ms(), self._entropy(ULID_RANDOM_SIZE))
        return cmd.CreateTopic(
            topic_id=topic_id,
            namespace=namespace,
            name=name,
            partitions=partitions,
            config=full_config,
        )

    def _check_plugin_storage(self, storage_type: str) -> None:
        """Raise while a node runs a release that rejects plugin storage types: its state would
        differ from that of the others from this command on."""
        nodes = {node.node_id: node.roles for node in NODES.scan(self._reader)}
        for member in MEMBERS.scan(self._reader):
            nodes.setdefault(member.node_id, ())  # has not registered yet
        old = sorted(node for node, roles in nodes.items() if PLUGIN_STORAGE_ROLE not in roles)
        if old:
            raise BadRequestError(
                f"storage_type is {storage_type!r}, which these nodes have not said to accept: "
                f"{', '.join(map(str, old))}; upgrade them if their release is older, or wait "
                "until they have registered, and try again"
            )

    def _placed_topic(
        self, name: str, namespace: str, partitions: int, config: TopicConfig | None
    ) -> cmd.CreateTopic:
        """Return the command for a topic and as many of its shards as one command may name."""
        command = self._new_topic(name, namespace, partitions, config)
        placements = self._place(range(_placed_count(command)), command.config.replication)
        return replace(command, placements=placements)

    def _assigned(
        self, partitions: Sequence[int], replicas: Sequence[Sequence[int]]
    ) -> tuple[cmd.Placement, ...]:
        """Place partitions on the nodes that a caller names; the first one that is there leads."""
        if not replicas:
            return ()
        if len(replicas) != len(partitions) or len(replicas) > cmd.PLACEMENTS_MAX:
            raise BadRequestError(
                f"the replicas of {len(replicas)} partitions are named, and {len(partitions)} are "
                f"created; name all of them, at most {cmd.PLACEMENTS_MAX}"
            )
        able = storage_nodes(NODES.scan(self._reader), self._node_id)
        placements: list[cmd.Placement] = []
        for partition, nodes in zip(partitions, replicas, strict=True):
            leader = next((node for node in nodes if node in able), None)
            if leader is None:
                names = ", ".join(map(str, nodes))
                raise BadRequestError(
                    f"partition {partition}: none of its nodes ({names}) is online; name one of "
                    f"{', '.join(map(str, sorted(able)))}"
                )
            placements.append(cmd.Placement(partition, tuple(nodes), leader))
        return tuple(placements)

    def _check_replication(self, replication: int) -> None:
        """Raise when a topic cannot have so many replicas."""
        raise BadRequestError(
            f"replication {replication} needs {replication} nodes; this node is alone: create the "
            "topic with replication = 1, or start a cluster (node.peers)"
        )

    def _check_reassignment(self) -> None:
        """Raise while a node runs a release that cannot change the number of copies of a shard, or
        limit the rate at which it is copied."""

    def _check_replicas_on(self, nodes: Collection[int]) -> None:
        """Raise when one of the nodes cannot copy shards."""

    def _place(
        self,
        partitions: Iterable[int],
        replication: int,  # noqa: ARG002 - for the client of a cluster
        topic_id: str = "",  # noqa: ARG002 - for the client of a cluster
    ) -> tuple[cmd.Placement, ...]:
        """Choose nodes for new shards; `topic_id` names a topic that has some already."""
        node = self._node_id
        return tuple(cmd.Placement(partition, (node,), node) for partition in partitions)


def _placed_count(command: cmd.CreateTopic) -> int:
    """Return how many shards of a topic the command that creates it names."""
    return min(command.partitions, cmd.PLACEMENTS_MAX)


def _named(config: object) -> TopicConfig:
    """Return the configuration with the full name of its storage type."""
    if not isinstance(config, TopicConfig):
        raise BadRequestError(f"config must be a TopicConfig, not {config!r}")
    full = storage_type(config.storage_type)
    if full is None:
        known = ", ".join([*sorted(STORAGE_TYPES), *STORAGE_ALIASES])
        raise BadRequestError(f"storage_type is {config.storage_type!r}; expected one of {known}")
    return replace(config, storage_type=full)
