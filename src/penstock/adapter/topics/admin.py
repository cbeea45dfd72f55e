"""Creates, alters and deletes topics, so that a failure or a crash leaves nothing half done.

    create    validate ─▶ topic, shards and first segments in the metadata log ─▶ caches show them
              (30 s for the topic, 3 s for the shards) ─▶ engines create the shards ─▶ writable;
              when a step fails, what the earlier ones did is undone
    alter     metadata ─▶ caches ─▶ engines take the configuration, new partitions are created
    delete    metadata: the name is free, no request reaches the shards ─▶ engines delete them ─▶
              metadata forgets each ─▶ consumers' offsets go

A crash between the steps is dealt with at the next start (`engine.reconcile`, `finish_…`):
the metadata decides. A topic that is created again has another id, so it never sees old data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.adapter.topics.cache import BrokerCacheManager
from penstock.adapter.topics.description import TopicDescription, describe
from penstock.adapter.topics.options import alter_config, build_config
from penstock.adapter.topics.routes import TopicRoutes
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.contract import ReplicatedEngine, ShardConfig
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.per_shard_engine import check_config
from penstock.engine.routing.storage_cache import shard_config
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    DeadlineError,
    NotSupportedError,
    RetryableError,
    StoreError,
    UnknownTopicError,
)
from penstock.meta import (
    DEFAULT_NAMESPACE,
    LOST,
    PARTITIONS_MAX,
    MetadataClient,
    NewTopic,
    Shard,
    Topic,
    TopicConfig,
    abandoned_shards,
    is_plugin_storage,
)
from penstock.offsets import OffsetManager
from penstock.platform.log import get_logger
from penstock.record import ShardId

TOPIC_TIMEOUT_S: Final = 30.0
SHARD_TIMEOUT_S: Final = 3.0
NAME_SIZE_MAX: Final = 1_000
LEADING_S: Final = 3.0
"""How long the creation of a topic waits until this node leads its replicated shards."""
REPLICATION_MAX: Final = 9

_log: Final = get_logger(__name__)


class NewTopicRequest(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    options: Mapping[str, object]
    replicas: tuple[tuple[int, ...], ...] = ()
    """The nodes of each partition, the preferred leader first; empty: the cluster chooses."""


class TopicAdmin:
    def __init__(
        self,
        meta: MetadataClient,
        handler: StorageEngineHandler,
        topics: BrokerCacheManager,
        routes: TopicRoutes,
        offsets: OffsetManager,
        *,
        defaults: TopicConfig | None = None,
        default_partitions: int = 1,
        is_controller: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_controller` says whether this node does what must be done for nodes that are gone."""
        self._meta: Final = meta
        self._handler: Final = handler
        self._topics: Final = topics
        self._routes: Final = routes
        self._offsets: Final = offsets
        self.defaults: Final = defaults if defaults is not None else TopicConfig()
        """What a topic is created with where its creator does not say."""
        self.default_partitions: Final = default_partitions
        self._is_controller: Final = is_controller

    # Creating

    def create_topic_full(
        self,
        name: str,
        partitions: int = 1,
        options: Mapping[str, object] | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        request_id: str = "",
    ) -> Topic:
        """Create a topic and return it when it can be written to. Raises `AlreadyExistsError`,
        `BadRequestError`, `DeadlineError`; then nothing is left of it."""
        config = build_config(options or {}, self.defaults)
        self._check(name, partitions, config)
        topic = self._meta.create_topic(
            name,
            namespace=namespace,
            partitions=partitions,
            config=config,
            request_id=request_id,
        )
        self._make_usable(topic)
        return topic

    def create_topics(
        self, requests: Sequence[NewTopicRequest], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Topic | StoreError]:
        """Create several topics, each as by `create_topic_full`, with one write of the metadata;
        an error stands where a topic would."""
        outcomes: list[Topic | StoreError | None] = []
        checked: list[NewTopic] = []
        for request in requests:
            try:
                config = build_config(request.options, self.defaults)
                self._check(request.name, request.partitions, config)
            except StoreError as error:
                outcomes.append(error)
            else:
                checked.append(NewTopic(request.name, request.partitions, config, request.replicas))
                outcomes.append(None)
        created = iter(self._meta.create_topics(checked, namespace=namespace) if checked else ())
        return [self._usable(next(created)) if outcome is None else outcome for outcome in outcomes]

    def _usable(self, topic: Topic | StoreError) -> Topic | StoreError:
        if isinstance(topic, StoreError):
            return topic
        try:
            self._make_usable(topic)
        except StoreError as error:
            return error
        return topic

    def _make_usable(self, topic: Topic) -> None:
        try:
            self._wait_for(topic)
            self.create_storage_resource(topic)
        except BaseException:
            self._undo(topic)
            raise
        _log.info("topic_created", topic=topic.topic_id, partitions=topic.partitions)

    def _wait_for(self, topic: Topic) -> None:
        if not self._topics.wait_for_topic(topic, TOPIC_TIMEOUT_S):
            raise DeadlineError(
                f"topic {topic.name!r} was changed in the metadata, but this node did not see it "
                f"within {TOPIC_TIMEOUT_S:g} s"
            )
        shown = self._topics.topics.get((topic.namespace, topic.name))
        if shown is None or shown.topic_id != topic.topic_id:
            raise UnknownTopicError(topic.name)  # deleted meanwhile

    def create_storage_resource(self, topic: Topic) -> None:
        """Place the shards that a topic lacks, wait until they are known here, and create them in
        the engines of the nodes that lead them; those that are there stay as they are."""
        ids = [ShardId(topic.topic_id, partition) for partition in range(topic.partitions)]
        known = self._handler.cache.shards
        missing = [shard.partition for shard in ids if shard.name not in known]
        if missing:
            self._meta.create_shards(topic.topic_id, missing)
        late = self._handler.cache.wait_for_shards(
            topic.topic_id, (shard.name for shard in ids), SHARD_TIMEOUT_S
        )
        if topic.topic_id not in self._handler.cache.topics:
            raise UnknownTopicError(topic.name)
        if late:
            raise DeadlineError(
                f"{len(late)} of {len(ids)} shards of topic {topic.name!r} were not known here "
                f"within {SHARD_TIMEOUT_S:g} s, {late[0]!r} among them"
            )
        entries = [self._handler.find(shard.name) for shard in ids]
        for entry in entries:
            if entry.meta is not None and self._handler.node_id in entry.meta.replicas:
                self._handler.open_shard(entry)
        self._handler.open_elsewhere(entries)
        names = [entry.name for entry in entries]
        self._handler.cache.wait_until_led(names, self._handler.node_id, LEADING_S)
        self._routes.invalidate()

    def _undo(self, topic: Topic) -> None:
        try:
            self._meta.delete_topic(topic.topic_id)
            self._remove_shards(topic)
        except StoreError as error:
            # The next start finds the topic with all of its shards, or none of it.
            _log.error("topic_creation_not_undone", cause=error, topic=topic.topic_id)

    def check_creation(
        self,
        name: str,
        partitions: int,
        options: Mapping[str, object],
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> TopicConfig:
        """Return what a topic would be created with, or raise what its creation would."""
        config = build_config(options, self.defaults)
        self._check(name, partitions, config)
        if (namespace, name) in self._topics.topics:
            raise AlreadyExistsError(f"topic {name!r} exists")
        return config

    # Altering

    def check_alteration(
        self, name: str, options: Mapping[str, object], *, namespace: str = DEFAULT_NAMESPACE
    ) -> TopicConfig:
        """Return what a topic would be altered to, or raise what the alteration would."""
        before = self._topics.get_topic(name, namespace)
        config = alter_config(before.config, options)
        self._check(name, before.partitions, config)
        return config

    def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        options: Mapping[str, object] | None = None,
        expected_revision: int | None = None,
        replicas: Sequence[Sequence[int]] = (),
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Topic:
        """Change a topic: options that are not named stay, partitions can grow, on the nodes that
        `replicas` names for each new one or the cluster chooses."""
        before = self._topics.get_topic(name, namespace)
        config = alter_config(before.config, options or {})
        self._check(name, before.partitions if partitions is None else partitions, config)
        topic = self._meta.alter_topic(
            before.topic_id,
            partitions=partitions,
            config=config if options else None,
            expected_revision=expected_revision,
            replicas=replicas,
        )
        self._wait_for(topic)
        if options and shard_config(before.config) != shard_config(topic.config):
            self._alter_shards(topic, range(before.partitions))
        if partitions is not None:
            # Also when they are not more than before: an earlier change may have been cut short.
            self.create_storage_resource(topic)
        _log.info("topic_altered", topic=topic.topic_id, partitions=topic.partitions)
        return topic

    def _alter_shards(self, topic: Topic, partitions: Sequence[int]) -> None:
        """Return when the leaders of the shards use the configuration; see `ShardAlterations` for
        their other replicas."""
        for partition in partitions:
            entry = self._handler.find(build_storage_name(topic.topic_id, partition))
            if entry.is_open:
                self._handler.alter_entry(entry)
            try:
                self._handler.alter_elsewhere(entry)
            except RetryableError as error:
                # The node that leads it follows the metadata, or does when it starts again.
                _log.warning("shard_not_altered", shard=entry.name, reason=str(error))

    # Deleting

    def delete_topic(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Delete a topic, its records and its consumers' offsets. Raises `UnknownTopicError`."""
        topic = self._topics.get_topic(name, namespace)
        deleted = self._meta.delete_topic(topic.topic_id)
        if not self._topics.wait_for_topic(deleted, TOPIC_TIMEOUT_S):
            raise DeadlineError(
                f"topic {name!r} was deleted, but this node did not see that within "
                f"{TOPIC_TIMEOUT_S:g} s"
            )
        try:
            self._remove_shards(topic)
            self._offsets.remove_topic(topic.topic_id)
        except StoreError as error:
            # The topic is gone for all clients; the next start removes its remains.
            _log.error("topic_leftovers", cause=error, topic=topic.topic_id)
        _log.info("topic_deleted", topic=topic.topic_id)

    def finish_creations(self) -> int:
        """Create the shards that topics lack since a crash interrupted their growth; return of how
        many topics. What cannot be done now is left to the next start."""
        done = 0
        known = self._handler.cache.shards
        for topic in self._topics.list_topics():
            last = build_storage_name(topic.topic_id, topic.partitions - 1)
            if last in known:
                continue  # shards are created in their order
            if not self._is_mine(topic):
                continue  # another node is about to, or the one that leads does
            try:
                self.create_storage_resource(topic)
            except StoreError as error:
                _log.error("topic_incomplete", cause=error, topic=topic.topic_id)
            else:
                done += 1
        return done

    def finish_deletions(self) -> int:
        """Complete what a crash interrupted; return how many topics that were. What cannot be
        done now is left to the next start."""
        done = 0
        for topic in self._meta.list_deleting_topics():
            try:
                if self._remove_shards(topic):
                    self._offsets.remove_topic(topic.topic_id)
                    done += 1
            except StoreError as error:
                _log.error("topic_leftovers", cause=error, topic=topic.topic_id)
        return done

    def _is_mine(self, topic: Topic) -> bool:
        first = self._handler.cache.shards.get(build_storage_name(topic.topic_id, 0))
        if first is not None and first.meta is not None:
            return self._handler.node_id in first.meta.replicas
        return self._is_controller()

    def _remove_shards(self, topic: Topic) -> bool:
        """Delete this node's shards of a topic, and those whose nodes are gone; return whether none
        is left. Other nodes delete their own. A shard that cannot be deleted does not stop the
        others; the first error is raised at the end."""
        shards = self._meta.list_shards(topic.topic_id)
        mine = [shard for shard in shards if self._handler.node_id in shard.replicas]
        is_open = topic.config.storage_type in self._handler.engines.opened()
        gone: list[Shard] = []
        failure: StoreError | None = None
        for shard in mine:
            try:
                # Of a lost one there is nothing: an engine that is made for it would take the
                # place of the one that is gone, and that may be put back.
                if shard.status != LOST or is_open:
                    self._handler.delete_shard(shard.id, topic.config.storage_type)
            except StoreError as error:
                failure = failure or error
            else:
                gone.append(shard)
        if len(mine) < len(shards) and self._is_controller():
            nodes = {self._handler.node_id, *(node.node_id for node in self._meta.list_nodes())}
            gone += abandoned_shards(shards, nodes)
        # One request for all: a topic of a thousand partitions needs no thousand syncs.
        self._delete_shards(topic, gone)
        if failure is not None:
            raise failure
        return len(gone) == len(shards) and not self._meta.list_shards(topic.topic_id)

    def _delete_shards(self, topic: Topic, gone: Sequence[Shard]) -> None:
        """Remove shards that are gone from the metadata: of a replicated one, this node's copy."""
        node = self._handler.node_id
        copied = [shard for shard in gone if len(shard.replicas) > 1 and node in shard.replicas]
        partitions = [shard.partition for shard in gone if shard not in copied]
        self._meta.delete_shards(topic.topic_id, partitions)
        if copied:
            copies = [shard.partition for shard in copied]
            self._meta.delete_shards(topic.topic_id, copies, node_id=node)

    # Describing

    def describe_topic(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> TopicDescription:
        topic = self._topics.get_topic(name, namespace)
        return describe(self._handler, topic, self._routes.find(name, namespace).shards)

    def _check(self, name: object, partitions: object, config: TopicConfig) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= NAME_SIZE_MAX:
            raise BadRequestError(
                f"a topic's name is a text of 1 to {NAME_SIZE_MAX} characters, not {name!r}"
            )
        if not isinstance(partitions, int) or isinstance(partitions, bool):
            raise BadRequestError(f"partitions is a number, not {partitions!r}")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise BadRequestError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        if config.replication > REPLICATION_MAX:
            raise BadRequestError(
                f"replication is {config.replication}; a shard has at most {REPLICATION_MAX} "
                "replicas"
            )
        if config.replication > 1:
            self._check_replicated(config.storage_type)
        if config.record_size_max > self.defaults.record_size_max:
            raise BadRequestError(
                f"record_size_max is {config.record_size_max}; "
                f"this node takes {self.defaults.record_size_max} (engine.record_size_max)"
            )
        check_config(_as_shard_config(config))

    def _check_replicated(self, storage_type: str) -> None:
        """Raise for an engine of another package that cannot copy its shards."""
        if is_plugin_storage(storage_type) and not isinstance(
            self._handler.engines.get(storage_type), ReplicatedEngine
        ):
            raise NotSupportedError(
                f"the engine {storage_type} keeps one copy of a record; create the topic with "
                "replication = 1, or with another storage"
            )


def _as_shard_config(config: TopicConfig) -> ShardConfig:
    try:
        return shard_config(config)
    except ValueError as error:
        raise BadRequestError(f"a topic cannot be kept so: {error}") from error
