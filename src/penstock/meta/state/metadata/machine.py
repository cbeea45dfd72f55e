"""The metadata state machine: what the cluster agreed on, as a pure function over rows.

`apply` reads no clock, no random and no network, so that every replica which applies the same log
holds the same rows, byte for byte. Invariants:

  * a rejected command changes nothing at all
  * every other command adds one to the revision; its events are held under that revision
  * of the event rows the newest `EVENTS_MAX` are held; a watcher that missed more starts over
  * a request id that was answered is answered the same again, and changes nothing
"""

from __future__ import annotations

from typing import Final, assert_never

from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from penstock.meta.events import Event
from penstock.meta.state.answers import (
    Head,
    Rejected,
    find_answer,
    read_head,
    store_answer,
    write_head,
)
from penstock.meta.state.keys import encode_key
from penstock.meta.state.metadata.cluster import (
    acquire_lease,
    allocate_producer_ids,
    heartbeat,
    put_member,
    register_node,
    release_lease,
    remove_member,
    remove_node,
    renew_lease,
    set_node_status,
)
from penstock.meta.state.metadata.commands import (
    AcceptDataLoss,
    AcquireLease,
    AllocateProducerIds,
    AlterTopic,
    Answer,
    Applied,
    AssignLeader,
    CancelReassignment,
    Change,
    ChangeInSync,
    ChangeInSyncSets,
    Command,
    CreateShards,
    CreateTopic,
    DeleteSegments,
    DeleteShards,
    DeleteTopic,
    ElectLeaders,
    ElectUnclean,
    Heartbeat,
    LeaveInSync,
    Moment,
    NextSegment,
    PutMember,
    ReassignReplicas,
    RegisterNode,
    ReleaseLease,
    RemoveMember,
    RemoveNode,
    RenewLease,
    ReportEngineLoss,
    ReportUnproven,
    Request,
    RestoreShard,
    SetNodeStatus,
    SetSegmentStatus,
)
from penstock.meta.state.metadata.data_loss import (
    accept_data_loss,
    report_engine_loss,
    restore_lost_shard,
)
from penstock.meta.state.metadata.replication import (
    cancel_reassignment,
    change_in_sync_sets,
    elect_leaders,
    elect_unclean,
    leave_in_sync,
    reassign_replicas,
    report_unproven,
)
from penstock.meta.state.metadata.rows import EVENTS_TABLE, encode_events, scan_events
from penstock.meta.state.metadata.segments import delete_segments, next_segment, set_segment_status
from penstock.meta.state.metadata.shards import (
    assign_leader,
    change_in_sync,
    create_shards,
    delete_shards,
)
from penstock.meta.state.metadata.topics import alter_topic, create_topic, delete_topic
from penstock.meta.state.view import View

EVENTS_MAX: Final = 10_000
_REVISIONS_TRIED: Final = 16

_encoder: Final = Encoder()
_request_decoder: Final = Decoder(Request)
_applied_decoder: Final = Decoder(Applied)


def encode_request(request: Request) -> bytes:
    return _encoder.encode(request)


def decode_request(data: bytes) -> Request:
    """Decode and check a request; raise `MsgspecError` when it breaks a bound of its types."""
    return _request_decoder.decode(data)


def apply(view: View, request: Request) -> Answer:
    answered = find_answer(view, request.request_id)
    if answered is not None:
        return replace(_applied_decoder.decode(answered), repeated=True)
    head = read_head(view)
    moment = Moment(time_ms=request.time_ms, revision=head.revision + 1, head=head)
    change = _change(view, request.command, moment)
    if isinstance(change, Rejected):
        return change
    head.revision += 1
    _store_events(view, head, change.events)
    applied = Applied(revision=head.revision, result=change.result)
    store_answer(view, head, request.request_id, _encoder.encode(applied))
    write_head(view, head)
    return replace(applied, events=change.events)


def _store_events(view: View, head: Head, events: tuple[Event, ...]) -> None:
    if not events:
        return
    view.put(encode_key(EVENTS_TABLE, head.revision), encode_events(events))
    head.events += 1
    if head.events > EVENTS_MAX:
        oldest = _oldest_event(view, head.horizon)
        view.delete(encode_key(EVENTS_TABLE, oldest))
        head.events -= 1
        head.horizon = oldest


def _oldest_event(view: View, horizon: int) -> int:
    """Return the first revision above the horizon that caused events: mostly the next one. By its
    key, because a scan looks at all rows that are not written yet."""
    for revision in range(horizon + 1, horizon + 1 + _REVISIONS_TRIED):
        if view.get(encode_key(EVENTS_TABLE, revision)) is not None:
            return revision
    # It begins at the horizon: before it lie only deleted rows, slow to step over.
    return next(scan_events(view, horizon))[0]


def _change(view: View, command: Command, moment: Moment) -> Change | Rejected:  # noqa: C901, PLR0911, PLR0912 - one line per command
    match command:
        case CreateTopic():
            return create_topic(view, command, moment)
        case AlterTopic():
            return alter_topic(view, command, moment)
        case DeleteTopic():
            return delete_topic(view, command, moment)
        case AcceptDataLoss():
            return accept_data_loss(view, command, moment)
        case ReportEngineLoss():
            return report_engine_loss(view, command, moment)
        case RestoreShard():
            return restore_lost_shard(view, command, moment)
        case CreateShards():
            return create_shards(view, command, moment)
        case DeleteShards():
            return delete_shards(view, command, moment)
        case AssignLeader():
            return assign_leader(view, command, moment)
        case ChangeInSync():
            return change_in_sync(view, command, moment)
        case ChangeInSyncSets():
            return change_in_sync_sets(view, command, moment)
        case LeaveInSync():
            return leave_in_sync(view, command, moment)
        case ElectLeaders():
            return elect_leaders(view, command, moment)
        case ElectUnclean():
            return elect_unclean(view, command, moment)
        case ReassignReplicas():
            return reassign_replicas(view, command, moment)
        case CancelReassignment():
            return cancel_reassignment(view, command, moment)
        case ReportUnproven():
            return report_unproven(view, command, moment)
        case NextSegment():
            return next_segment(view, command, moment)
        case SetSegmentStatus():
            return set_segment_status(view, command, moment)
        case DeleteSegments():
            return delete_segments(view, command, moment)
        case RegisterNode():
            return register_node(view, command, moment)
        case SetNodeStatus():
            return set_node_status(view, command, moment)
        case RemoveNode():
            return remove_node(view, command, moment)
        case AcquireLease():
            return acquire_lease(view, command, moment)
        case RenewLease():
            return renew_lease(view, command, moment)
        case ReleaseLease():
            return release_lease(view, command, moment)
        case AllocateProducerIds():
            return allocate_producer_ids(view, command, moment)
        case PutMember():
            return put_member(view, command, moment)
        case RemoveMember():
            return remove_member(view, command, moment)
        case Heartbeat():
            return heartbeat(view, command, moment)
        case _:
            assert_never(command)
