"""Keys inside batches: found by the index behind the dispatcher, and by reading before it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import QueueKind, ShardId

SHARD: Final = ShardId("batches", 0)
OTHER: Final = ShardId("batches", 1)
SETTINGS: Final = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=1 << 16,
        consume_queue_file_size=400,
        batch_queue_file_size=920,
        index_slots=10,
        index_entries_max=30,
    ),
    background=False,
)


def batch(*messages: tuple[str, bytes]) -> bytes:
    """Messages with keys, in RocketMQ's wire form."""
    parts = []
    for key, body in messages:
        properties = b"KEYS\x01" + key.encode() + b"\x02"
        size = 22 + len(body) + len(properties)
        parts.append(
            struct.pack(">iiiii", size, 0, 0, 0, len(body))
            + body
            + struct.pack(">h", len(properties))
            + properties
        )
    return b"".join(parts)


def fill(store: SegmentStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        pairs = [(f"k{number % 7}", b"%d/%d" % (number, n)) for n in range(3)]
        store.append_batch(SHARD, batch(*pairs), 3)
        store.append_batch(OTHER, batch((f"k{number % 7}", b"other")), 1)


def expected(key: int, count: int) -> list[bytes]:
    """The values of a key, newest first."""
    numbers = [number for number in range(count) if number % 7 == key]
    return [b"%d/%d" % (number, n) for number in reversed(numbers) for n in (2, 1, 0)]


def values(store: SegmentStore, key: bytes) -> list[bytes | None]:
    return [record.value for record in store.by_key(SHARD, key)]


def open_store(path: Path) -> SegmentStore:
    return SegmentStore.open(str(path), SETTINGS)


def make(path: Path) -> SegmentStore:
    store = open_store(path)
    for shard in (SHARD, OTHER):
        store.create_shard(shard, QueueKind.BATCH)
    return store


def test_a_key_is_found_before_in_and_behind_what_is_indexed(tmp_path: Path) -> None:
    with make(tmp_path) as store:
        fill(store, 0, 20)
        assert values(store, b"k3") == expected(3, 20)
        store.run_upkeep()
        assert values(store, b"k3") == expected(3, 20)
        fill(store, 20, 20)
        assert values(store, b"k3") == expected(3, 40)
        store.run_upkeep()
        assert values(store, b"k3") == expected(3, 40)
        assert values(store, b"unknown") == []
        newest = store.newest_by_key(OTHER, b"k3")
        assert newest is not None
        assert newest.value == b"other"


def test_indexed_batches_are_not_read_again(tmp_path: Path) -> None:
    with make(tmp_path) as store:
        fill(store, 0, 40)
        store.run_upkeep()
        keys = store._reader.batch_keys
        assert keys is not None
        assert keys.reached(SHARD) == 120
        hits = keys.lookup(SHARD, b"k3")
        # Batches of three messages: the index names each batch of the key once.
        assert 5 <= len(hits) < 20


def test_the_index_is_there_after_a_restart_and_goes_on(tmp_path: Path) -> None:
    with make(tmp_path) as store:
        fill(store, 0, 30)
        store.run_upkeep()
    for turn in range(3):
        with open_store(tmp_path) as store:
            count = 30 + 10 * turn
            keys = store._reader.batch_keys
            assert keys is not None
            assert keys.reached(SHARD) == 3 * count
            assert values(store, b"k5") == expected(5, count)
            fill(store, count, 10)
            store.run_upkeep()


def test_a_lost_or_damaged_index_is_filled_again(tmp_path: Path) -> None:
    with make(tmp_path) as store:
        fill(store, 0, 40)
        store.run_upkeep()
    files = sorted((tmp_path / "penstock" / "index").iterdir())
    assert len(files) > 2
    newest = bytearray(files[-1].read_bytes())
    newest[len(newest) // 2] ^= 0xFF
    for damage in (files[-1].unlink, lambda: files[-1].write_bytes(newest)):
        damage()
        with open_store(tmp_path) as store:
            assert values(store, b"k1") == expected(1, 40)
            store.run_upkeep()
            assert values(store, b"k1") == expected(1, 40)


def test_keys_of_shards_that_were_indexed_one_after_the_other_are_all_found(
    tmp_path: Path,
) -> None:
    """Both stand under the same text, and their positions alternate. Of the 29 entries of the file
    that has both, the newest 8, which a look-up reads at first, are of the second shard."""
    count = 3 * 29 + 21
    with make(tmp_path) as store:
        for number in range(count):
            store.append_batch(SHARD, batch(("k", b"%d" % number)), 1)
            store.append_batch(OTHER, batch(("k", b"other %d" % number)), 1)
        store.run_upkeep()
        assert values(store, b"k") == [b"%d" % number for number in reversed(range(count))]
        others = [record.value for record in store.by_key(OTHER, b"k")]
        assert others == [b"other %d" % number for number in reversed(range(count))]


def test_an_index_file_goes_when_the_log_holds_nothing_of_it_any_more(tmp_path: Path) -> None:
    """The second shard is indexed after the first, and the file ends with its records, which are
    the oldest of the log."""
    directory = tmp_path / "penstock" / "index"
    with make(tmp_path) as store:
        for number in range(8):
            store.append_batch(OTHER, batch((f"x{number}", b"." * 3000)), 1)
        for number in range(21):
            store.append_batch(SHARD, batch((f"k{number}", b"." * 3000)), 1)
        store.run_upkeep()
        for number in range(5):
            store.append_batch(OTHER, batch((f"y{number}", b"." * 3000)), 1)
        store.run_upkeep()
        first, *_ = sorted(directory.iterdir())
        store._log.files.remove_first()
        store.append_batch(OTHER, batch(("z", b".")), 1)
        store.run_upkeep()
        assert store.newest_by_key(SHARD, b"k20") is not None
        assert first.exists()
        while len(store._log.files.bases) < 4:
            store.append_batch(OTHER, batch(("z", b"." * 3000)), 1)
        store.run_upkeep()
        while len(store._log.files.bases) > 2:
            store._log.files.remove_first()
        store.append_batch(OTHER, batch(("z", b".")), 1)
        store.run_upkeep()
        assert not first.exists()
    with open_store(tmp_path) as store:
        newest = store.newest_by_key(OTHER, b"z")
        assert newest is not None


def test_messages_of_a_truncated_tail_are_not_found(tmp_path: Path) -> None:
    with make(tmp_path) as store:
        fill(store, 0, 20)
        store.run_upkeep()
        store.truncate(SHARD, 30)
        assert values(store, b"k3") == expected(3, 10)
        store.append_batch(SHARD, batch(("k3", b"new")), 1)
        store.run_upkeep()
        assert values(store, b"k3") == [b"new", *expected(3, 10)]


def test_messages_of_rocketmq_clients_are_found_by_each_word_and_their_unique_key(
    tmp_path: Path,
) -> None:
    with make(tmp_path) as store:
        store.append_batch(SHARD, batch(("red green", b"a"), ("x\x02UNIQ_KEY\x01u1", b"b")), 2)
        for _ in range(2):
            assert values(store, b"green") == values(store, b"red green") == [b"a"]
            assert values(store, b"u1") == values(store, b"x") == [b"b"]
            assert values(store, b"gree") == []
            store.run_upkeep()
        keys = store._reader.batch_keys
        assert keys is not None
        assert keys.reached(SHARD) == 2
