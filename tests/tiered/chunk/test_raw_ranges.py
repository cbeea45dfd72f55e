"""Records on their way into a tier as runs of bytes: both backends give the same, and nothing that
is damaged passes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, open_store, read_all, record

from penstock.codec import pure
from penstock.codec.format import KIND_BATCH, KIND_SIMPLE
from penstock.codec.select import Core, native_core
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, CorruptionError, TierUnavailableError
from penstock.record import QueueKind, Record, ShardId
from penstock.tiered.chunk.chunk import ChunkRange, build_chunk, derive_units
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.upload.dispatcher import upload_shard

PLACE = 777_000
BATCHES = ShardId("orders", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        store.create_shard(BATCHES, QueueKind.BATCH)
        yield store


@pytest.fixture(params=["native", "pure"])
def core(request: pytest.FixtureRequest) -> Core:
    found = native_core() if request.param == "native" else pure
    if found is None:
        pytest.skip("the extension was not built")
    return found


def odd_records(count: int) -> list[Record]:
    return [
        Record(
            value=None if n % 5 == 0 else b"v" * n,
            key=None if n % 3 == 0 else b"two words %d" % (n % 4),
            tags=("a", "b") if n % 2 else (),
            headers=(("UNIQ_KEY", b"u%d" % n),),
            timestamp_ms=1_700_000_000_000 - n,
        )
        for n in range(count)
    ]


def runs(store: SegmentStore) -> Iterator[tuple[ShardId, QueueKind, int, bytes]]:
    for n, one in enumerate(odd_records(40)):
        store.append(SHARD, one)
        if n % 4 == 0:
            store.append_many(BATCHES, odd_records(3))
    store.delete_offsets(SHARD, [3, 4, 5])
    for shard, kind, number in (
        (SHARD, QueueKind.SIMPLE, KIND_SIMPLE),
        (BATCHES, QueueKind.BATCH, KIND_BATCH),
    ):
        yield shard, kind, number, store.read_raw_range(shard, 0, max_size=1 << 20)[0]


def test_both_twins_place_index_and_copy_alike(store: SegmentStore) -> None:
    native = native_core()
    if native is None:
        pytest.skip("the extension was not built")
    for shard, kind, number, run in runs(store):
        for gap, size in ((0, 1 << 20), (4096, 1 << 20), (4096, 600), (4096, 0)):
            asked = (run, number, PLACE, 0, gap, size)
            assert native.place_records(*asked) == pure.place_records(*asked)
        placed, first, _ = native.place_records(run, number, PLACE, 0, 4096, 1 << 20)
        assert len(placed) == len(run)
        units = derive_units(shard, kind, placed, PLACE, first)
        for filter_size in (1, 512):
            index = (placed, PLACE, units, number, first, shard.topic, shard.partition, filter_size)
            assert native.index_records(*index) == pure.index_records(*index)
        for deleted in ([], [(0, 7)], [(2, 3), (10, 12)], [(0, 1 << 40)]):
            for size in (0, 500, 1 << 20):
                copy = (placed, PLACE, units, number, first, shard.topic, shard.partition)
                live = [] if kind is QueueKind.SIMPLE else deleted
                holes = [*live] or [(3, 6)]
                assert native.copy_records(*copy, holes, size) == pure.copy_records(
                    *copy, holes, size
                )


def test_a_flipped_bit_is_refused_wherever_it_is(store: SegmentStore, core: Core) -> None:
    fill(store, 3)
    run, _ = store.read_raw_range(SHARD, 0, max_size=1 << 20)
    for at in range(0, len(run), 7):
        damaged = bytearray(run)
        damaged[at] ^= 0x10
        with pytest.raises(BadRequestError):
            core.place_records(bytes(damaged), KIND_SIMPLE, 0, 0, 0, 1 << 20)


def test_a_chunk_is_not_built_from_damaged_records(store: SegmentStore) -> None:
    fill(store, 5)
    run, end = store.read_raw_range(SHARD, 0, max_size=1 << 20)
    placed, _, _ = pure.place_records(run, KIND_SIMPLE, PLACE, 0, 0, 1 << 20)
    units = derive_units(SHARD, QueueKind.SIMPLE, placed, PLACE, 0)
    where = ChunkRange(0, end, PLACE, 1, 0)
    build_chunk(SHARD, QueueKind.SIMPLE, "x", placed, units, where)
    damaged = bytearray(placed)
    damaged[len(run) // 2] ^= 1
    with pytest.raises(CorruptionError):
        build_chunk(SHARD, QueueKind.SIMPLE, "x", bytes(damaged), units, where)


def test_a_run_is_appended_as_its_records_would_be(store: SegmentStore) -> None:
    fill(store, 200)
    store.delete_offsets(SHARD, [*range(20, 60)])
    config = TierConfig(url=f"memory://{uuid.uuid4().hex}", chunk_size=3000)
    flat = CompositeFlatFile(config, SHARD)
    flat.acquire()
    size = upload_shard(store, flat)
    assert size == len(store.read_raw_range(SHARD, 0, max_size=1 << 30)[0])
    assert read_all(CompositeFlatFile(config, SHARD)) == store.read(SHARD, 0)
    assert flat.commit_offset == flat.dispatch_offset == 200
    chunks = [*flat.manifest.chunks_from(0)]
    assert all(chunk.data_size > 2500 for chunk in chunks[:-1]), "chunks are full"


def test_a_record_larger_than_a_chunk_has_one_of_its_own(store: SegmentStore) -> None:
    for size in (10, 9000, 10, 10, 12_000, 9000, 10):
        store.append(SHARD, record(1, size))
    config = TierConfig(url=f"memory://{uuid.uuid4().hex}", chunk_size=4096)
    flat = CompositeFlatFile(config, SHARD)
    flat.acquire()
    upload_shard(store, flat)
    assert read_all(CompositeFlatFile(config, SHARD)) == store.read(SHARD, 0)


class LastPutFails(MemoryProvider):
    """Refuses the objects of one name, after others that were begun later have arrived."""

    puts = 0
    fails = True

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.puts += 1
        if self.fails and self.puts == 2:
            raise TierUnavailableError("503")
        super().put_if_absent(key, data)


def test_a_failed_put_among_several_leaves_the_manifest_as_it_was(store: SegmentStore) -> None:
    fill(store, 100)
    provider = LastPutFails(uuid.uuid4().hex)
    config = TierConfig(url="memory://unused", chunk_size=2000)
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    flat.acquire()
    with pytest.raises(TierUnavailableError):
        upload_shard(store, flat)
    assert CompositeFlatFile(config, SHARD, provider=provider).commit_offset == 0
    provider.fails = False
    flat.reset()
    upload_shard(store, flat)
    found = CompositeFlatFile(config, SHARD, provider=provider)
    assert read_all(found) == store.read(SHARD, 0)
