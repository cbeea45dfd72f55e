"""Where a stream stands, and how far its next batch goes.

A shard that appears after the start is read from its first record. When several shards have more
than a trigger may take, each gets a share in proportion to what it has, so that none starves; at
least one record goes forward in each batch, so that a bounded run always comes to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import BadRequestError
from penstock.log import get_logger
from penstock.pipeline.filters import Filters
from penstock.pipeline.origins import Origin, open_origin
from penstock.pipeline.planning import TaskPartition
from penstock.pipeline.ranges import ShardRange, check_named, choose_shards, start_of
from penstock.pipeline.source_options import SourceOptions
from penstock.record import ShardId

_log = get_logger(__name__)

StreamOffsets = dict[str, dict[str, int]]
"""The next offset by topic and partition, as the checkpoint holds it."""


def to_json(offsets: dict[ShardId, int]) -> StreamOffsets:
    found: StreamOffsets = {}
    for shard in sorted(offsets):
        found.setdefault(shard.topic, {})[str(shard.partition)] = offsets[shard]
    return found


def from_json(offsets: StreamOffsets) -> dict[ShardId, int]:
    return {
        ShardId(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


class StreamPlanner:
    """Lives on the driver as long as the query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._view: Origin = open_origin(options)
        self._until: dict[ShardId, int] | None = None

    def initial(self) -> StreamOffsets:
        """Where a query without a checkpoint begins."""
        shards = choose_shards(self._view, self._options)
        check_named(self._options.start, shards, "startingOffsets")
        return to_json(
            {
                shard: start_of(self._view, shard, self._view.bounds(shard), self._options)
                for shard in shards
            }
        )

    def newest(self) -> StreamOffsets:
        return to_json(self._ends())

    def stop_here(self) -> None:
        """Read no further than to what is there now (Trigger.AvailableNow)."""
        self._until = self._ends()

    def _ends(self) -> dict[ShardId, int]:
        self._view.refresh()
        shards = choose_shards(self._view, self._options)
        return {shard: self._view.bounds(shard).commit for shard in shards}

    def latest(self, start: StreamOffsets, records_max: int | None) -> StreamOffsets:
        """Return how far the next batch goes."""
        ends = self._ends() if self._until is None else dict(self._until)
        begins = from_json(start)
        for shard, offset in begins.items():
            # A shard that is gone, or cut, keeps its place: reading it says what is wrong.
            ends[shard] = max(ends.get(shard, offset), offset)
        if records_max is None:
            return to_json(ends)
        waiting = {
            shard: end - begins.get(shard, self._earliest(shard)) for shard, end in ends.items()
        }
        shares = _shares(waiting, records_max)
        return to_json({shard: end - waiting[shard] + shares[shard] for shard, end in ends.items()})

    def _earliest(self, shard: ShardId) -> int:
        return self._view.bounds(shard).earliest

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> Sequence[TaskPartition]:
        """Cut the records between two offsets into tasks."""
        begins = from_json(start)
        ends = from_json(end)
        known = set(self._view.shards())
        if any(
            shard not in known or self._view.bounds(shard).commit < ends[shard] for shard in ends
        ):
            # A batch of the checkpoint may be newer than what was seen so far.
            self._view.refresh()
            known = set(self._view.shards())
        ranges = []
        for shard, until in ends.items():
            if shard not in known:
                self._complain(f"{shard.name!r} is gone", shard)
                continue
            bounds = self._view.bounds(shard)
            first = begins.get(shard, bounds.earliest)
            if first < min(bounds.earliest, until) or until > bounds.commit:
                self._complain(
                    f"{shard.name!r} was to be read from {first} to {until}, but holds "
                    f"[{bounds.earliest}, {bounds.commit})",
                    shard,
                )
            wanted = ShardRange(shard, max(first, bounds.earliest), min(until, bounds.commit))
            if wanted.start < wanted.end:
                ranges.append(wanted)
        return self._view.tasks(ranges, self._options, Filters())

    def _complain(self, text: str, shard: ShardId) -> None:
        if self._options.fail_on_data_loss:
            raise BadRequestError(
                f"{text}: records were removed before they were read; "
                "set failOnDataLoss to false to go on with what there is"
            )
        _log.warning("records_lost", shard=shard.name, detail=text)

    def close(self) -> None:
        self._view.close()


def _shares(waiting: dict[ShardId, int], records_max: int) -> dict[ShardId, int]:
    """Share `records_max` out in proportion to what waits; at least one goes to somebody."""
    total = sum(waiting.values())
    if total <= records_max:
        return dict(waiting)
    shares = {shard: count * records_max // total for shard, count in waiting.items()}
    left = records_max - sum(shares.values())
    for shard in sorted(waiting, key=lambda each: shares[each] - waiting[each]):
        if left == 0:
            break
        more = min(left, waiting[shard] - shares[shard], 1)
        shares[shard] += more
        left -= more
    return shares
