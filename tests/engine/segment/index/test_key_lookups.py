"""Looking up keys beside writers, retention and upkeep, in more index files than stay mapped."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, Rig, create, fill, record

from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.index_mappings import IndexMappings
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import ClosedError, CorruptionError
from penstock.record import Record

ALL: Final = (0, (1 << 63) - 1, 1 << 40)
MAPPED_MAX: Final = 4


@pytest.fixture
def few_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.segment.index.index_mappings._FILES_MAX", MAPPED_MAX)


def index_of(store: SegmentStore) -> KeyIndex:
    return store._parts.index


def fill_index(store: SegmentStore, files: int, *, key: bytes = b"other") -> None:
    """Append until there are so many index files, the last of which is being filled."""
    while len(index_of(store).names) < files:
        store.append_many(ORDERS, [Record(b"v", key)] * 20)
        store._parts.writer.save_index()


# Beside a writer


@pytest.mark.parametrize("taken", [1, 7, 8, 9, 255, 256, 257])
def test_a_lookup_goes_on_where_it_was_while_records_are_appended(taken: int) -> None:
    rig = Rig(SegmentSettings(background=False))
    create(rig.store)
    many = [Record(b"v", b"k")] * 300
    rig.store.append_many(ORDERS, many)
    there = list(index_of(rig.store).lookup("orders#k", *ALL))
    hits = index_of(rig.store).lookup("orders#k", *ALL)
    found = list(itertools.islice(hits, taken))
    rig.store.append_many(ORDERS, many)
    rig.store.append_many(ORDERS, many)
    found += hits
    assert len(there) == 300
    assert found == there


def test_a_query_beside_a_writer_holds_the_newest_there_were() -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 60)
    there = [each.offset for each in rig.store.by_key(ORDERS, b"key-3")]
    records = rig.store.by_key(ORDERS, b"key-3")
    found = [next(records).offset]
    fill(rig.store, ORDERS, 60)
    found += [each.offset for each in records]
    assert found == there == list(range(58, 0, -5))


def test_what_is_appended_between_the_lookups_of_two_texts_is_left_to_the_next_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plain key stands in the index as it is, that of a record without a value as a token."""
    rig = Rig()
    store = rig.store
    create(store)
    store.append_many(ORDERS, [Record(b"v", b"k")] * 12)
    lookup, texts = KeyIndex.lookup, Counter[str]()

    def lookup_late(
        index: KeyIndex, text: str, begin_ms: int, end_ms: int, count_max: int
    ) -> Iterator[int]:
        texts[text] += 1
        if len(texts) == 2:
            store.append(ORDERS, Record(b"new", b"k"))
            store.append(ORDERS, Record(None, b"k"))
        yield from lookup(index, text, begin_ms, end_ms, count_max)

    monkeypatch.setattr(KeyIndex, "lookup", lookup_late)
    assert [each.offset for each in store.by_key(ORDERS, b"k")] == list(range(11, -1, -1))
    assert len(texts) == 2
    monkeypatch.undo()
    assert [each.offset for each in store.by_key(ORDERS, b"k")] == list(range(13, -1, -1))


# Files that stay, and files that go


@pytest.mark.usefixtures("few_mapped")
def test_no_more_than_the_bound_is_mapped_and_all_is_found(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        for number in range(600):
            store.append(ORDERS, record(number, key=b"key-%d" % number, tag="t"))
            store._parts.writer.save_index()
        index = index_of(store)
        for number in (*range(0, 600, 7), *range(599, 0, -11)):
            found = store.newest_by_key(ORDERS, b"key-%d" % number)
            assert found is not None
            assert found.offset == number
            assert len(index._mappings.names) <= MAPPED_MAX + len(index._attached)
        assert len(index.names) > 4 * MAPPED_MAX
        assert store.newest_by_key(ORDERS, b"absent") is None


@pytest.mark.usefixtures("few_mapped")
def test_walks_through_more_files_than_the_bound_find_most_of_it_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = Counter[str]()
    map_file = IndexMappings._map

    def count(mappings: IndexMappings, name: str) -> object:
        mapped[name] += 1
        return map_file(mappings, name)

    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        fill_index(store, 8)
        monkeypatch.setattr(IndexMappings, "_map", count)
        for _ in range(10):
            assert store.newest_by_key(ORDERS, b"absent") is None
        assert sum(1 for count in mapped.values() if count > 1) <= 8 - MAPPED_MAX + 1


def test_a_sealed_file_is_checked_once_and_one_sealed_here_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Counter[str]()
    load = BlockChecksums.load

    def count(sums: BlockChecksums, path: str) -> object:
        checked[path] += 1
        return load(sums, path)

    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        fill_index(store, 6)
    monkeypatch.setattr(BlockChecksums, "load", count)
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        names = index_of(store).names[:-1]
        fill_index(store, 9)
        for _ in range(3):
            assert store.newest_by_key(ORDERS, b"absent") is None
            assert list(store.by_key(ORDERS, b"absent")) == []
            for _ in range(2):
                index_of(store).unmap_idle()
        assert len(index_of(store)._mappings.names) == len(index_of(store)._attached)
    checks = {path: count for path, count in checked.items() if path.startswith("index/")}
    assert checks == {f"index/{name}": 1 for name in names}


def test_a_file_that_was_cut_after_its_check_is_noticed_when_it_is_mapped_again() -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 100)
    rig.restart()
    there = [each.offset for each in rig.store.by_key(ORDERS, b"key-3")]
    index = index_of(rig.store)
    for _ in range(2):
        index.unmap_idle()
    rig.disk.open(f"store/index/{index.names[0]}").truncate(100)
    with pytest.raises(CorruptionError, match="it has 100 bytes"):
        list(index.lookup("orders#key-3", *ALL))
    assert [each.offset for each in rig.store.by_key(ORDERS, b"key-3")] == there


@pytest.mark.usefixtures("few_mapped")
def test_a_lookup_keeps_its_file_while_others_need_room(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        store.append_many(ORDERS, [Record(b"v", b"old")] * 30)
        fill_index(store, 20)
        index = index_of(store)
        hits = index.lookup("orders#old", *ALL)
        found = [next(hits)]
        for _ in range(2):
            assert store.newest_by_key(ORDERS, b"absent") is None
            index.unmap_idle()
        found += hits
        assert len(found) == 30


@pytest.mark.parametrize("leaves", ["drop", "close"])
def test_a_readonly_store_outlives_the_removal_of_its_file_and_nothing_stays_mapped(
    tmp_path: Path, leaves: str
) -> None:
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        fill_index(store, 3)
        index = index_of(store)
        oldest = index.names[0]
        view = index._mappings.buffer(oldest)
        before = bytes(view)
        if leaves == "drop":
            index._remove(oldest)
        else:
            store.close()
        assert bytes(view) == before
        del view
        index.unmap_idle()
        assert f"{tmp_path}/index/{oldest}" not in Path("/proc/self/maps").read_text()
        opened = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        assert not any(each.name.startswith(oldest) for each in opened)


def test_a_file_removed_before_its_turn_is_passed_over(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        fill_index(store, 4, key=b"k")
        index = index_of(store)
        hits = index.lookup("orders#k", *ALL)
        found = [next(hits)]
        oldest = index.names[0]
        index._remove(oldest)
        found += hits
        assert found == list(index.lookup("orders#k", *ALL))
        assert not index.damaged


def test_a_checkpoint_that_began_before_the_files_were_let_go_ends_well(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        create(store)
        fill(store, ORDERS, 10)
        index = index_of(store)
        begun = index.begin_mark()
        index.detach(store._log.appender)
        mark = index.finish_mark(begun, clean=True)
        assert mark.name == index.names[-1]


def test_a_closed_index_takes_no_file_and_maps_none(tmp_path: Path) -> None:
    store = SegmentStore.open(str(tmp_path), QUIET)
    create(store)
    fill_index(store, 3)
    store.close()
    index = index_of(store)
    with pytest.raises(ClosedError):
        index.add_file(store._log.appender, 0)
    with pytest.raises(ClosedError):
        list(index.lookup("orders#other", *ALL))


def test_the_background_unmaps_files_that_nobody_looks_into() -> None:
    rig = Rig()
    create(rig.store)
    fill_index(rig.store, 5)
    index = index_of(rig.store)
    assert rig.store.newest_by_key(ORDERS, b"absent") is None
    assert len(index._mappings.names) == len(index.names)
    for _ in range(2):
        rig.clock.advance(11)
        rig.store._upkeep._keep()
    assert index._mappings.names == [each.name for each in index._attached]


# A store without checkpoint: the index goes on as it is


def index_files(rig: Rig) -> list[bytes]:
    files = rig.disk.files()
    return [files[path] for path in sorted(files) if path.startswith("store/index/")]


@pytest.mark.parametrize("count", [0, 1, 2, 28, 29, 30, 31, 58, 59, 60])
def test_an_index_without_checkpoint_stays_as_it_was(count: int) -> None:
    """59 entries fill a file, and each record has two: those of the thirtieth are in two files."""
    rig = Rig()
    create(rig.store)
    create(rig.store, EVENTS)
    for number in range(count):
        rig.store.append(ORDERS, record(number, key=b"key-%d" % number, tag="t"))
    rig.store.append(EVENTS, record(0))
    rig.close()
    before = index_files(rig)
    assert len(before) == -(-2 * count // 59)
    for _ in range(2):
        rig.disk.remove_tree("store/penstock")
        rig.restart()
        rig.close()
        assert index_files(rig) == before


def test_an_index_that_lacks_entries_of_its_last_record_gets_those() -> None:
    rig = Rig()
    create(rig.store)
    for number in range(30):
        rig.store.append(ORDERS, record(number, key=b"key-%d" % number, tag="t"))
    rig.close()
    before = index_files(rig)
    newest = max(path for path in rig.disk.files() if path.startswith("store/index/"))
    rig.disk.remove(newest)
    rig.disk.remove_tree("store/penstock")
    rig.restart()
    rig.close()
    assert index_files(rig) == before


def test_an_index_whose_last_entry_is_not_of_the_record_in_its_header_is_rebuilt() -> None:
    rig = Rig()
    create(rig.store)
    for number in range(20):
        rig.store.append(ORDERS, record(number, key=b"key-%d" % number, tag="t"))
    rig.close()
    before = index_files(rig)
    (path,) = (path for path in rig.disk.files() if path.startswith("store/index/"))
    last_at = 40 + 4 * 20 + 20 * 40
    assert any(before[0][last_at : last_at + 20])
    rig.disk.open(path).write_at(last_at, bytes(20))
    rig.disk.remove_tree("store/penstock")
    rig.restart()
    rig.close()
    assert index_files(rig) == before
