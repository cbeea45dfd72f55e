"""Turns what was asked for into ranges of offsets: which shards, from where, up to where.

A range never reaches outside of what its shard holds. Asking for more is an error that names the
shard and its bounds; with `failOnDataLoss` off it is a warning, and the available records are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from penstock.errors import BadRequestError
from penstock.pipeline.options.option_table import Offsets
from penstock.pipeline.options.source_options import EARLIEST, Limit, SourceOptions
from penstock.pipeline.read.positions import Positions
from penstock.platform.log import get_logger
from penstock.record import ShardId

_log = get_logger(__name__)

_LATEST_NUMBER: Final = -1
_EARLIEST_NUMBER: Final = -2


class ShardRange(NamedTuple):
    """The offsets [start, end) of a shard."""

    shard: ShardId
    start: int
    end: int


class Bounds(Protocol):
    """The offsets [earliest, commit) can be read."""

    @property
    def earliest(self) -> int: ...
    @property
    def commit(self) -> int: ...


class Shards(Protocol):
    """What is there to be read; `sources` has two of them."""

    def shards(self) -> list[ShardId]: ...

    def bounds(self, shard: ShardId) -> Bounds: ...

    def ids(self) -> dict[str, str]:
        """Return the ids of topics, by name; a topic whose id is unknown is missing."""
        ...

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        """Return the offset of the first record that is not older; None when all are."""
        ...


def choose_shards(
    view: Shards, options: SourceOptions, *, missing_ok: bool = False
) -> list[ShardId]:
    """Return the requested shards, by default all. A topic or partition that does not exist is
    rejected, or with `missing_ok` left out."""
    shards = view.shards()
    topics = {shard.topic for shard in shards}
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        return [shard for shard in shards if pattern.fullmatch(shard.topic)]
    if options.assigned is not None:
        if not missing_ok:
            _check_topics(options.assigned, topics, options.place)
        requested = {
            ShardId(topic, number)
            for topic, numbers in options.assigned.items()
            for number in numbers
        }
        missing = sorted(requested - set(shards))
        if missing and not missing_ok:
            raise BadRequestError(
                f"topic {missing[0].topic!r} of {options.place} has no partition "
                f"{missing[0].partition}"
            )
        return sorted(requested & set(shards))
    if options.topics is not None:
        if not missing_ok:
            _check_topics(options.topics, topics, options.place)
        return [shard for shard in shards if shard.topic in options.topics]
    return shards


def _check_topics(requested: Iterable[str], there: set[str], path: str) -> None:
    for topic in requested:
        if topic not in there:
            near = get_close_matches(topic, there, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadRequestError(f"topic {topic!r} does not exist in {path}{hint}")


def batch_ranges(view: Shards, options: SourceOptions) -> list[ShardRange]:
    """Return what a batch reads, without empty ranges."""
    shards = choose_shards(view, options)
    check_named(options.start, shards, "startingOffsets")
    check_named(options.end, shards, "endingOffsets")
    options = with_present_ids(view, shards, options)
    ranges = []
    for shard in shards:
        bounds = view.bounds(shard)
        start = start_of(view, shard, bounds, options)
        end = _end_of(view, shard, bounds, options)
        if start > end and options.fail_on_data_loss and options.start.timestamp_ms is None:
            raise BadRequestError(
                f"invalid range of {shard.name!r}: start {start} is after end {end}"
            )
        if start < end:
            ranges.append(ShardRange(shard, start, end))
    return ranges


def with_present_ids(
    view: Shards, shards: Iterable[ShardId], options: SourceOptions
) -> SourceOptions:
    """Refuse offsets of topics that were created again since; with `failOnDataLoss` off, leave
    them out, with a warning: the topic is then read whole."""
    topics = {shard.topic for shard in shards}
    for name in ("start", "end"):
        limit: Limit = getattr(options, name)
        if not limit.ids:
            continue
        other = Positions({}, limit.ids).recreated(view.ids(), topics)
        for topic, text in other.items():
            if options.fail_on_data_loss:
                raise BadRequestError(
                    f"option '{name}ingOffsets': {text}; set failOnDataLoss to false to read the "
                    "present topic from its earliest record"
                )
            _log.warning("topic_recreated", topic=topic, detail=text)
        kept = {
            topic: offsets for topic, offsets in (limit.offsets or {}).items() if topic not in other
        }
        options = replace(options, **{name: replace(limit, offsets=kept)})
    return options


def check_named(limit: Limit, shards: Iterable[ShardId], option: str) -> None:
    """Refuse offsets of shards that are not read."""
    known = set(shards)
    for table in (limit.offsets, limit.timestamps_ms):
        for topic, partitions in (table or {}).items():
            for partition in partitions:
                if ShardId(topic, partition) not in known:
                    raise BadRequestError(
                        f"{option} names partition {partition} of {topic!r}, which is not read"
                    )


def start_of(view: Shards, shard: ShardId, bounds: Bounds, options: SourceOptions) -> int:
    """Return where a shard is read from at first."""
    limit = options.start
    time = _time_of(limit, shard)
    if time is not None:
        offset = view.offset_by_timestamp(shard, time)
        if offset is None and options.late_start_fails:
            raise BadRequestError(
                f"{shard.name!r} has no record with a timestamp >= {time}; set "
                "startingOffsetsByTimestampStrategy to 'latest' to start at its end"
            )
        return bounds.commit if offset is None else offset
    number = _number_of(limit.offsets, shard, _EARLIEST_NUMBER)
    if limit.offsets is None:
        number = _EARLIEST_NUMBER if limit.word == EARLIEST else _LATEST_NUMBER
    return within(shard, number, bounds, options, "startingOffsets")


def _end_of(view: Shards, shard: ShardId, bounds: Bounds, options: SourceOptions) -> int:
    limit = options.end
    time = _time_of(limit, shard)
    if time is not None:
        offset = view.offset_by_timestamp(shard, time)
        return bounds.commit if offset is None else offset
    number = _number_of(limit.offsets, shard, _LATEST_NUMBER)
    return within(shard, number, bounds, options, "endingOffsets")


def _time_of(limit: Limit, shard: ShardId) -> int | None:
    if limit.timestamp_ms is not None:
        return limit.timestamp_ms
    return (limit.timestamps_ms or {}).get(shard.topic, {}).get(shard.partition)


def _number_of(offsets: Offsets | None, shard: ShardId, default: int) -> int:
    return (offsets or {}).get(shard.topic, {}).get(shard.partition, default)


def within(shard: ShardId, number: int, bounds: Bounds, options: SourceOptions, option: str) -> int:
    """Return an offset that the shard has; what to do with another is `failOnDataLoss`."""
    if number == _EARLIEST_NUMBER:
        return bounds.earliest
    if number == _LATEST_NUMBER:
        return bounds.commit
    if bounds.earliest <= number <= bounds.commit:
        return number
    if options.fail_on_data_loss:
        raise BadRequestError(
            f"{option} is {number} for {shard.name!r}, which holds [{bounds.earliest}, "
            f"{bounds.commit}); set failOnDataLoss to false to read the available records"
        )
    nearest = min(max(number, bounds.earliest), bounds.commit)
    _log.warning("offset_out_of_range", shard=shard.name, wanted=number, used=nearest)
    return nearest


def available_part(
    planned: ShardRange, earliest: int, commit: int, *, fail: bool
) -> tuple[int, int, int]:
    """Return (start, end, records lost) of what the shard still holds of a planned range; raise
    when something is missing and the query is to `fail` then."""
    lost = min(earliest, planned.end) - planned.start
    if commit < planned.end or lost > 0:
        text = (
            f"{planned.shard.name!r} was to be read from {planned.start} to {planned.end}, but "
            f"holds [{earliest}, {commit}) by now"
        )
        if fail:
            raise BadRequestError(
                f"{text}: records were removed before they were read; "
                "set failOnDataLoss to false to continue with the available records"
            )
        _log.warning("records_lost", detail=text)
    return max(planned.start, earliest), min(planned.end, commit), max(0, lost)
