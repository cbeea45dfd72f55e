"""Where a stream stands, and how far its next batch goes.

A shard that appears after the start is read from its first record. When several shards have more
than a trigger may take, each gets a share in proportion to what it has, so that none starves; at
least one record goes forward in each batch, so that a bounded run always comes to its end.

Positions carry the ids of their topics. A topic that was deleted and created again under its name
fails the query, or with `failOnDataLoss` off is read from its first record, with a warning. So
does a topic that is gone, and a shard that ends before its position.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from penstock.errors import BadRequestError
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.planning import TaskPartition, within_limit
from penstock.pipeline.read.positions import Positions, PositionsJson
from penstock.pipeline.read.ranges import (
    ShardRange,
    check_named,
    choose_shards,
    start_of,
    with_present_ids,
)
from penstock.pipeline.read.sources import RecordSource, open_source
from penstock.platform.log import get_logger
from penstock.record import ShardId

_log = get_logger(__name__)

LOOK_AGAIN_S: Final = (0.5, 1.0)
"""A view of a directory, or a new leader, may know less than the one before for a moment."""
_GO_ON: Final = "set failOnDataLoss to false to continue with the available records"


class StreamPlanner:
    """Lives on the driver as long as the query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._view: RecordSource = open_source(options)
        self._until: Positions | None = None
        self._warned: set[str] = set()
        self._waits_since = time.monotonic()

    def initial(self) -> PositionsJson:
        """Where a query without a checkpoint begins."""
        shards = choose_shards(self._view, self._options)
        check_named(self._options.start, shards, "startingOffsets")
        options = with_present_ids(self._view, shards, self._options)
        starts = {
            shard: start_of(self._view, shard, self._view.bounds(shard), options)
            for shard in shards
        }
        return Positions(starts, self._view.ids()).to_json()

    def newest(self) -> PositionsJson:
        return self._ends().to_json()

    def stop_here(self) -> None:
        """Read no further than to what is there now (Trigger.AvailableNow)."""
        self._until = self._ends()

    def _ends(self) -> Positions:
        self._view.refresh()
        lenient = not self._options.fail_on_data_loss
        shards = choose_shards(self._view, self._options, missing_ok=lenient)
        ends = {shard: self._view.bounds(shard).commit for shard in shards}
        return Positions(ends, self._view.ids())

    def latest(self, start: PositionsJson, records_max: int | None) -> PositionsJson:
        """Return how far the next batch goes."""
        previous = Positions.from_json(start)
        present = self._stable_ends(previous)
        begins, ends = self._resume_points(previous, present)
        if records_max is None and self._options.records_awaited is None:
            return Positions(ends, present.ids).to_json()
        waiting = {
            shard: max(0, end - begins.get(shard, self._earliest(shard)))
            for shard, end in ends.items()
        }
        if self._is_too_early(sum(waiting.values())):
            return start
        if records_max is None:
            return Positions(ends, present.ids).to_json()
        shares = _shares(waiting, records_max)
        limited = {shard: end - waiting[shard] + shares[shard] for shard, end in ends.items()}
        return Positions(limited, present.ids).to_json()

    def _is_too_early(self, count: int) -> bool:
        """Say whether to wait for more records (`minOffsetsPerTrigger`), unless it was too long
        already (`maxTriggerDelay`) or the run ends with what is there."""
        fewest = self._options.records_awaited
        if fewest is None or self._until is not None:
            return False
        waited_s = time.monotonic() - self._waits_since
        if count < fewest and waited_s < self._options.trigger_delay_s:
            return True
        self._waits_since = time.monotonic()
        return False

    def _stable_ends(self, previous: Positions) -> Positions:
        """Return the ends; refresh while a shard seems to end before its position."""
        present = self._ends() if self._until is None else self._until
        for pause in LOOK_AGAIN_S:
            other = previous.recreated(present.ids, {shard.topic for shard in previous.offsets})
            if not any(
                present.offsets.get(shard, offset) < offset
                for shard, offset in previous.offsets.items()
                if shard.topic not in other
            ):
                break
            time.sleep(pause)
            present = self._ends()
        return present

    def _resume_points(
        self, previous: Positions, present: Positions
    ) -> tuple[dict[ShardId, int], dict[ShardId, int]]:
        """Return where the shards go on, and where they end: what the positions say is compared
        with what is there."""
        other = previous.recreated(present.ids, {shard.topic for shard in previous.offsets})
        for topic, text in other.items():
            self._report_loss(text, topic)
        self._adopt(previous, present)
        begins, ends = dict(previous.offsets), dict(present.offsets)
        for shard, offset in previous.offsets.items():
            end = ends.get(shard)
            if shard.topic in other:
                del begins[shard]  # the new topic is read from its earliest record
            elif end is None:
                self._report_loss(
                    f"{shard.name!r} is gone, which was read up to {offset}", shard.name
                )
                del begins[shard]
            elif end < offset:
                self._report_loss(
                    f"{shard.name!r} ends at {end}, but was read up to {offset}: its end was cut "
                    "off",
                    shard.name,
                )
        return begins, ends

    def _adopt(self, previous: Positions, present: Positions) -> None:
        """Warn, once, of positions of an earlier release: they say nothing of the topic's id, and
        count as the present topic's."""
        topics = {shard.topic for shard in previous.offsets} - set(previous.ids) - self._warned
        for topic in sorted(topics & set(present.ids)):
            _log.warning("topic_id_adopted", topic=topic, topic_id=present.ids[topic])
            self._warned.add(topic)

    def _earliest(self, shard: ShardId) -> int:
        return self._view.bounds(shard).earliest

    def tasks(self, start: PositionsJson, end: PositionsJson) -> Sequence[TaskPartition]:
        """Cut the records between two offsets into tasks."""
        previous, until = Positions.from_json(start), Positions.from_json(end)
        known = set(self._view.shards())
        if any(
            shard not in known or self._view.bounds(shard).commit < offset
            for shard, offset in until.offsets.items()
        ):
            # A batch of the checkpoint may be newer than what was seen so far.
            self._view.refresh()
            known = set(self._view.shards())
        topics = {shard.topic for shard in until.offsets}
        other = until.recreated(self._view.ids(), topics)
        for topic, text in other.items():
            self._report_loss(text, topic)
        anew = previous.recreated(until.ids, topics)
        ranges = []
        for shard, last in until.offsets.items():
            if shard.topic in other:
                continue  # this batch was of the topic that is gone
            if shard not in known:
                self._report_loss(f"{shard.name!r} is gone", shard.name)
                continue
            first = None if shard.topic in anew else previous.offsets.get(shard)
            shard_range = self._range(shard, first, last)
            if shard_range.start < shard_range.end:
                ranges.append(shard_range)
        return within_limit(self._view.tasks(ranges, self._options, Filters()), self._options)

    def _range(self, shard: ShardId, first: int | None, until: int) -> ShardRange:
        """Return what the shard holds of a range; None: from its earliest record on."""
        bounds = self._view.bounds(shard)
        first = bounds.earliest if first is None else first
        if first < min(bounds.earliest, until) or until > bounds.commit:
            self._report_loss(
                f"{shard.name!r} was to be read from {first} to {until}, but holds "
                f"[{bounds.earliest}, {bounds.commit}): records were removed before they were read",
                shard.name,
            )
        return ShardRange(shard, max(first, bounds.earliest), min(until, bounds.commit))

    def _report_loss(self, text: str, name: str) -> None:
        if self._options.fail_on_data_loss:
            raise BadRequestError(f"{text}; {_GO_ON}")
        _log.warning("records_lost", of=name, detail=text)

    def close(self) -> None:
        self._view.close()


def _shares(waiting: dict[ShardId, int], records_max: int) -> dict[ShardId, int]:
    """Distribute `records_max` in proportion to the available records, at least one in total."""
    total = sum(waiting.values())
    if total <= records_max:
        return dict(waiting)
    shares = {shard: count * records_max // total for shard, count in waiting.items()}
    left = records_max - sum(shares.values())
    for shard in sorted(waiting, key=lambda shard: shares[shard] - waiting[shard]):
        if left == 0:
            break
        more = min(left, waiting[shard] - shares[shard], 1)
        shares[shard] += more
        left -= more
    return shares
