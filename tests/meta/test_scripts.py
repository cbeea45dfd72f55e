"""The state machines, told as stories that people can read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec import Struct, convert, to_builtins
from tests.meta.scripts import Shown, check, tags

from penstock.meta.events import (
    Event,
    NodePut,
    NodeRemoved,
    SegmentDeleted,
    SegmentPut,
    ShardDeleted,
    ShardPut,
    TopicDeleted,
    TopicPut,
)
from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata import machine as metadata
from penstock.meta.state.metadata.commands import (
    Applied,
    Command,
    Done,
    LeaseResult,
    NodeResult,
    ProducerIds,
    ReplicaOutcome,
    ReplicaOutcomes,
    Request,
    Result,
    SegmentResult,
    ShardsResult,
    TopicResult,
)
from penstock.meta.state.metadata.rows import LEASES, MEMBERS, NODES, SEGMENTS, SHARDS, TOPICS
from penstock.meta.state.model import Lease, Node, Segment, Shard, Topic
from penstock.meta.state.offsets import machine as offset
from penstock.meta.state.offsets.commands import (
    Epochs,
    OffsetApplied,
    OffsetCommand,
    OffsetRequest,
    OffsetResult,
    Removed,
    Saved,
)
from penstock.meta.state.offsets.rows import scan_groups, scan_members, scan_offsets
from penstock.meta.state.transactions.commands import TransactionResult, TransactionState
from penstock.meta.state.transactions.rows import scan_aborted, scan_transactions
from penstock.meta.state.view import MemoryView

TESTDATA = Path(__file__).parent / "testdata"


def topic_text(topic: Topic) -> str:
    return (
        f"topic {topic.topic_id} {topic.namespace}/{topic.name} partitions={topic.partitions} "
        f"{topic.config.storage_type} {topic.config.cleanup} {topic.status} r{topic.revision}"
    )


def shard_text(shard: Shard) -> str:
    replicas = ",".join(str(node) for node in shard.replicas)
    in_sync = ",".join(str(node) for node in shard.in_sync)
    return (
        f"shard {shard.name} leader={shard.leader}@{shard.leader_epoch} replicas={replicas} "
        f"in_sync={in_sync} segments={shard.first_segment}-{shard.active_segment}"
        + (f" {shard.status}" if shard.status != "active" else "")
        + replicas_text(shard)
    )


def replicas_text(shard: Shard) -> str:
    """What only shards with several replicas have."""
    if not shard.partition_epoch:
        return ""
    sets = {"eligible": shard.eligible, "adding": shard.adding, "removing": shard.removing}
    named = [
        f" {name}={','.join(str(node) for node in nodes)}" for name, nodes in sets.items() if nodes
    ]
    return f" p{shard.partition_epoch}" + "".join(named)


def outcome_text(outcome: ReplicaOutcome) -> str:
    if outcome.is_accepted:
        return f"accepted p{outcome.partition_epoch}"
    last = ", is the last" if outcome.is_last else ""
    return f"refused p{outcome.partition_epoch}: {outcome.reason}{last}"


def segment_text(segment: Segment) -> str:
    return (
        f"segment {segment.shard.name}/{segment.number} [{segment.start_offset}, "
        f"{'' if segment.end_offset is None else segment.end_offset}) {segment.status} "
        f"by {segment.leader}@{segment.leader_epoch}"
    )


def node_text(node: Node) -> str:
    return f"node {node.node_id} {node.address} {node.status} epoch={node.epoch}"


def lease_text(lease: Lease) -> str:
    return f"lease {lease.shard.name} {lease.holder}@{lease.epoch} until={lease.until_ms}"


def result_text(result: Result) -> str:
    match result:
        case TopicResult():
            return topic_text(result.topic)
        case ShardsResult():
            return "; ".join(shard_text(shard) for shard in result.shards) or "no shard"
        case SegmentResult():
            return segment_text(result.segment)
        case NodeResult():
            return node_text(result.node)
        case LeaseResult():
            return lease_text(result.lease)
        case ProducerIds():
            return f"producer ids from {result.first}, {result.count}"
        case ReplicaOutcomes():
            return "; ".join(outcome_text(outcome) for outcome in result.outcomes)
        case Done():
            return "done"


def event_text(event: Event) -> str:
    match event:
        case TopicPut():
            return f"+ {topic_text(event.topic)}"
        case TopicDeleted():
            return f"- topic {event.topic.topic_id}"
        case ShardPut():
            return f"+ {shard_text(event.shard)}"
        case ShardDeleted():
            return f"- shard {event.topic_id}_{event.partition}"
        case SegmentPut():
            return f"+ {segment_text(event.segment)}"
        case SegmentDeleted():
            return f"- segment {event.topic_id}_{event.partition}/{event.number}"
        case NodePut():
            return f"+ {node_text(event.node)}"
        case NodeRemoved():
            return f"- node {event.node_id}"


class Metadata:
    def commands(self) -> dict[str, type[Struct]]:
        return tags(Command)

    def run(self, view: MemoryView, command: Struct, time_ms: int, request_id: str) -> object:
        request = convert([time_ms, to_builtins(command), request_id], Request)
        answer = metadata.apply(view, metadata.decode_request(metadata.encode_request(request)))
        if isinstance(answer, Rejected):
            return answer
        return self.said(answer)

    def said(self, answer: Applied) -> str:
        repeated = " (answered before)" if answer.repeated else ""
        first = f"r{answer.revision} {result_text(answer.result)}{repeated}"
        return "\n".join([first, *[event_text(event) for event in answer.events]])

    def show(self, view: MemoryView) -> Iterable[str]:
        yield from map(topic_text, TOPICS.scan(view))
        yield from map(shard_text, SHARDS.scan(view))
        yield from map(segment_text, SEGMENTS.scan(view))
        yield from map(node_text, NODES.scan(view))
        yield from map(lease_text, LEASES.scan(view))
        for member in MEMBERS.scan(view):
            yield f"member {member.node_id} {member.address} life {member.incarnation}"


def offset_result_text(result: OffsetResult) -> str:
    match result:
        case Epochs():
            return f"epochs {', '.join(str(epoch) for epoch in result.epochs)}"
        case Saved():
            stale = [
                f"stale {one.namespace}/{one.group}/{one.shard}: {one.epoch}.{one.sequence} stands"
                for one in result.stale
            ]
            return "; ".join(stale) or "saved"
        case Removed():
            groups = ", ".join(f"{one.namespace}/{one.group}" for one in result.groups)
            left = ", more are left" if result.has_more else ""
            return f"removed {result.rows} rows" + (f" and {groups}" if groups else "") + left
        case TransactionResult():
            return "done" if result.state is None else transaction_text(result.state)


def transaction_text(state: TransactionState) -> str:
    partitions = " ".join(f"{one.shard}@{one.first_offset}" for one in state.partitions)
    offsets = " ".join(
        f"{staged.group}:{one.shard}={one.offset}"
        for staged in state.offsets
        for one in staged.offsets
    )
    return (
        f"transaction {state.transactional_id} {state.status} by "
        f"{state.producer_id}.{state.epoch} [{partitions}] [{offsets}]"
    )


class Offsets:
    def commands(self) -> dict[str, type[Struct]]:
        return tags(OffsetCommand)

    def run(self, view: MemoryView, command: Struct, time_ms: int, request_id: str) -> object:
        request = convert([time_ms, to_builtins(command), request_id], OffsetRequest)
        answer = offset.apply(view, offset.decode_request(offset.encode_request(request)))
        if isinstance(answer, Rejected):
            return answer
        return self.said(answer)

    def said(self, answer: OffsetApplied) -> str:
        repeated = " (answered before)" if answer.repeated else ""
        return f"r{answer.revision} {offset_result_text(answer.result)}{repeated}"

    def show(self, view: MemoryView) -> Iterable[str]:
        for namespace, name, group in scan_groups(view, None, with_deleted=True):
            state = " deleted" if group.is_deleted else ""
            yield (
                f"group {namespace}/{name} epoch={group.epoch} floor={group.floor} "
                f"last={group.last_commit_ms}{state}"
            )
            for shard, at in scan_offsets(view, namespace, name):
                note = f" {at.metadata!r}" if at.metadata else ""
                yield f"  {shard} {at.offset} by {at.epoch}.{at.sequence}{note}"
        for namespace, name, members in scan_members(view):
            yield f"members {namespace}/{name} {members.decode()}"
        yield from map(transaction_text, scan_transactions(view))
        for one in scan_aborted(view):
            yield f"aborted {one.shard} [{one.first_offset}, {one.last_offset}] {one.producer_id}"


MACHINES: dict[str, Shown] = {"metadata": Metadata(), "offset": Offsets()}
SCRIPTS = sorted(path.relative_to(TESTDATA).as_posix() for path in TESTDATA.rglob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_machine_answers_as_the_script_says(script: str) -> None:
    path = TESTDATA / script
    machine = MACHINES[Path(script).parts[0]]
    check(path, machine, rewrite="PENSTOCK_REWRITE" in os.environ, write=path.write_text)


def test_every_command_of_both_machines_stands_in_a_script() -> None:
    played = {
        word
        for script in SCRIPTS
        for line in (TESTDATA / script).read_text().splitlines()
        for word in line.split()[:3]
    }
    assert set(tags(Command)) | set(tags(OffsetCommand)) <= played
