"""Key look-ups beside writers that begin index files: no reader takes a new file for a damaged one.

A reader that reports damage starts a rebuild of the whole index, so a false alarm is expensive.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.engine.segment.rig import ORDERS, QUIET, SIZES, Rig, create

from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BusyError
from penstock.platform.disk import File
from penstock.record import Record

KEY: Final = b"k"


def index_of(store: SegmentStore) -> KeyIndex:
    return store._parts.index


def offsets_of(store: SegmentStore, key: bytes = KEY) -> list[int]:
    return [record.offset for record in store.by_key(ORDERS, key)]


def fill_files(store: SegmentStore, count: int) -> int:
    """Append records of one key until the index has so many files; return how many records."""
    written = 0
    while len(index_of(store).names) < count:
        store.append_many(ORDERS, [Record(b"v", KEY)] * 20)
        store._parts.writer.save_index()
        written += 20
    return written


def rebuilt_files(store: SegmentStore) -> float:
    return float(store._parts.metrics.rebuilt_files._value.get())


# A file that was just begun


def test_a_reader_that_comes_while_an_index_file_is_begun_finds_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(QUIET)
    create(rig.store)
    store, opened = rig.store, rig.disk.open
    written = fill_files(store, 2)
    there = set(index_of(store).names)
    looked: list[list[int]] = []

    def open_and_look(path: str, *, create: bool = False, writable: bool = True) -> File:
        file = opened(path, create=create, writable=writable)
        if path.startswith(index_of(store).directory) and path.rpartition("/")[2] not in there:
            looked.append(offsets_of(store))
        return file

    monkeypatch.setattr(rig.disk, "open", open_and_look)
    index_of(store).add_file(store._parts.log.appender, rig.clock.now_ms())
    assert len(looked) == 2  # when it is created, and when it is opened to be mapped
    assert looked == [list(range(written - 1, -1, -1))] * 2
    assert rebuilt_files(store) == 0


def run_together(done: threading.Event, *works: Callable[[], None]) -> list[Exception]:
    """Run each in a thread, the first until it ends, the others until `done`; return failures."""
    failures: list[Exception] = []

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the test's own thread reports it
            failures.append(error)
            done.set()

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    threads[0].join()
    done.set()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("turn", range(3))
def test_many_readers_beside_writers_that_fill_tiny_index_files_cause_no_rebuild(
    tmp_path: Path, turn: int
) -> None:
    with SegmentStore.open(str(tmp_path), SegmentSettings(sizes=SIZES)) as store:
        create(store)
        done = threading.Event()

        def write() -> None:
            for _ in range(600):
                store.append_many(ORDERS, [Record(b"v", KEY)] * 5)
                if done.is_set():
                    return

        def read() -> None:
            while not done.is_set():
                before = store.bounds(ORDERS).commit
                newest = next(iter(store.by_key(ORDERS, KEY)), None)
                assert before == 0 or (newest is not None and newest.offset >= before - 1)
                assert store.newest_by_key(ORDERS, b"absent %d" % turn) is None

        assert run_together(done, write, write, *[read] * 4) == []
        assert rebuilt_files(store) == 0
        assert len(index_of(store).names) > 40


# A rebuild beside a look-up


def test_a_lookup_during_which_the_index_is_rebuilt_still_finds_every_record() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    store = rig.store
    written = fill_files(store, 5)
    found = store.by_key(ORDERS, KEY)
    first = [next(found).offset for _ in range(3)]
    index_of(store).damaged = True
    rig.clock.advance(60)  # so that the new files have other names
    assert offsets_of(store) == list(range(written - 1, -1, -1))  # this one rebuilds it
    rest = [record.offset for record in found]
    assert first + rest == list(range(written - 1, -1, -1))
    assert not index_of(store).damaged


def test_a_quick_lookup_gives_no_answer_from_an_index_that_was_rebuilt_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(QUIET)
    create(rig.store)
    index = index_of(rig.store)
    fill_files(rig.store, 3)
    buffer = index._mappings.buffer

    def rebuilt(name: str) -> memoryview:
        index._generation += 1
        return buffer(name)

    assert index.newest("orders", KEY) >= 0
    monkeypatch.setattr(index._mappings, "buffer", rebuilt)
    assert index.newest("orders", KEY) == -1


# Too many open files


class _Limit:
    """A disk's `open` that runs out of descriptors whenever `left` reaches 0."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 30
        self._open = rig.disk.open
        monkeypatch.setattr(rig.disk, "open", self)

    def __call__(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if self.left <= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        self.left -= 1
        return self._open(path, create=create, writable=writable)


def test_too_many_open_files_refuse_an_append_and_the_log_goes_on_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(QUIET)
    create(rig.store)
    store = rig.store
    limit = _Limit(rig, monkeypatch)
    written = 0
    limit.left = 0

    def append_on() -> None:
        nonlocal written
        while written < 10_000:
            store.append(ORDERS, Record(b"v", KEY))
            written += 1

    with pytest.raises(BusyError, match="Too many open files"):
        append_on()
    limit.left = 1 << 30
    store.append(ORDERS, Record(b"v", KEY))
    store.flush()
    assert offsets_of(store) == list(range(written, -1, -1))
    monkeypatch.undo()
    assert [r.offset for r in rig.kill().by_key(ORDERS, KEY)] == list(range(written, -1, -1))


@pytest.mark.parametrize("left", range(12))
def test_descriptors_that_run_out_at_any_call_of_an_append_lose_nothing(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(QUIET)
    create(rig.store)
    store = rig.store
    limit = _Limit(rig, monkeypatch)
    acknowledged = 0
    for _ in range(400):
        limit.left = left
        try:
            store.append(ORDERS, Record(b"v", KEY))
        except BusyError:
            limit.left = 1 << 30
            store.append(ORDERS, Record(b"v", KEY))
        acknowledged += 1
    limit.left = 0
    try:
        store.flush()
    except BusyError:
        limit.left = 1 << 30
        store.flush()
    limit.left = 1 << 30
    assert offsets_of(store) == list(range(acknowledged - 1, -1, -1))


def test_writers_that_fill_index_files_faster_than_they_are_sealed_wait_for_the_device() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    for _ in range(60):
        rig.store.append_many(ORDERS, [Record(b"v", KEY)] * 50)
        assert index_of(rig.store).attached_count <= 9
    assert len(index_of(rig.store).names) > 40
