"""Batches that nobody can take apart, as Spark's workers read them: from a tier as from a log."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from tests.pipeline.sample_tier import upload
from tests.tiered.read.test_unreadable_content import (
    AFTER,
    BEHIND,
    BODIES,
    END,
    EVENTS,
    FIRST,
    fill,
)
from tests.tiered.rig import open_store

from penstock.errors import UnreadableContentError
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import read_options
from penstock.pipeline.read.ranges import batch_ranges
from penstock.pipeline.read.reading import Scan
from penstock.pipeline.read.sources import open_source
from penstock.record import QueueKind
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.compaction import rewrite_segments

AROUND: Final = [*range(FIRST), *range(BEHIND, END)]


@pytest.fixture(params=BODIES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where `store` is a store, and `tier` its tier."""
    with open_store(tmp_path / "store") as store:
        store.create_shard(EVENTS, QueueKind.BATCH)
        fill(store, BODIES[request.param])
        upload(store, f"file://{tmp_path}/tier")
    return tmp_path


def offsets(place: dict[str, str], start: int = 0, end: int = END, **options: str) -> list[int]:
    """Return what is read of the offsets [start, end)."""
    bounds = {
        "startingOffsets": f'{{"events":{{"0":{start}}}}}',
        "endingOffsets": f'{{"events":{{"0":{end}}}}}',
    }
    wanted = read_options({**place, "subscribe": "events", **bounds, **options}, streaming=False)
    scan = Scan.of(wanted, ["offset"], Filters(), uuid.uuid4().hex)  # a query keeps its manifests
    with closing(open_source(wanted)) as source:
        tasks = source.tasks(batch_ranges(source, wanted), wanted, Filters())
    batches = [batch for task in tasks for batch in scan.batches(task)]
    return [int(row["offset"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("damage", ["fail", "skip"])
def test_what_cannot_be_taken_apart_is_no_damage(root: Path, damage: str) -> None:
    for place in ({"path": f"{root}/store"}, {"tier": f"file://{root}/tier"}):
        for start in (0, FIRST, FIRST + 4):
            with pytest.raises(UnreadableContentError, match="continue at offset 13"):
                offsets(place, start, onDamage=damage)
        assert offsets(place, 0, FIRST, onDamage=damage) == AROUND[:FIRST]
        assert offsets(place, BEHIND, onDamage=damage) == AROUND[FIRST:]


def test_whoever_wants_a_tag_passes_over_it(root: Path) -> None:
    for place in ({"path": f"{root}/store"}, {"tier": f"file://{root}/tier"}):
        assert offsets(place, tag="t") == AROUND


def test_what_was_deleted_or_removed_from_a_tier_is_in_nobodys_way(root: Path) -> None:
    tier = {"tier": f"file://{root}/tier"}
    flat = CompositeFlatFile(TierConfig(url=tier["tier"]), EVENTS, QueueKind.BATCH)
    flat.upkeep.delete_ranges([(BEHIND, END - 1)])
    with pytest.raises(UnreadableContentError):
        offsets(tier)
    flat.upkeep.delete_ranges([(FIRST, BEHIND)])
    assert offsets(tier) == [*range(FIRST), END - 1]
    flat.upkeep.delete_ranges([(END - 1, END)])
    flat.acquire()
    flat.upkeep.seal(only_if_due=False)
    assert rewrite_segments(flat, dead_ratio=0.1).records == END - FIRST
    assert offsets(tier) == [*range(FIRST)]


def test_a_read_that_begins_where_a_batch_was_removed_does_not_see_the_one_before(
    root: Path,
) -> None:
    tier = {"tier": f"file://{root}/tier"}
    with open_store(root / "store") as store:
        store.append_batch(EVENTS, b"opaque as well", len(AFTER))
        upload(store, tier["tier"])
    flat = CompositeFlatFile(TierConfig(url=tier["tier"]), EVENTS, QueueKind.BATCH)
    flat.acquire()
    flat.upkeep.delete_ranges([(BEHIND, END), (0, FIRST)])
    flat.upkeep.seal(only_if_due=False)
    assert rewrite_segments(flat, dead_ratio=0.1).records
    assert offsets(tier, BEHIND, END) == []
    with pytest.raises(UnreadableContentError, match="at offset 15"):
        offsets(tier, BEHIND, END + 1)
