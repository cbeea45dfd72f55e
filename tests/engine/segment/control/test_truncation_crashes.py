"""A shard is cut, and the process or the power goes at one call to the disk, whichever.

The shard is then as before the cut or as after it, and what was appended behind the cut is there or
is not, in order; a check of the directory finds nothing, and a store built anew from the log alone
holds the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import ORDERS, Rig, create
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.inspect import rebuild, verify
from penstock.record import QueueKind, Record, ShardId
from penstock.testing import FaultyDisk, PowerCut

COUNT = 36
CUT = 15
PER_BATCH = 3
STRIDE = 7


def batch_of(first: int) -> list[Record]:
    return [Record(b"%d" % (first + n), key=b"k", timestamp_ms=5) for n in range(PER_BATCH)]


class Cut:
    """A shard in files, partly in memory, that is cut; and what it may hold after that."""

    def __init__(self, kind: QueueKind, write_at_once: bool) -> None:
        self.kind = kind
        self.rig = Rig(disk=FaultyDisk(page_size=512))
        create(self.rig.store, ORDERS, kind=kind)
        self.models = [ShardModel()]
        for first in range(0, COUNT, PER_BATCH):
            if first == CUT + PER_BATCH:
                self.rig.store.run_upkeep()  # the cut is below what is in files
            self.models[0].append(self.append(first))
        self.rig.store.flush()
        self.write_at_once = write_at_once

    def append(self, first: int) -> list[Record]:
        records = batch_of(first)
        if self.kind is QueueKind.BATCH:
            self.rig.store.append_batch(ORDERS, inner_batch(records), PER_BATCH, born_ms=5)
        else:
            self.rig.store.append_many(ORDERS, records)
        return records

    def run(self) -> None:
        """Cut the shard and go on writing, also in the midst of the cut, as another thread may."""
        self.note(lambda model: model.truncate(CUT))
        dispatch = self.rig.store.dispatch
        cut_dispatchers = dispatch.cut

        def write_in_between(shard: ShardId, offset: int) -> None:
            cut_dispatchers(shard, offset)
            self.note(lambda model: model.append(batch_of(100)))
            self.append(100)

        with pytest.MonkeyPatch.context() as patch:
            if self.write_at_once:
                patch.setattr(dispatch, "cut", write_in_between)
            self.rig.store.truncate(ORDERS, CUT)
        self.note(lambda model: model.append(batch_of(200)))
        self.append(200)
        self.rig.store.run_upkeep()

    def note(self, change: Callable[[ShardModel], object]) -> None:
        model = self.models[-1].copy()
        change(model)
        self.models.append(model)


def found_in(rig: Rig, models: Sequence[ShardModel]) -> ShardModel:
    """Return the model that the shard agrees with; the check of the newest tells what is wrong."""
    end = rig.store.bounds(ORDERS).next
    values = {each.value for each in rig.store.read(ORDERS, CUT)}
    for model in models:
        same = {each.value for each in model.records[CUT:]} == values
        if model.next_offset == end and same:
            check_shard(rig.store, ORDERS, model)
            return model
    raise AssertionError(f"the shard ends at {end}, with {sorted(map(str, values))}")


def check_whole(rig: Rig) -> None:
    report = verify(rig.root, disk=rig.disk, clock=rig.clock, settings=rig.settings)
    assert (report.findings, report.lost) == ([], [])


def interrupt(cut: Cut, call: int, *, power: bool) -> bool:
    """Stop at a call; return whether it came to that."""
    cut.rig.disk.stop_at_call(call)
    stopped = False
    try:
        cut.run()
    except PowerCut:
        stopped = True
    cut.rig.abandon()
    if power:
        cut.rig.disk.crash(random.Random(call))
    else:
        cut.rig.disk.kill()
        check_whole(cut.rig)
    return stopped


def check_everywhere(cut: Cut) -> None:
    """The same is found at the next start, after more is written, and when all is built anew."""
    rig = cut.rig
    anew = rig.copy()
    model = found_in(rig, cut.models).copy()
    rebuild(anew.root, disk=anew.disk, clock=anew.clock, settings=anew.settings)
    check_shard(anew.store, ORDERS, model)
    model.append(cut.append(300))
    check_shard(rig.kill(), ORDERS, model)
    rig.close()
    check_whole(rig)
    rebuild(rig.root, disk=rig.disk, clock=rig.clock, settings=rig.settings)
    check_shard(rig.store, ORDERS, model)


def check_calls(kind: QueueKind, power: bool, write_at_once: bool, stride: int) -> None:
    # Each case begins at another call: all of them together try most.
    call = (4 * (kind is QueueKind.BATCH) + 2 * power + write_at_once) % stride
    while True:
        cut = Cut(kind, write_at_once)
        stopped = interrupt(cut, call, power=power)
        try:
            check_everywhere(cut)
        except Exception as error:
            raise AssertionError(f"stopped at call {call}") from error
        if not stopped:
            break
        call += stride
    assert call


CASES = pytest.mark.parametrize(
    ("kind", "power", "write_at_once"),
    [
        (kind, power, write_at_once)
        for kind in QueueKind
        for power in (False, True)
        for write_at_once in (False, True)
    ],
)


@CASES
def test_a_cut_that_stops_at_a_call_is_done_or_is_not(
    kind: QueueKind, power: bool, write_at_once: bool
) -> None:
    check_calls(kind, power, write_at_once, STRIDE)


@pytest.mark.soak
@CASES
def test_a_cut_that_stops_at_any_call_is_done_or_is_not(
    kind: QueueKind, power: bool, write_at_once: bool
) -> None:
    check_calls(kind, power, write_at_once, 1)
