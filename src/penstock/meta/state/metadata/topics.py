"""Topics: created under an id that is never used again, altered, deleted.

A topic's name points at its id. Deleting a topic frees the name immediately and leaves the topic
`deleting` until its last shard is removed; a topic created again under the same name has another
id, so that it can never see old data.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.meta.events import Event, TopicDeleted, TopicPut
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import (
    ACTIVE,
    CLEANUPS,
    DELETING,
    FLUSH_MODES,
    LOST,
    PARTITIONERS,
    QUEUE_KINDS,
    STORAGE_LEVELS,
    STORAGE_TYPES,
    TOPIC_ID_CHARACTERS,
    TOPIC_ID_SIZE_MAX,
    UPLOADERS,
    is_plugin_storage,
)
from penstock.meta.state.keys import encode_key
from penstock.meta.state.metadata.commands import (
    AlterTopic,
    Change,
    CreateTopic,
    DeleteTopic,
    Moment,
    TopicResult,
)
from penstock.meta.state.metadata.replica_sets import min_insync_of
from penstock.meta.state.metadata.replication import follow_config
from penstock.meta.state.metadata.rows import NAMES_TABLE, SHARDS, TOPICS, find_topic_id
from penstock.meta.state.metadata.shards import check_placements, has_shards, open_shards
from penstock.meta.state.model import Topic, TopicConfig
from penstock.meta.state.view import View


def create_topic(view: View, command: CreateTopic, moment: Moment) -> Change | Rejected:
    problem = _topic_id_problem(command.topic_id) or _config_problem(command.config)
    if problem is not None:
        return Rejected("bad_request", problem)
    if TOPICS.get(view, command.topic_id) is not None:
        return Rejected("exists", f"topic id {command.topic_id} is taken", command.topic_id)
    if find_topic_id(view, command.namespace, command.name) is not None:
        return Rejected("exists", f"topic {command.name!r} exists", command.name)
    misplaced = check_placements(command.placements, command.partitions)
    if misplaced is not None:
        return misplaced
    topic = Topic(
        topic_id=command.topic_id,
        namespace=command.namespace,
        name=command.name,
        partitions=command.partitions,
        config=command.config,
        status=ACTIVE,
        created_at_ms=moment.time_ms,
        revision=moment.revision,
    )
    TOPICS.put(view, topic, topic.topic_id)
    view.put(encode_key(NAMES_TABLE, topic.namespace, topic.name), topic.topic_id.encode())
    opened = open_shards(view, topic, command.placements, moment)
    return Change(TopicResult(topic), (TopicPut(topic), *opened))


def alter_topic(view: View, command: AlterTopic, moment: Moment) -> Change | Rejected:
    topic = TOPICS.get(view, command.topic_id)
    if topic is None or topic.status != ACTIVE:
        return _unknown(command.topic_id)
    if command.expected_revision not in {None, topic.revision}:
        return Rejected(
            "stale",
            f"topic {topic.name!r} is at revision {topic.revision}, "
            f"not {command.expected_revision}",
            topic.name,
        )
    partitions = topic.partitions if command.partitions is None else command.partitions
    if partitions < topic.partitions:
        return Rejected(
            "bad_request",
            f"topic {topic.name!r} has {topic.partitions} partitions; they cannot become fewer",
        )
    config = topic.config if command.config is None else command.config
    problem = _config_problem(config) or _fixed_problem(topic.config, config)
    if problem is not None:
        return Rejected("bad_request", problem)
    misplaced = check_placements(command.placements, partitions)
    if misplaced is not None:
        return misplaced
    if topic.config.replication != config.replication and _has_lost(view, topic):
        return Rejected(
            "bad_request",
            f"no replica has all records of some shards of topic {topic.name!r}: elect leaders for "
            "them, or accept their loss, before its replication is changed",
        )
    altered = replace(topic, partitions=partitions, config=config, revision=moment.revision)
    TOPICS.put(view, altered, altered.topic_id)
    opened = open_shards(view, altered, command.placements, moment)
    if _replicas_of(topic.config) != _replicas_of(config):
        opened += follow_config(view, topic.config, altered, moment)
    return Change(TopicResult(altered), (TopicPut(altered), *opened))


def _has_lost(view: View, topic: Topic) -> bool:
    return any(
        shard.status == LOST or not (shard.in_sync or shard.eligible)
        for shard in SHARDS.scan(view, topic.topic_id)
    )


def _replicas_of(config: TopicConfig) -> tuple[int, int]:
    return config.replication, min_insync_of(config)


def delete_topic(view: View, command: DeleteTopic, moment: Moment) -> Change | Rejected:
    topic = TOPICS.get(view, command.topic_id)
    if topic is None or topic.status != ACTIVE:
        return _unknown(command.topic_id)
    deleted = replace(topic, status=DELETING, revision=moment.revision)
    view.delete(encode_key(NAMES_TABLE, topic.namespace, topic.name))
    if not has_shards(view, topic):
        TOPICS.delete(view, topic.topic_id)
    else:
        TOPICS.put(view, deleted, topic.topic_id)
    events: tuple[Event, ...] = (TopicDeleted(deleted),)
    return Change(TopicResult(deleted), events)


def _unknown(topic_id: str) -> Rejected:
    return Rejected("unknown_topic", f"topic {topic_id} does not exist", topic_id)


def _topic_id_problem(topic_id: str) -> str | None:
    if len(topic_id) > TOPIC_ID_SIZE_MAX:
        return f"a topic id has at most {TOPIC_ID_SIZE_MAX} characters, not {len(topic_id)}"
    if not TOPIC_ID_CHARACTERS.issuperset(topic_id):
        return f"topic id {topic_id!r} holds a character other than a-z A-Z 0-9 _ -"
    return None


def _config_problem(config: TopicConfig) -> str | None:
    words = [
        ("storage_type", config.storage_type, STORAGE_TYPES),
        ("flush", config.flush, FLUSH_MODES),
        ("cleanup", config.cleanup, CLEANUPS),
        ("partitioner", config.partitioner, PARTITIONERS),
        ("queue_kind", config.queue_kind, QUEUE_KINDS),
    ]
    if config.tiering is not None:
        words += [
            ("tiering.storage_level", config.tiering.storage_level, STORAGE_LEVELS),
            ("tiering.uploader", config.tiering.uploader, UPLOADERS),
        ]
    for field, value, allowed in words:
        if value not in allowed and not (field == "storage_type" and is_plugin_storage(value)):
            return f"{field} is {value!r}; expected one of {', '.join(sorted(allowed))}"
    if config.min_insync is not None and config.min_insync > config.replication:
        return f"min_insync {config.min_insync} is more than replication {config.replication}"
    return None


def _fixed_problem(before: TopicConfig, after: TopicConfig) -> str | None:
    if before.storage_type != after.storage_type:
        return f"storage_type is fixed as {before.storage_type}; create another topic"
    if before.queue_kind != after.queue_kind:
        return f"queue_kind is fixed as {before.queue_kind}; create another topic"
    return None
