"""One bit of one file is wrong, whichever: nothing wrong is read, nothing is missing in silence.

The ordinary run tries some bits of every file, the soak run all of them. What opening may do about
a damaged file: refuse with an error of ours, or open. An open store reads everything right, except
that one record (or batch) of the log may be lost, and says so when it is asked for.
"""

from __future__ import annotations

import pytest
from tests.engine.segment.damaged_store import (
    BATCHED,
    TINY,
    Models,
    check_all,
    check_goes_on,
    some_bits,
    write_store,
)
from tests.engine.segment.rig import Rig

from penstock.errors import StoreError
from penstock.record import ShardId

LOG_STRIDE = 397
STRIDE = 307
PARTS = 16
BATCH_SIZE = 3
BEHIND = 24
"""Bytes behind the end of a file's content that are tried, too."""


class Written:
    """A store as it lies on the disk, and what it should hold."""

    def __init__(self, *, clean: bool) -> None:
        self.rig = Rig(TINY)
        self.models: Models = write_store(self.rig, early_checkpoint=not clean)
        if clean:
            self.rig.close()
        self.files = self.rig.disk.files()

    def sizes(self) -> dict[str, int]:
        """Return for each file how many bytes hold something, and a few more."""
        return {
            path: min(len(data), len(data.rstrip(b"\0")) + BEHIND)
            for path, data in self.files.items()
        }

    def try_bit(self, path: str, bit: int, *, twice: bool) -> None:
        rig = self.rig.copy()
        rig.disk.flip_bit(path, bit)
        try:
            store = rig.store
        except StoreError:
            return
        lost = check_all(store, self.models)
        if "/commitlog/" in path:
            assert len({record_of(*each) for each in lost}) <= 1, lost
        else:
            assert not lost
        if twice:
            reported = bool(store.report.damaged)
            store = rig.restart()
            assert check_all(store, self.models, reported=reported) == lost
        check_goes_on(store, self.models)

    def try_bits(self, path: str, size: int, stride: int, part: int = 0, parts: int = 1) -> None:
        for number, bit in enumerate(some_bits(size, stride)):
            if number % parts != part:
                continue
            try:
                self.try_bit(path, bit, twice=number // parts % 4 == 0)
            except Exception as error:
                raise AssertionError(f"bit {bit % 8} of byte {bit // 8} of {path}") from error


def record_of(shard: ShardId, offset: int) -> tuple[ShardId, int]:
    """Name the record that holds an offset."""
    return shard, offset // BATCH_SIZE if shard == BATCHED else offset


@pytest.fixture(scope="module", params=["closed", "killed"])
def written(request: pytest.FixtureRequest) -> Written:
    return Written(clean=request.param == "closed")


def test_a_flipped_bit_of_the_log_costs_one_record_at_most(written: Written) -> None:
    for path, size in written.sizes().items():
        if "/commitlog/" in path:
            written.try_bits(path, size, LOG_STRIDE)


def test_a_flipped_bit_of_any_other_file_costs_nothing(written: Written) -> None:
    for path, size in written.sizes().items():
        if "/commitlog/" not in path:
            written.try_bits(path, size, STRIDE)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_bit_of_every_file(written: Written, part: int) -> None:
    """In parts, for several processes: all of them together try every bit."""
    for path, size in written.sizes().items():
        written.try_bits(path, size, 1, part, PARTS)
