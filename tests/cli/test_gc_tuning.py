"""A slow look for garbage is the last one at what it found to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from penstock.cli.gc_tuning import FULL_COLLECTION_INTERVAL_S, SLOW_S, GcPauseLimiter


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


class Collections:
    """Tells `GcPauseLimiter` of collections, as the collector does."""

    def __init__(self) -> None:
        self.now = 100.0
        self._pauses = GcPauseLimiter(lambda: self.now)

    def collect(self, seconds: float, generation: int = 2) -> int:
        """Return how many objects are left out of collections behind one that took so long."""
        info = {"generation": generation, "collected": 0, "uncollectable": 0}
        self._pauses("start", info)
        self.during = gc.get_freeze_count()
        self.now += seconds
        self._pauses("stop", info)
        return gc.get_freeze_count()


def test_what_outlived_a_slow_full_collection_is_not_looked_at_again() -> None:
    gc.unfreeze()
    assert Collections().collect(2 * SLOW_S) > 1_000


@pytest.mark.parametrize(("seconds", "generation"), [(SLOW_S / 2, 2), (2 * SLOW_S, 1)])
def test_quick_collections_and_those_of_young_objects_change_nothing(
    seconds: float, generation: int
) -> None:
    gc.unfreeze()
    assert Collections().collect(seconds, generation) == 0


def test_everything_is_looked_at_once_an_hour() -> None:
    collections = Collections()
    assert collections.collect(2 * SLOW_S) > 1_000
    collections.now += FULL_COLLECTION_INTERVAL_S
    collections.collect(SLOW_S / 2)
    assert collections.during == 0
    collections.collect(2 * SLOW_S)
    collections.collect(2 * SLOW_S)
    assert collections.during > 1_000
