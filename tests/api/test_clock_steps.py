"""A step of the clock deletes nothing, in any engine; a confirmation lets time go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.api import EmbeddedBackend, Store
from penstock.node.node import Node
from penstock.settings import SERVE
from penstock.testing import ManualClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000
KINDS = ("memory", "rocksdb", "segment")


class Place:
    """A node's directory on a machine whose clock can be set."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(NOW_MS)
        self.node = self.start()

    def start(self) -> Node:
        self.node = Node(self.directory, SERVE, clock=self.clock, background=False)
        return self.node

    @property
    def store(self) -> Store:
        return Store(EmbeddedBackend(self.node))

    def fill(self, kinds: tuple[str, ...] = KINDS) -> None:
        for kind in kinds:
            topic = self.store.create_topic(kind, storage=kind, retention_ms=HOUR_MS)
            topic.write_many([b"v"] * 20)
            short = self.store.create_topic(f"{kind}-short", storage=kind)
            short.write(b"mortal", expires=NOW_MS + HOUR_MS)
        with self.store.consumer("readers", [kinds[0]]) as consumer:
            consumer.poll(1)
            consumer.commit()

    def left(self, kinds: tuple[str, ...] = KINDS) -> tuple[set[int], set[int], int]:
        """Return the numbers of records with retention, of those that expire, and of groups."""
        for _ in range(2):
            self.node.run_upkeep()
            self.clock.advance(90)
        store = self.store
        return (
            {sum(1 for _ in store.topic(kind)) for kind in kinds},
            {sum(1 for _ in store.topic(f"{kind}-short")) for kind in kinds},
            len(store.groups()),
        )


@pytest.fixture
def place(directory: Path) -> Iterator[Place]:
    made = Place(directory)
    yield made
    made.node.close()


ALL = ({20}, {1}, 1)
NONE = ({0}, {0}, 0)


def test_a_step_while_running_deletes_nothing_until_it_is_confirmed(place: Place) -> None:
    place.fill()
    place.clock.set_now_ms(NOW_MS + 10 * DAY_MS)
    assert place.left() == ALL
    status = place.store.clock_status()
    assert status.held
    assert status.expiry_ms < NOW_MS + HOUR_MS
    place.store.confirm_clock()
    assert place.left() == NONE


def test_time_that_has_passed_deletes_as_ever(place: Place) -> None:
    place.fill()
    place.clock.advance(10 * 86_400)
    assert place.left() == NONE


def test_a_step_between_two_starts_deletes_nothing(place: Place) -> None:
    kept = ("rocksdb", "segment")
    place.fill(kept)
    place.node.close()
    place.clock.set_now_ms(NOW_MS + 10 * DAY_MS)
    place.start()
    assert place.left(kept) == ALL
    place.node.close()
    place.start()
    assert place.left(kept) == ALL
    place.node.close()
    place.clock.set_now_ms(NOW_MS + 400_000)
    place.start()
    assert not place.store.clock_status().held
    assert place.left(kept) == ALL


def test_a_machine_that_was_off_for_ten_days_waits_for_a_confirmation(place: Place) -> None:
    kept = ("rocksdb", "segment")
    place.fill(kept)
    place.node.close()
    place.clock = ManualClock(NOW_MS + 10 * DAY_MS)
    place.start()
    assert place.left(kept) == ALL
    place.store.confirm_clock()
    assert place.left(kept) == NONE


def test_a_clock_that_goes_back_deletes_neither_old_nor_new_records(place: Place) -> None:
    place.fill()
    place.clock.set_now_ms(NOW_MS - 10 * DAY_MS)
    for kind in KINDS:
        place.store.topic(kind).write(b"new")
    assert place.left() == ({21}, {1}, 1)
    place.clock.advance(7_200)
    assert place.left() == ({21}, {1}, 1)
