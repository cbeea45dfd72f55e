"""Damage under a view: named with file and position, never served, never passed over."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.engine.segment.readonly.sample_store import EVENTS, ORDERS, ORDERS_COUNT, flip, order

from penstock.engine.segment.queue.state_files import bucket_of
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import CorruptionError
from penstock.record import ShardId


def record_place(view: ReadOnlyStore, offset: int) -> tuple[str, int]:
    """Return the name of the log file of a record, and where it starts in it."""
    position = view.snapshot().get(ORDERS).position_of(offset)
    assert position is not None
    file_size = view.snapshot().sizes.commit_log_file_size
    return f"{position - position % file_size:020d}", position % file_size


def test_a_damaged_record_is_named_and_those_before_it_are_served(copy: Path) -> None:
    name, position = record_place(ReadOnlyStore.open(str(copy)), 50)
    flip(copy / "commitlog" / name, position + 100)
    view = ReadOnlyStore.open(str(copy))
    assert [r.offset for r in view.read(ORDERS, 40)] == list(range(40, 50))
    with pytest.raises(CorruptionError) as caught:
        view.read(ORDERS, 50)
    assert (Path(caught.value.path).name, caught.value.position) == (name, position)
    with pytest.raises(CorruptionError):
        list(view.read_arrow(ORDERS, 50))
    with pytest.raises(CorruptionError):
        view.read_raw(ORDERS, 50)


def test_a_damaged_unit_is_named_by_its_queue_file(copy: Path) -> None:
    newest = max((copy / "consumequeue" / "orders" / "0").iterdir())
    flip(newest, 4)
    with pytest.raises(CorruptionError) as caught:
        ReadOnlyStore.open(str(copy)).read(ORDERS, 0)
    assert caught.value.path == str(newest)


def test_a_missing_queue_file_is_named(copy: Path) -> None:
    oldest = min((copy / "consumequeue" / "orders" / "0").iterdir())
    oldest.unlink()
    with pytest.raises(CorruptionError, match="missing") as caught:
        ReadOnlyStore.open(str(copy)).read(ORDERS, 0)
    assert caught.value.path == str(oldest)


def test_a_short_queue_file_is_named(copy: Path) -> None:
    oldest = min((copy / "consumequeue" / "orders" / "0").iterdir())
    oldest.write_bytes(oldest.read_bytes()[:1_010])
    with pytest.raises(CorruptionError, match="short") as caught:
        ReadOnlyStore.open(str(copy)).read(ORDERS, 50)
    assert caught.value.path == str(oldest)


def test_a_damaged_batch_queue_file_cannot_hide_records(copy: Path) -> None:
    """Batches are found by bisection: one wrong base could send it past all others."""
    oldest = min((copy / "batchconsumequeue" / "events" / "3").iterdir())
    view = ReadOnlyStore.open(str(copy))
    expected = view.read(EVENTS, 0)
    for position in range(0, 920, 7):
        flip(oldest, position, bit=position % 8)
        try:
            found = ReadOnlyStore.open(str(copy)).read(EVENTS, 0)
        except CorruptionError:
            pass
        else:
            assert found == expected
        flip(oldest, position, bit=position % 8)


def test_keys_are_found_with_any_index_file_damaged_or_missing(copy: Path) -> None:
    key = order(1).key or b""
    expected = list(ReadOnlyStore.open(str(copy)).by_key(ORDERS, key))
    assert len(expected) == 10
    for path in sorted((copy / "index").iterdir()):
        whole = path.read_bytes()
        for position in range(0, len(whole), 97):
            flip(path, position, bit=position % 8)
            assert list(ReadOnlyStore.open(str(copy)).by_key(ORDERS, key)) == expected
            path.write_bytes(whole)
        path.unlink()
        assert list(ReadOnlyStore.open(str(copy)).by_key(ORDERS, key)) == expected
        path.write_bytes(whole)
    shutil.rmtree(copy / "index")
    assert list(ReadOnlyStore.open(str(copy)).by_key(ORDERS, key)) == expected


def test_a_damaged_state_hides_no_shard(copy: Path) -> None:
    for path in sorted((copy / "penstock" / "shards").glob("[0-9][0-9]")):
        kept = {each: each.read_bytes() for each in (copy / "penstock").glob(f"*/{path.name}")}
        for each, whole in kept.items():
            flip(each, len(whole) // 2)
        view = ReadOnlyStore.open(str(copy))
        with pytest.raises(CorruptionError) as caught:
            view.shards()
        assert caught.value.path == str(path)
        wrong = {error.path for error in map(partial(error_of, view), (ORDERS, EVENTS)) if error}
        assert wrong <= {str(path)}
        for each, whole in kept.items():
            each.write_bytes(whole)


def test_a_state_that_is_there_twice_may_be_damaged_once(copy: Path) -> None:
    for path in sorted((copy / "penstock" / "shards").glob("[0-9][0-9]")):
        flip(path, 30)
    assert len(ReadOnlyStore.open(str(copy)).read(ORDERS, 0)) == ORDERS_COUNT - 3


def test_a_missing_state_hides_no_shard(copy: Path) -> None:
    paths = sorted((copy / "penstock").glob(f"*/{bucket_of(ORDERS):02d}"))
    for path in paths:
        path.unlink()
    with pytest.raises(CorruptionError) as caught:
        ReadOnlyStore.open(str(copy)).read(ORDERS, 0)
    assert caught.value.path in {str(path) for path in paths}


def error_of(view: ReadOnlyStore, shard: ShardId) -> CorruptionError | None:
    try:
        assert view.read(shard, 0)
    except CorruptionError as error:
        return error
    return None


def test_without_a_checkpoint_everything_is_still_found(copy: Path) -> None:
    (copy / "penstock" / "checkpoint").unlink()
    view = ReadOnlyStore.open(str(copy))
    assert len(view.read(ORDERS, 0)) == ORDERS_COUNT - 3
    assert len(list(view.by_key(ORDERS, order(1).key or b""))) == 10


def test_damaged_times_cost_a_scan_and_nothing_else(copy: Path) -> None:
    path = copy / "penstock" / "times" / "orders" / "0"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PSTKTIME" + bytes(50))
    assert ReadOnlyStore.open(str(copy)).offset_by_timestamp(ORDERS, 1_001_000) == 101
