"""The locations of a batch: a sequence like any other."""

from __future__ import annotations

from penstock.adapter.locations import Locations
from penstock.record import Location, Offset

ONE = Locations((2,), range(5, 9))
MANY = Locations([0, 1, 0], [7, 3, 8])


def test_a_batch_in_one_partition() -> None:
    assert list(ONE) == [(2, 5), (2, 6), (2, 7), (2, 8)]
    assert (len(ONE), ONE[0], ONE[-1], ONE[1:3]) == (4, (2, 5), (2, 8), [(2, 6), (2, 7)])
    assert (list(ONE.partitions), list(ONE.offsets)) == ([2] * 4, [5, 6, 7, 8])


def test_a_batch_in_several_partitions() -> None:
    assert list(MANY) == [(0, 7), (1, 3), (0, 8)]
    assert (MANY[-1], MANY[::2]) == ((0, 8), [(0, 7), (0, 8)])
    assert Location(1, Offset(3)) in MANY


def test_they_compare_by_what_they_hold() -> None:
    assert Locations((2,), [5, 6]) == Locations([2, 2], [5, 6]) == [(2, 5), (2, 6)]
    assert Locations((2,), [5]) != Locations((3,), [5])
    assert Locations((2,), [5]) != 5
    assert repr(Locations((2,), [5])) == "Locations([Location(partition=2, offset=5)])"
