"""Whatever fails, and whenever the process ends: nothing is lost, nothing is there twice, and what
is left over is collected."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.providers.faulty_provider import FaultyProvider, Killed
from tests.tiered.rig import SHARD, fill, open_store, read_all, record

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.engine.segment.store import SegmentStore
from penstock.errors import StoreError, TierUnavailableError
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.platform.clock import SystemClock
from penstock.record import Record, ShardId
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.chunk.shard_manifest import LeaseLostError
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.lease import DURATION_MS, MetaLease
from penstock.tiered.maintenance.compaction import rewrite_segments
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.providers.retrying import RetryingProvider
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.shard_tiers import ShardTiers
from penstock.tiered.upload.dispatcher import LEASE_RETRY_S, TieredDispatcher, upload_shard

CONFIG = TierConfig(url="memory://unused", chunk_size=2000, segment_size=6000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        yield store


class Hasty(SystemClock):
    """Waits for nothing."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.is_set()


def flat_on(provider: FaultyProvider, clock: ManualClock | None = None) -> CompositeFlatFile:
    retrying = RetryingProvider(provider, attempts=8, clock=Hasty())
    return CompositeFlatFile(CONFIG, SHARD, provider=retrying, clock=clock)


def test_faults_at_every_fifth_call_lose_nothing(store: SegmentStore) -> None:
    provider = FaultyProvider(MemoryProvider(uuid.uuid4().hex))
    provider.fault_ratio = 0.2
    for first in range(0, 300, 30):
        fill(store, 30, start=first)
        flat = flat_on(provider)
        for _ in range(20):
            try:
                flat.acquire()
                upload_shard(store, flat)
                break
            except TierUnavailableError:
                continue
        for _ in range(20):
            try:
                found = read_all(flat_on(provider))
                break
            except TierUnavailableError:
                continue
        assert found == store.read(SHARD, 0)


def history(store: SegmentStore, flat: CompositeFlatFile, clock: ManualClock) -> None:
    """Every kind of change: uploads, a seal, holes, a rewritten segment, expiry, garbage."""
    flat.acquire()
    upload_shard(store, flat)
    flat.upkeep.delete_ranges([(5, 20)])
    flat.upkeep.seal(only_if_due=False)
    rewrite_segments(flat, dead_ratio=0.1)
    flat.clean_expired_file(1_700_000_004_000)
    clock.advance(2 * CONFIG.grace_ms / 1000)
    flat.destroy_expired_file()


def test_an_end_between_any_two_steps_leaves_a_sound_tier(store: SegmentStore) -> None:
    fill(store, 60)
    everything = {one.offset: one for one in store.read(SHARD, 0)}
    measured = FaultyProvider(MemoryProvider(uuid.uuid4().hex))
    history(store, flat_on(measured, ManualClock()), ManualClock())
    assert measured.calls > 15
    for kill_at in range(2 * measured.calls + 1):
        provider = FaultyProvider(MemoryProvider(uuid.uuid4().hex))
        provider.kill_at = kill_at
        clock = ManualClock()
        with contextlib.suppress(Killed):
            history(store, flat_on(provider, clock), clock)
        provider.kill_at = None
        survivor = flat_on(provider, clock)
        found = read_all(survivor)
        assert [one.offset for one in found] == sorted({one.offset for one in found}), kill_at
        assert all(everything[one.offset] == one for one in found), kill_at
        history(store, flat_on(provider, clock), clock)
        after = read_all(flat_on(provider, clock))
        first = flat_on(provider, clock).min_offset
        kept = [n for n in range(first, 60) if not 5 <= n < 20]
        assert [one.offset for one in after] == kept, kill_at
        assert all(everything[one.offset] == one for one in after), kill_at
        assert _collected(provider, clock), kill_at


def _collected(provider: FaultyProvider, clock: ManualClock) -> bool:
    """Return whether nothing but what the manifest names is left, once all is old."""
    clock.advance(float(1 << 40))
    flat = flat_on(provider, clock)
    flat.upkeep.collect_garbage()
    manifest = flat.refresh()
    assert manifest is not None
    named = {chunk.name for chunk in flat.manifest.chunks_from(-1)}
    named |= {segment.name for segment in manifest.segments} | {"manifest"}
    return {info.key.rpartition("/")[2] for info in provider.inner.list()} == named


def test_two_writers_that_race_never_mix(store: SegmentStore) -> None:
    fill(store, 150)
    provider = FaultyProvider(MemoryProvider(uuid.uuid4().hex))

    def write() -> None:
        for _ in range(6):
            flat = flat_on(provider)
            try:
                flat.acquire()
                upload_shard(store, flat)
            except LeaseLostError:
                continue
            except StoreError:
                continue

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = flat_on(provider)
    last.acquire()
    upload_shard(store, last)
    assert read_all(flat_on(provider)) == store.read(SHARD, 0)


def test_while_the_tier_is_gone_the_log_keeps_what_it_lacks(tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    clock = ManualClock()
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        tiers = ShardTiers(TierConfig(url=f"memory://{name}", chunk_size=2000), clock=clock)
        tiers.watch(SHARD, ShardConfig(tiering=ShardTiering()))
        flat = tiers.flat(SHARD)
        assert flat is not None
        provider = FaultyProvider(MemoryProvider(name))
        flat.manifest.provider = flat.provider = provider  # type: ignore[misc]  # a fault is put in
        dispatcher = TieredDispatcher(store, tiers, interval_ms=1000, threads=0, clock=clock)
        fill(store, 40)
        dispatcher.schedule_all()
        dispatcher.run_once(force=True)
        assert dispatcher.keep_from(SHARD) == 40
        provider.is_gone = True
        store.append(SHARD, Record(b"written while the tier is gone"))
        dispatcher.advance(SHARD, 40, 41)
        clock.advance(2)
        dispatcher.run_once()
        assert SHARD in dispatcher.failures()
        assert dispatcher.keep_from(SHARD) == 40, "what the tier lacks is needed"
        assert dispatcher.run_once() == 0, "it is not asked all the time"
        provider.is_gone = False
        clock.advance(120)
        dispatcher.run_once()
        assert dispatcher.failures() == {}
        assert dispatcher.keep_from(SHARD) == 41


def test_a_shard_of_an_uploader_that_was_killed_is_taken_over_without_another_write(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    with (
        StandaloneMetaClient.open(str(tmp_path / "meta"), clock=clock) as meta,
        open_store(tmp_path / "store") as store,
    ):
        shard = ShardId(meta.create_topic("orders").topic_id, 0)
        store.create_shard(shard)
        tiers = ShardTiers(TierConfig(url=f"memory://{uuid.uuid4().hex}"), clock=clock)
        tiers.watch(shard, ShardConfig(tiering=ShardTiering()))
        dispatcher = TieredDispatcher(
            store, tiers, interval_ms=1000, threads=0, lease=MetaLease(meta, clock), clock=clock
        )
        store.append_many(shard, [record(n) for n in range(40)])
        assert MetaLease(meta, clock).hold(shard), "the one that is killed then"
        dispatcher.schedule_all()
        assert dispatcher.run_once(force=True) == 1, "once, however it ends"
        assert dispatcher.keep_from(shard) == 0
        assert dispatcher.failures() == {}, "it is another's, which is no failure"
        clock.advance(1)
        assert dispatcher.run_once() == 0, "the lease is not asked for all the time"
        clock.advance(DURATION_MS / 1000 + LEASE_RETRY_S)
        assert dispatcher.run_once() == 1
        assert dispatcher.keep_from(shard) == 40


def test_a_record_deleted_behind_its_upload_never_comes_back(store: SegmentStore) -> None:
    clock = ManualClock()
    tiers = ShardTiers(TierConfig(url=f"memory://{uuid.uuid4().hex}", chunk_size=2000), clock=clock)
    tiers.watch(SHARD, ShardConfig(tiering=ShardTiering()))
    dispatcher = TieredDispatcher(store, tiers, threads=0, clock=clock)
    fill(store, 30)
    dispatcher.upload(SHARD)
    store.delete_offsets(SHARD, [3, 17])
    held = dispatcher.keep_from(SHARD)
    assert held == 30
    store.delete_before(SHARD, held)
    flat = tiers.flat(SHARD)
    assert flat is not None
    wanted = [n for n in range(30) if n not in (3, 17)]
    assert [one.offset for one in read_all(flat)] == wanted
    assert record(3).key not in [one.key for one in flat.reader.by_key(b"key-3") if one.offset == 3]


def test_a_chunk_that_may_have_been_collected_is_never_referred_to(store: SegmentStore) -> None:
    """An uploader that stood still between data and manifest, as a suspended machine does."""
    clock = ManualClock(1_900_000_000_000)
    provider = FaultyProvider(MemoryProvider(uuid.uuid4().hex))
    fill(store, 10)
    flat = flat_on(provider, clock)
    flat.acquire()
    for message in store.read_raw(SHARD, 0):
        assert flat.append(message) is AppendResult.SUCCESS
    flat.commit_commit_log()
    clock.advance(CONFIG.grace_ms / 1000 + 1)
    other = flat_on(provider, clock)
    assert other.upkeep.collect_garbage().deleted == 1, "nothing refers to it, and it is old"
    with pytest.raises(TierUnavailableError, match="uploaded again"):
        flat.commit_consume_queue()
    upload_shard(store, flat)
    assert read_all(flat_on(provider)) == store.read(SHARD, 0)


def test_a_rewritten_segment_that_may_have_been_collected_is_not_swapped_in(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_900_000_000_000)
    provider = FaultyProvider(MemoryProvider(uuid.uuid4().hex))
    fill(store, 100)
    flat = flat_on(provider, clock)
    flat.acquire()
    upload_shard(store, flat)
    flat.upkeep.delete_ranges([(0, 70)])
    flat.upkeep.seal(only_if_due=False)
    put = flat.upkeep.put_descriptor

    def slow_put(epoch: int, chunks: tuple[ChunkEntry, ...]) -> str:
        name = put(epoch, chunks)
        clock.advance(CONFIG.grace_ms / 1000 + 1)
        flat_on(provider, clock).upkeep.collect_garbage()
        return name

    with monkeypatch.context() as patch:
        patch.setattr(flat.upkeep, "put_descriptor", slow_put)
        assert rewrite_segments(flat).size == 0
    assert [one.offset for one in read_all(flat_on(provider))] == [*range(70, 100)]
    assert rewrite_segments(flat).size > 0, "the next attempt is in time"
    assert [one.offset for one in read_all(flat_on(provider))] == [*range(70, 100)]
