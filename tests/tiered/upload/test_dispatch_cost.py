"""What the tier's dispatcher reads of the log: lengths of tiered shards, nothing of the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, open_store, record

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.engine.segment.read.key_reader import ShardReader
from penstock.engine.segment.store import SegmentStore
from penstock.record import QueueKind, ShardId
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine

PLAIN = ShardId("plain", 0)
TIERED = ShardConfig(tiering=ShardTiering())


def make_engine(store: SegmentStore, tmp_path: Path) -> TieredSegmentEngine:
    config = TierConfig(url=f"memory://{tmp_path.name}-{id(store)}")
    return build_tiered_engine(
        store, config, metadata_path=str(tmp_path / "meta"), background=False
    )


def test_the_dispatcher_decodes_no_record_and_costs_plain_shards_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[str] = Counter()
    sized: Counter[str] = Counter()
    read_some, size_between = ShardReader.read_some, SegmentStore.size_between

    def counted_read(self: ShardReader, log: object, query: object) -> object:
        records = read_some(self, log, query)  # type: ignore[arg-type]  # handed on as it came
        decoded["records"] += len(records)
        return records

    def counted_size(self: SegmentStore, shard: ShardId, offset: int, until: int) -> int:
        sized[shard.name] += 1
        return size_between(self, shard, offset, until)

    monkeypatch.setattr(ShardReader, "read_some", counted_read)
    monkeypatch.setattr(SegmentStore, "size_between", counted_size)
    with open_store(tmp_path / "store") as store:
        engine = make_engine(store, tmp_path)
        engine.create_shard(SHARD, TIERED)
        engine.create_shard(PLAIN, ShardConfig())
        for n in range(600):
            store.append(SHARD, record(n))
            store.append(PLAIN, record(n))
        store.dispatch.run_once()
        assert store.dispatch.lag("tier") == {SHARD: 0, PLAIN: 0}
        assert decoded["records"] == 0, "lengths come from the queue entries"
        assert sized == {SHARD.name: 1}, "a shard without a tier is not read at all"
        engine.dispatcher.run_once(force=True)
        assert engine.dispatcher.keep_from(SHARD) == 600
        engine.close()


@pytest.mark.parametrize("kind", QueueKind)
def test_the_queue_entries_add_up_to_the_bytes_in_the_log(tmp_path: Path, kind: QueueKind) -> None:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD, kind)
        for n in range(0, 300, 3):
            store.append_many(SHARD, [record(i) for i in range(n, n + 3)])
        whole = sum(len(raw) for raw in store.read_raw(SHARD, 0, max_records=1000))
        assert store.size_between(SHARD, 0, 300) == whole
        half = store.size_between(SHARD, 0, 150)
        assert half + store.size_between(SHARD, 150, 300) == whole
        assert store.size_between(SHARD, 300, 300) == 0


def test_a_shard_with_a_damaged_queue_file_is_uploaded_all_the_same(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        engine = make_engine(store, tmp_path)
        engine.create_shard(SHARD, TIERED)
        for n in range(400):
            store.append(SHARD, record(n))
        store.checkpoint()
        for path in (tmp_path / "store" / "consumequeue").rglob("0*"):
            if path.is_file():
                path.unlink()
                break
        assert engine.dispatcher.advance(SHARD, 0, 400) == 400
        engine.dispatcher.run_once(force=True)
        assert engine.dispatcher.keep_from(SHARD) == 400
        engine.close()
