"""A writer in another process rolls, deletes and truncates while a view reads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engine.segment.readonly.sample_store import ORDERS, tree

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import CorruptionError, LockedError, StoreError

ROOT = Path(__file__).parents[4]
WRITER = """
import sys, time
from tests.engine.segment.readonly.sample_store import ORDERS, SMALL
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId

mode, path = sys.argv[1:]
settings = SegmentSettings(sizes=SMALL, publish_interval_ms=50, derived_interval_ms=200)
with SegmentStore.open(path, settings) as store:
    store.create_shard(ORDERS)
    print("open", flush=True)
    number = 0
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for _ in range(50):
            key = b"k%d" % (number % 10)
            store.append(ORDERS, Record(b"value %d" % number, key=key, timestamp_ms=number))
            number += 1
        if mode == "remove" and number % 500 == 0:
            store.retention.remove_oldest_file()
        if mode == "truncate" and number % 500 == 0:
            number -= 30
            store.truncate(ORDERS, number)
        if mode == "delete" and number % 100 == 0:
            store.delete_shard(ShardId(f"passing-{number - 300}", 0))
            passing = ShardId(f"passing-{number}", 0)
            store.create_shard(passing)
            store.append_many(passing, [Record(b"gone", key=b"k3") for _ in range(40)])
            store.delete_offsets(passing, [1, 2, 3])
            store.delete_offsets(ORDERS, [number - 7])
        if mode == "recreate":
            again = ShardId("again", 0)
            store.delete_shard(again)
            store.create_shard(again)
            for count in (1, number % 130 + 1):
                records = [Record(b"%d" % number, key=b"k3") for _ in range(count)]
                store.append_many(again, records)
            store.delete_offsets(again, [0, count // 2])
        time.sleep(0.005)
"""


@contextmanager
def writer(mode: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, mode, str(path)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def open_soon(path: Path) -> ReadOnlyStore:
    """Open a view as soon as the writer has published the shard."""
    deadline = time.monotonic() + 60
    while True:
        view = ReadOnlyStore.open(str(path))
        if ORDERS in view.shards():
            return view
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["append", "remove", "truncate"])
def test_a_readonly_store_reads_every_record_right_while_a_writer_works(
    mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with writer(mode, path):
        view = open_soon(path)
        seen = turns = offset = 0
        until = time.monotonic() + 60
        while (turns < 60 or seen <= 100) and time.monotonic() < until:
            turns += 1
            view.refresh()
            bounds = view.bounds(ORDERS)
            assert bounds.earliest <= bounds.commit <= bounds.next
            for record in view.read(ORDERS, offset, max_records=200):
                # Offsets and values go together, whatever the writer does meanwhile.
                assert record.value == b"value %d" % record.offset
                assert record.offset >= offset
                assert mode == "remove" or record.offset == offset
                offset = record.offset + 1
                seen += 1
            newest = view.newest_by_key(ORDERS, b"k3")
            assert newest is None or newest.offset % 10 == 3
            if mode == "truncate":
                offset = max(0, min(offset, bounds.next) - 40)
        assert seen > 100


def test_a_readonly_store_takes_no_lock_and_needs_none(tmp_path: Path) -> None:
    from penstock.engine.segment.store import SegmentStore

    path = tmp_path / "store"
    with writer("append", path):
        open_soon(path).close()
        with pytest.raises(LockedError):
            SegmentStore.open(str(path))


def test_what_a_killed_writer_published_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer("append", path):
        open_soon(path)
        time.sleep(0.2)
    before = tree(path)
    view = ReadOnlyStore.open(str(path))
    assert view.snapshot().unclosed
    bounds = view.bounds(ORDERS)
    assert bounds.commit > 0
    records = view.read(ORDERS, 0, max_records=10_000)
    assert [record.offset for record in records] == list(range(bounds.commit))
    assert len(list(view.by_key(ORDERS, b"k3"))) == (bounds.commit + 6) // 10
    assert tree(path) == before


def test_a_readonly_store_of_a_store_that_is_rebuilt_under_it_ends_with_a_clear_error(
    tmp_path: Path, copy: Path
) -> None:
    view = ReadOnlyStore.open(str(copy))
    for file in (copy / "consumequeue" / "orders" / "0").iterdir():
        file.unlink()
    with pytest.raises(CorruptionError, match=r"consumequeue/orders/0/\d+: .*missing"):
        view.read(ORDERS, 0)
    with pytest.raises(StoreError):
        list(view.by_key(ORDERS, b"o-1"))
