"""Replicated shards: the commands that change who leads them and who is in sync.

`replica_sets` has the rules, for one shard; here they meet the rows. What a node's registration,
its end or its removal means for all of its shards is decided in the same entry of the log as the
change of the node, so that no entry between them sees a leader that is gone.

Shards with one copy are not concerned: see `shards` and `data_loss`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.meta.events import Event, ShardPut
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import (
    ACTIVE,
    COPY_ANEW_ROLE,
    HANDOVER_ROLE,
    LASTING_DRAIN_ROLE,
    MEMORY_STORAGE,
    OFFLINE,
    ONLINE,
    REPLICA_ORDER_ROLE,
    REPLICATION_ROLE,
    SYNC_FLUSH,
)
from penstock.meta.state.metadata import replica_sets as rules
from penstock.meta.state.metadata.commands import (
    CancelReassignment,
    Change,
    ChangeInSyncSets,
    Done,
    Election,
    ElectLeaders,
    ElectUnclean,
    InSyncChange,
    LeaveInSync,
    Moment,
    ReassignReplicas,
    ReplicaOutcome,
    ReplicaOutcomes,
    ReportUnproven,
    ShardsResult,
)
from penstock.meta.state.metadata.rows import NODES, SHARDS, TOPICS
from penstock.meta.state.metadata.shards import find_shard, put_led
from penstock.meta.state.model import Shard, Topic, TopicConfig
from penstock.meta.state.view import Reader, View

Brokers = dict[int, int]


class Restart(Struct, frozen=True):
    """What a node that registers may have lost."""

    is_same_run: bool
    """It did not end: what it had in memory is there, too."""
    is_proven: bool
    """Its logs have everything that they had."""
    is_store_lost: bool
    """It has another data directory, or not the one of the shard's engine."""
    is_late: bool = False
    """It found out after it registered: what does not concern a shard changes nothing there."""


def broker_epochs(view: Reader) -> Brokers:
    """Return the broker epochs of the nodes that are registered and not fenced."""
    return {node.node_id: node.epoch for node in NODES.scan(view) if node.status != OFFLINE}


def all_replicate(view: Reader) -> bool:
    """Return whether every node runs a release that replicates shards: nodes of older ones apply
    some commands in another way, and their states would differ from then on."""
    return all(REPLICATION_ROLE in node.roles for node in NODES.scan(view))


def all_hand_over(view: Reader) -> bool:
    """Return whether every node runs a release that knows nodes which are about to stop."""
    return all(HANDOVER_ROLE in node.roles for node in NODES.scan(view))


def all_copy_anew(view: Reader) -> bool:
    """Return whether every node runs a release whose replicas may drop committed records that an
    operator has given up."""
    return all(COPY_ANEW_ROLE in node.roles for node in NODES.scan(view))


def all_restore_order(view: Reader) -> bool:
    """Return whether every node runs a release that stores the replicas before a reassignment."""
    return all(REPLICA_ORDER_ROLE in node.roles for node in NODES.scan(view))


def all_drain_on(view: Reader) -> bool:
    """Return whether every node runs a release that stores whether a node drains."""
    return all(LASTING_DRAIN_ROLE in node.roles for node in NODES.scan(view))


# Commands that name shards


RequestT = TypeVar("RequestT", InSyncChange, Election)


def _change_each(
    view: View,
    requests: Iterable[RequestT],
    change: Callable[[Shard, Topic, RequestT], Shard | Rejected],
    moment: Moment,
) -> Change:
    """Change the shards of several requests in order; the rejection of one stops none of them."""
    outcomes: list[ReplicaOutcome] = []
    events: list[Event] = []
    for request in requests:
        pair = _find_replicated(view, request.topic_id, request.partition)
        if isinstance(pair, Rejected):
            outcomes.append(
                ReplicaOutcome(is_accepted=False, partition_epoch=0, reason=pair.reason)
            )
            continue
        shard, topic = pair
        after = change(shard, topic, request)
        outcomes.append(_put_outcome(view, shard, after, moment, events))
    return Change(ReplicaOutcomes(tuple(outcomes)), tuple(events))


def change_in_sync_sets(view: View, command: ChangeInSyncSets, moment: Moment) -> Change | Rejected:
    brokers = broker_epochs(view)

    def change_one(shard: Shard, topic: Topic, change: InSyncChange) -> Shard | Rejected:
        return _changed_in_sync(shard, topic.config, command, change, brokers)

    return _change_each(view, command.changes, change_one, moment)


def _changed_in_sync(
    shard: Shard,
    config: TopicConfig,
    command: ChangeInSyncSets,
    change: InSyncChange,
    brokers: Brokers,
) -> Shard | Rejected:
    stale = _stale_sender(shard, command.node_id, command.broker_epoch, brokers)
    if stale is not None:
        return stale
    min_insync = rules.shard_min_insync(shard, config)
    after = rules.change_in_sync(
        shard,
        sender=command.node_id,
        leader_epoch=change.leader_epoch,
        partition_epoch=change.partition_epoch,
        members=change.members,
        brokers=brokers,
        min_insync=min_insync,
    )
    if isinstance(after, Rejected):
        return after
    after = rules.with_topic_minimum(after, config)
    min_insync = rules.min_insync_of(config)
    return rules.complete_reassignment(after, brokers=brokers, min_insync=min_insync)


def leave_in_sync(view: View, command: LeaveInSync, moment: Moment) -> Change | Rejected:
    pair = _find_replicated(view, command.topic_id, command.partition)
    if isinstance(pair, Rejected):
        return pair
    shard, topic = pair
    brokers = broker_epochs(view)
    stale = _stale_sender(shard, command.node_id, command.broker_epoch, brokers)
    if stale is None and command.partition_epoch != shard.partition_epoch:
        stale = _other_epoch(shard, command.partition_epoch)
    events: list[Event] = []
    if stale is not None:
        outcome = _put_outcome(view, shard, stale, moment, events)
        return Change(ReplicaOutcomes((outcome,)))
    min_insync = rules.shard_min_insync(shard, topic.config)
    after = rules.leave(shard, command.node_id, brokers=brokers, min_insync=min_insync)
    if isinstance(after, Shard):
        after = _elected(after, brokers, min_insync)
    outcome = _put_outcome(view, shard, after, moment, events)
    if isinstance(after, Rejected):
        outcome = replace(outcome, is_last=True)
    return Change(ReplicaOutcomes((outcome,)), tuple(events))


def elect_leaders(view: View, command: ElectLeaders, moment: Moment) -> Change | Rejected:
    brokers = broker_epochs(view)

    def elect_one(shard: Shard, topic: Topic, election: Election) -> Shard | Rejected:
        return _led(shard, election, brokers, rules.shard_min_insync(shard, topic.config))

    return _change_each(view, command.elections, elect_one, moment)


def _led(shard: Shard, election: Election, brokers: Brokers, min_insync: int) -> Shard | Rejected:
    if election.partition_epoch != shard.partition_epoch:
        return _other_epoch(shard, election.partition_epoch)
    leader = election.leader
    if shard.leader is not None and leader is not None:
        return rules.move_leader(shard, leader, brokers=brokers, min_insync=min_insync)
    after = rules.elect(shard, brokers=brokers, min_insync=min_insync, preferred=leader)
    if after.leader is None or leader not in {None, after.leader}:
        proposed = "no replica" if leader is None else f"node {leader}, which is not one that"
        return Rejected("bad_request", f"{proposed} may lead {shard.name}", shard.name)
    return after


def elect_unclean(view: View, command: ElectUnclean, moment: Moment) -> Change | Rejected:
    pair = _find_replicated(view, command.topic_id, command.partition)
    if isinstance(pair, Rejected):
        return pair
    shard, _ = pair
    if command.partition_epoch != shard.partition_epoch:
        return _other_epoch(shard, command.partition_epoch)
    if shard.leader is not None:
        return Rejected(
            "bad_request", f"node {shard.leader} leads {shard.name}: nothing to elect", shard.name
        )
    after = _elected_unclean(view, shard, command.node_id, broker_epochs(view))
    return _put_one(view, shard, after, moment)


def _elected_unclean(view: Reader, shard: Shard, node: int, brokers: Brokers) -> Shard | Rejected:
    after = rules.elect_unclean(shard, node, brokers=brokers)
    if isinstance(after, Shard) and all_copy_anew(view):
        return rules.copied_anew(after)
    return after


def reassign_replicas(view: View, command: ReassignReplicas, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    topic = _active_topic(view, shard)
    if isinstance(topic, Rejected):
        return topic
    if command.partition_epoch != shard.partition_epoch:
        return _other_epoch(shard, command.partition_epoch)
    target = command.replicas
    if len(set(target)) != len(target):
        return Rejected("bad_request", f"a node is named twice in {shard.name}", shard.name)
    known = {node.node_id for node in NODES.scan(view)}
    strangers = sorted(node for node in target if node not in known)
    if strangers:
        return Rejected("bad_request", f"node {strangers[0]} does not exist", shard.name)
    if shard.status != ACTIVE or not (shard.in_sync or shard.eligible):
        return Rejected(
            "bad_request", f"no replica of {shard.name} has all of its records", shard.name
        )
    after = rules.reassign(
        shard,
        target,
        brokers=broker_epochs(view),
        min_insync=rules.min_insync_of(topic.config),
        throttle=command.throttle,
        keeps_order=all_restore_order(view),
    )
    return _put_one(view, shard, after, moment)


def cancel_reassignment(
    view: View, command: CancelReassignment, moment: Moment
) -> Change | Rejected:
    pair = _find_replicated(view, command.topic_id, command.partition)
    if isinstance(pair, Rejected):
        return pair
    shard, topic = pair
    if not shard.adding and not shard.removing:
        return Rejected("bad_request", f"{shard.name} is not being moved", shard.name)
    known = shard if all_restore_order(view) else replace(shard, previous=())
    after = rules.cancel_reassignment(
        known,
        brokers=broker_epochs(view),
        min_insync=rules.shard_min_insync(shard, topic.config),
    )
    return _put_one(view, shard, after, moment)


def report_unproven(view: View, command: ReportUnproven, moment: Moment) -> Change | Rejected:
    node = NODES.get(view, command.node_id)
    if node is None or node.epoch != command.epoch:
        return Rejected(
            "stale",
            f"node {command.node_id} is not registered under epoch {command.epoch}",
            str(command.node_id),
        )
    restart = Restart(
        is_same_run=False,
        is_proven=False,
        is_store_lost=command.is_synced_lost,
        is_late=True,
    )
    return Change(Done(), tuple(restart_node(view, node.node_id, restart, moment)))


# What becomes of a node's shards


def fence_node(view: View, node_id: int, moment: Moment) -> list[Event]:
    """Take a node that is gone out of the in-sync sets, and let others lead what it led. What it
    has in its logs still counts, should no other replica have it."""
    return _change_replicas(
        view,
        node_id,
        moment,
        lambda shard, _, brokers, min_insync: rules.without_node(
            shard, node_id, brokers=brokers, min_insync=min_insync, is_proven=True
        ),
    )


def hand_over_leaders(view: View, node_id: int, moment: Moment) -> list[Event]:
    """Let others lead what a node leads that is about to stop, evenly, where another replica in
    sync is on a node that stays. The node itself stays in sync."""
    brokers = broker_epochs(view)
    online = {node.node_id for node in NODES.scan(view) if node.status == ONLINE}
    led = Counter(shard.leader for shard in SHARDS.scan(view))
    events: list[Event] = []
    for shard, topic in list(_replicas_on(view, node_id)):
        able = [node for node in shard.replicas if node in shard.in_sync and node in online]
        if shard.leader != node_id or not able:
            continue
        leader = min(able, key=lambda node: (led[node], node))
        led[leader] += 1
        min_insync = rules.min_insync_of(topic.config)
        after = rules.move_leader(shard, leader, brokers=brokers, min_insync=min_insync)
        if isinstance(after, Shard):
            events += _put_changed(view, shard, after, moment)
    return events


def remove_replicas(view: View, node_id: int, moment: Moment) -> list[Event]:
    """Take a node that was removed from the cluster out of all sets."""
    return _change_replicas(
        view,
        node_id,
        moment,
        lambda shard, _, brokers, min_insync: rules.without_node(
            shard, node_id, brokers=brokers, min_insync=min_insync, is_proven=False
        ),
    )


def restart_node(
    view: View,
    node_id: int,
    restart: Restart,
    moment: Moment,
    storage_type: str | None = None,
) -> list[Event]:
    """Follow the registration of a node, or what it reports afterwards, in its shards of one
    storage type or of all."""

    def change(shard: Shard, config: TopicConfig, brokers: Brokers, min_insync: int) -> Shard:
        if storage_type not in {None, config.storage_type} or restart.is_same_run:
            return shard
        is_counted = restart.is_proven or config.flush == SYNC_FLUSH
        if min_insync == 1 and {*shard.in_sync, *shard.eligible} == {node_id}:
            # Of a shard with one copy, or one that had one, a restart takes nothing back.
            is_counted |= config.replication == 1 or shard.min_insync == 1
        if config.storage_type == MEMORY_STORAGE or restart.is_store_lost:
            is_counted = False
        if is_counted and restart.is_late:
            return shard
        if is_counted:
            return rules.restarted(shard, node_id, brokers=brokers, min_insync=min_insync)
        return rules.without_node(
            shard, node_id, brokers=brokers, min_insync=min_insync, is_proven=False
        )

    return _change_replicas(view, node_id, moment, change)


def follow_config(view: View, before: TopicConfig, topic: Topic, moment: Moment) -> list[Event]:
    """Follow a change of the replicas of a topic, or of their minimum, in all of its shards."""
    events: list[Event] = []
    for shard in list(SHARDS.scan(view, topic.topic_id)):
        if rules.is_replicated(shard, before) or rules.is_replicated(shard, topic.config):
            after = rules.follow_config(shard, before, topic.config)
            events += _put_changed(view, shard, after, moment)
    return events


ShardChange = Callable[[Shard, TopicConfig, Brokers, int], Shard]


def _change_replicas(view: View, node_id: int, moment: Moment, change: ShardChange) -> list[Event]:
    """Change all replicated shards of a node, and let those be led that then can be."""
    brokers = broker_epochs(view)
    events: list[Event] = []
    for shard, topic in list(_replicas_on(view, node_id)):
        min_insync = rules.shard_min_insync(shard, topic.config)
        after = _elected(change(shard, topic.config, brokers, min_insync), brokers, min_insync)
        if topic.config.storage_type == MEMORY_STORAGE:
            after = _begun_anew(view, after, node_id, brokers)
        events += _put_changed(view, shard, after, moment)
    return events


def _replicas_on(view: View, node_id: int) -> Iterator[tuple[Shard, Topic]]:
    topics: dict[str, Topic | None] = {}
    for shard in SHARDS.scan(view):
        if node_id not in shard.replicas:
            continue
        if shard.topic_id not in topics:
            topics[shard.topic_id] = TOPICS.get(view, shard.topic_id)
        topic = topics[shard.topic_id]
        if (
            topic is not None
            and topic.status == ACTIVE
            and rules.is_replicated(shard, topic.config)
        ):
            yield shard, topic


def _elected(shard: Shard, brokers: Brokers, min_insync: int) -> Shard:
    if shard.leader is not None:
        return shard
    led = rules.elect(shard, brokers=brokers, min_insync=min_insync)
    return led if led.leader is not None else shard


def _begun_anew(view: Reader, shard: Shard, node_id: int, brokers: Brokers) -> Shard:
    """Return a shard in memory with a leader, when every node that had all of its records has
    ended: no operator can bring them back. Another replica than `node_id` may have some."""
    if shard.leader is not None or shard.in_sync or shard.eligible:
        return shard
    able = sorted(
        (node for node in shard.replicas if node in brokers), key=lambda node: node == node_id
    )
    if not able:
        return shard
    led = _elected_unclean(view, shard, able[0], brokers)
    return led if isinstance(led, Shard) else shard


# Rows


def _find_replicated(view: Reader, topic_id: str, partition: int) -> tuple[Shard, Topic] | Rejected:
    shard = find_shard(view, topic_id, partition)
    if isinstance(shard, Rejected):
        return shard
    topic = _active_topic(view, shard)
    if isinstance(topic, Rejected):
        return topic
    if not rules.is_replicated(shard, topic.config):
        return Rejected("bad_request", f"{shard.name} has one replica", shard.name)
    return shard, topic


def _active_topic(view: Reader, shard: Shard) -> Topic | Rejected:
    topic = TOPICS.get(view, shard.topic_id)
    if topic is None or topic.status != ACTIVE:
        return Rejected("unknown_topic", f"topic {shard.topic_id} is deleted", shard.topic_id)
    return topic


def _stale_sender(shard: Shard, node: int, epoch: int, brokers: Brokers) -> Rejected | None:
    if brokers.get(node) == epoch:
        return None
    return Rejected(
        "stale",
        f"node {node} sends under broker epoch {epoch}, but its current one is {brokers.get(node)}",
        shard.name,
    )


def _other_epoch(shard: Shard, epoch: int) -> Rejected:
    return Rejected(
        "stale",
        f"{shard.name} is at partition epoch {shard.partition_epoch}, not {epoch}",
        shard.name,
    )


def _put_outcome(
    view: View, shard: Shard, after: Shard | Rejected, moment: Moment, events: list[Event]
) -> ReplicaOutcome:
    """Store a changed shard; append its events, and return what became of the change."""
    if isinstance(after, Rejected):
        return ReplicaOutcome(
            is_accepted=False, partition_epoch=shard.partition_epoch, reason=after.reason
        )
    events += _put_changed(view, shard, after, moment)
    return ReplicaOutcome(is_accepted=True, partition_epoch=after.partition_epoch)


def _put_one(
    view: View, shard: Shard, after: Shard | Rejected, moment: Moment
) -> Change | Rejected:
    if isinstance(after, Rejected):
        return after
    events = _put_changed(view, shard, after, moment)
    return Change(ShardsResult((replace(after, revision=moment.revision),)), tuple(events))


def _put_changed(view: View, before: Shard, after: Shard, moment: Moment) -> list[Event]:
    if after == before:
        return []
    stored = replace(after, revision=moment.revision)
    if (after.leader, after.leader_epoch) != (before.leader, before.leader_epoch):
        return put_led(view, stored)
    SHARDS.put(view, stored, stored.topic_id, stored.partition)
    return [ShardPut(stored)]
