"""Segments: the ranges of a shard's offsets, one after the other without a gap.

    write ──▶ pre-seal ──▶ sealed ──▶ pre-delete ──▶ deleting ──▶ forgotten
      └──────────────────────▲              (unavailable: aside, from anywhere and back)

Rolling is one command: the old segment ends where the new one starts, at every moment. Only the
active segment of a shard can have no end.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.meta.events import Event, SegmentDeleted, SegmentPut, ShardPut
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import SEGMENT_STEPS
from penstock.meta.state.metadata.commands import (
    Change,
    DeleteSegments,
    Done,
    Moment,
    NextSegment,
    SegmentResult,
    SetSegmentStatus,
)
from penstock.meta.state.metadata.rows import SEGMENTS, SHARDS
from penstock.meta.state.metadata.shards import find_shard
from penstock.meta.state.model import Segment, Shard
from penstock.meta.state.view import View

_ROLLED = frozenset({"write", "pre-seal", "sealed"})


def next_segment(view: View, command: NextSegment, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    if command.epoch not in {None, shard.leader_epoch}:
        return Rejected(
            "stale",
            f"epoch {command.epoch} of {shard.name} is not the current {shard.leader_epoch}",
            shard.name,
        )
    if command.number != shard.active_segment:
        return _repeated_roll(view, shard, command)
    active = SEGMENTS.get(view, shard.topic_id, shard.partition, shard.active_segment)
    assert active is not None, "a shard's active segment exists"
    problem = _end_problem(active, command.end_offset)
    if problem is None and active.status not in _ROLLED:
        problem = f"segment {active.number} of {shard.name} is {active.status}"
    if problem is not None:
        return Rejected("bad_request", problem, shard.name)
    sealed = replace(
        active,
        end_offset=command.end_offset,
        status="sealed",
        sealed_at_ms=moment.time_ms if active.sealed_at_ms is None else active.sealed_at_ms,
    )
    opened = Segment(
        topic_id=shard.topic_id,
        partition=shard.partition,
        number=active.number + 1,
        start_offset=command.end_offset,
        end_offset=None,
        status="write",
        leader=shard.leader,
        leader_epoch=shard.leader_epoch,
        created_at_ms=moment.time_ms,
    )
    rolled = replace(shard, active_segment=opened.number, revision=moment.revision)
    _put_segment(view, sealed)
    _put_segment(view, opened)
    SHARDS.put(view, rolled, shard.topic_id, shard.partition)
    return Change(SegmentResult(opened), (SegmentPut(sealed), SegmentPut(opened), ShardPut(rolled)))


def _repeated_roll(view: View, shard: Shard, command: NextSegment) -> Change | Rejected:
    following = SEGMENTS.get(view, shard.topic_id, shard.partition, command.number + 1)
    if following is not None and following.start_offset == command.end_offset:
        return Change(SegmentResult(following))
    return Rejected(
        "stale",
        f"segment {command.number} of {shard.name} is not the active one, "
        f"{shard.active_segment} is",
        shard.name,
    )


def set_segment_status(view: View, command: SetSegmentStatus, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    segment = SEGMENTS.get(view, shard.topic_id, shard.partition, command.number)
    if segment is None:
        return Rejected("bad_request", f"{shard.name} has no segment {command.number}", shard.name)
    end = segment.end_offset if command.end_offset is None else command.end_offset
    problem = _step_problem(segment, command.status, end)
    if problem is not None:
        return Rejected("bad_request", f"segment {segment.number} of {shard.name} {problem}")
    is_sealed = command.status == "sealed" and segment.sealed_at_ms is None
    changed = replace(
        segment,
        status=command.status,
        end_offset=end,
        sealed_at_ms=moment.time_ms if is_sealed else segment.sealed_at_ms,
    )
    _put_segment(view, changed)
    return Change(SegmentResult(changed), (SegmentPut(changed),))


def delete_segments(view: View, command: DeleteSegments, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    if command.before > shard.active_segment:
        return Rejected(
            "bad_request",
            f"segment {shard.active_segment} of {shard.name} is active and stays",
            shard.name,
        )
    doomed = [
        segment
        for segment in SEGMENTS.scan(view, shard.topic_id, shard.partition)
        if segment.number < command.before
    ]
    for segment in doomed:
        if segment.status != "deleting":
            return Rejected(
                "bad_request",
                f"segment {segment.number} of {shard.name} is {segment.status}, not deleting",
                shard.name,
            )
    if not doomed:
        return Change(Done())
    events: list[Event] = []
    for segment in doomed:
        SEGMENTS.delete(view, shard.topic_id, shard.partition, segment.number)
        events.append(SegmentDeleted(shard.topic_id, shard.partition, segment.number))
    trimmed = replace(shard, first_segment=command.before, revision=moment.revision)
    SHARDS.put(view, trimmed, shard.topic_id, shard.partition)
    return Change(Done(), (*events, ShardPut(trimmed)))


def _put_segment(view: View, segment: Segment) -> None:
    SEGMENTS.put(view, segment, segment.topic_id, segment.partition, segment.number)


def _end_problem(segment: Segment, end_offset: int) -> str | None:
    if end_offset < segment.start_offset:
        return f"the segment starts at {segment.start_offset} and cannot end at {end_offset}"
    if segment.end_offset not in {None, end_offset}:
        return f"the segment already ends at {segment.end_offset}, not {end_offset}"
    return None


def _step_problem(segment: Segment, status: str, end_offset: int | None) -> str | None:
    if status not in SEGMENT_STEPS:
        return f"cannot be {status!r}; expected one of {', '.join(sorted(SEGMENT_STEPS))}"
    if status != segment.status and status not in SEGMENT_STEPS[segment.status]:
        return f"is {segment.status} and cannot become {status}"
    if end_offset is not None:
        problem = _end_problem(segment, end_offset)
        if problem is not None:
            return f"cannot be {status}: {problem}"
    if status == "write" and end_offset is not None:
        return f"ends at {end_offset} and takes no more writes"
    if status == "sealed" and end_offset is None:
        return "needs an end to be sealed"
    return None
