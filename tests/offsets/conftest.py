"""What the tests of offsets share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.offsets.world import SMALL, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.meta.close()


@pytest.fixture
def small_world() -> Iterator[World]:
    world = World(SMALL)
    yield world
    world.meta.close()
