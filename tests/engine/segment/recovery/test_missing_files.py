"""Everything derived can be lost, file by file or all at once: it is built again from the log."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.engine.segment.damaged_store import TINY, Models, check_all, check_goes_on, write_store
from tests.engine.segment.rig import EVENTS, ORDERS, Rig, create, record

from penstock.errors import CorruptionError
from penstock.record import QueueKind
from penstock.testing import PowerCut

KEPT = ("/commitlog/", "/lock", "/store.properties", "/abort")
"""Not derived: the log, and what says how to read it."""


class Written:
    def __init__(self, *, clean: bool) -> None:
        self.rig = Rig(TINY)
        self.models: Models = write_store(self.rig, early_checkpoint=not clean)
        if clean:
            self.rig.close()

    def derived(self) -> Iterator[str]:
        for path in self.rig.disk.files():
            if not any(kept in path for kept in KEPT):
                yield path


@pytest.fixture(scope="module", params=["closed", "killed"])
def written(request: pytest.FixtureRequest) -> Written:
    return Written(clean=request.param == "closed")


def check(rig: Rig, models: Models) -> None:
    """All is there, also after the next start, and goes on."""
    assert check_all(rig.store, models) == set()
    assert check_all(rig.restart(), models) == set()
    check_goes_on(rig.store, models)


def test_any_one_derived_file_may_be_missing(written: Written) -> None:
    for path in written.derived():
        rig = written.rig.copy()
        rig.disk.remove(path)
        check(rig, written.models)


def test_any_one_derived_file_may_be_empty_or_cut_in_half(written: Written) -> None:
    sizes = {path: len(data) for path, data in written.rig.disk.files().items()}
    for number, path in enumerate(written.derived()):
        rig = written.rig.copy()
        rig.disk.open(path).truncate(0 if number % 2 else sizes[path] // 2)
        check(rig, written.models)


@pytest.mark.parametrize("gone", ["its files", "its directory"])
def test_a_log_that_is_not_where_it_was_is_refused_and_nothing_is_made(
    written: Written, gone: str
) -> None:
    rig = written.rig.copy()
    log = {path: data for path, data in rig.disk.files().items() if "/commitlog/" in path}
    for path in log:
        rig.disk.remove(path)
    if gone == "its directory":
        rig.disk.remove_tree("store/commitlog")
    rest = rig.disk.files()
    with pytest.raises(CorruptionError, match="none of its files is here; is its disk mounted"):
        _ = rig.store
    assert rig.disk.files() == rest
    for path, data in log.items():
        rig.disk.make_directory("store/commitlog")
        rig.disk.open(path, create=True).write_at(0, data)
    check(rig, written.models)


def test_whole_directories_may_be_missing(written: Written) -> None:
    for directory in (
        "consumequeue",
        "batchconsumequeue",
        "index",
        "config",
        "penstock/shards",
        "penstock/copies",
        "penstock/times",
        "penstock/sums",
        "penstock/index",
        "penstock/batch-keys",
    ):
        rig = written.rig.copy()
        rig.disk.remove_tree(f"store/{directory}")
        check(rig, written.models)


def test_all_derived_files_together_may_be_missing(written: Written) -> None:
    rig = written.rig.copy()
    for path in written.derived():
        rig.disk.remove(path)
    check(rig, written.models)
    assert rig.store.report.damaged == []


def test_penstocks_own_directory_may_be_missing(written: Written) -> None:
    rig = written.rig.copy()
    rig.disk.remove_tree("store/penstock")
    check(rig, written.models)


def test_both_copies_of_a_shards_state_may_be_missing(written: Written) -> None:
    for name in written.rig.disk.list("store/penstock/shards"):
        rig = written.rig.copy()
        rig.disk.remove(f"store/penstock/shards/{name}")
        rig.disk.remove(f"store/penstock/copies/{name}")
        check(rig, written.models)


def test_a_rebuild_is_bounded_by_what_is_missing() -> None:
    rig = Rig(TINY)
    models = write_store(rig)
    rig.close()
    scanned = rig.copy().store.report.records_scanned
    assert scanned == 0
    for path in ("store/consumequeue/orders/0/00000000000000000000", "store/config/topics.json"):
        copy = rig.copy()
        copy.disk.remove(path)
        assert copy.store.report.records_scanned == 0, "found out when it is read, not at the start"
        assert check_all(copy.store, models) == set()


def test_a_power_cut_while_everything_is_rebuilt_does_no_harm(written: Written) -> None:
    base = written.rig.copy()
    for path in written.derived():
        base.disk.remove(path)
    count = _calls_of_opening(base.copy())
    for call in range(0, count, max(1, count // 25)):
        rig = base.copy()
        rig.disk.stop_at_call(call)
        with pytest.raises(PowerCut):
            _ = rig.store
        rig.abandon()
        rig.disk.crash(random.Random(call))
        check(rig, written.models)


def _calls_of_opening(rig: Rig) -> int:
    before = rig.disk.call_count()
    _ = rig.store
    return rig.disk.call_count() - before


def test_a_missing_file_of_the_log_is_named() -> None:
    rig = Rig(TINY)
    write_store(rig)
    rig.close()
    rig.disk.remove("store/commitlog/00000000000000000000")
    store = rig.store
    with pytest.raises(CorruptionError, match=r"0{20}|lost"):
        store.read(next(iter(store.shards())), 0)


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("kind", QueueKind)
def test_the_records_of_a_missing_first_file_are_reported_once_as_lost(
    kind: QueueKind, unclean: bool
) -> None:
    rig = Rig(TINY)
    create(rig.store, kind=kind)
    create(rig.store, EVENTS, kind=kind)
    for number in range(40):
        rig.store.append(ORDERS, record(number, size=400))
        if number > 30:
            rig.store.append(EVENTS, record(number, size=400))
    rig.store.checkpoint()
    first = next(n for n in range(40) if _position(rig, n) >= rig.store._parts.log.files.file_size)
    if unclean:
        rig.abandon()
        rig.disk.kill()
    else:
        rig.close()
    rig.disk.remove("store/commitlog/00000000000000000000")
    (place,) = rig.store.report.damaged
    assert place.path == "store/commitlog/00000000000000000000"
    assert "missing, and with it records of 1 shards" in place.reason
    for store in rig.lives():
        with pytest.raises(CorruptionError, match=r"this file of the log is missing"):
            store.read(ORDERS, 0)
        assert [each.offset for each in store.read(ORDERS, first)] == list(range(first, 40))
        assert len(store.read(EVENTS, 0)) == 9
    assert rig.store.report.damaged == []


def _position(rig: Rig, offset: int) -> int:
    position = rig.store._table.get(ORDERS).position_of(offset)
    assert position is not None
    return position


def test_files_that_retention_removed_are_not_reported() -> None:
    rig = Rig(TINY)
    create(rig.store)
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    for number in range(40):
        rig.store.append(ORDERS, record(number, size=400))
        rig.store.append(EVENTS, record(number, size=400))
    rig.store.delete_offsets(ORDERS, [0, 1, 2])
    count = len(rig.store._parts.log.files.bases)
    for calls in range(200):
        copy = rig.copy()
        before = copy.store._parts.log.files.start
        copy.disk.stop_at_call(calls)
        try:
            copy.store.retention.remove_oldest_file()
        except PowerCut:
            copy.abandon()
            copy.disk.crash(random.Random(calls))
            assert copy.store.report.damaged == [], (calls, before)
        else:
            assert len(copy.store._parts.log.files.bases) == count - 1
            copy.disk.heal()
            assert copy.restart().report.damaged == []
            return
    pytest.fail("to remove a file takes fewer calls")


def test_a_missing_file_in_the_middle_of_the_log_is_refused_by_name() -> None:
    rig = Rig(TINY)
    write_store(rig)
    for number in range(40):
        rig.store.append(rig.store.shards()[0], record(number, size=400))
    rig.close()
    middle = sorted(rig.disk.list("store/commitlog"))[1]
    rig.disk.remove(f"store/commitlog/{middle}")
    with pytest.raises(CorruptionError, match=f"{middle}.*missing"):
        _ = rig.store
