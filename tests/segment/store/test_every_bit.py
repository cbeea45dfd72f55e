"""Flipped bits: whatever file they are in, nothing wrong is read and nothing is passed over.

The ordinary run takes a sample of every file that changes with the seed of no run: the same bits
each time. The soak run takes them all.
"""

from __future__ import annotations

from functools import cache

import pytest
from tests.segment.store.damaged_store import TINY, Models, check_all, check_goes_on, write_store
from tests.segment.store.rig import Rig

from penstock.errors import CorruptionError, SetupError

SAMPLES = 9
"""Bits of each file in the ordinary run."""


@cache
def closed_store() -> tuple[Rig, Models]:
    rig = Rig(TINY)
    models = write_store(rig)
    rig.close()
    return rig, models


def files() -> list[str]:
    rig, _ = closed_store()
    ignored = ("/lock", ".tmp")
    return sorted(path for path in rig.disk.files() if not path.endswith(ignored))


def check_bit(path: str, bit: int) -> None:
    rig, models = closed_store()
    copy = rig.copy()
    copy.disk.flip_bit(path, bit)
    try:
        store = copy.store
    except (CorruptionError, SetupError):
        return
    check_all(store, models)
    check_goes_on(store, models)
    copy.close()


def test_the_store_has_every_kind_of_file() -> None:
    kinds = {path.split("/")[1] for path in files()}
    assert {"commitlog", "consumequeue", "batchconsumequeue", "index", "penstock"} <= kinds


@pytest.mark.timeout(300)
def test_a_flipped_bit_in_any_file_is_harmless_or_reported() -> None:
    for path in files():
        rig, _ = closed_store()
        bits = 8 * len(rig.disk.files()[path])
        for bit in range(bits // 3 % 97, bits, max(1, bits // SAMPLES)):
            check_bit(path, bit)


@pytest.mark.soak
def test_every_flipped_bit_is_harmless_or_reported() -> None:
    for path in files():
        rig, _ = closed_store()
        for bit in range(8 * len(rig.disk.files()[path])):
            check_bit(path, bit)
