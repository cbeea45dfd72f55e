"""`penstock tier …` on a tier in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, open_store, upload
from typer.testing import CliRunner

from penstock.cli import build
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, TierSetupError
from penstock.tiered.admin import collect_garbage
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.rocketmq.rocks_metadata import RocksDbMetadataStore

run = CliRunner()


@pytest.fixture
def tier(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/tier"
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 100)
        flat = CompositeFlatFile(TierConfig(url=url, chunk_size=4000, segment_size=10_000), SHARD)
        flat.acquire()
        upload(store, flat)
        flat.upkeep.delete_ranges([(3, 5)])
    return url


def call(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    result = run.invoke(build(), ["tier", *arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_status_and_ls_tell_what_is_there(tier: str) -> None:
    _, (shard,) = call("status", tier)
    assert (shard["shard"], shard["start_offset"], shard["end_offset"]) == ("orders_0", 0, 100)
    _, chunks = call("ls", tier, "--shard", "orders_0")
    assert len(chunks) == shard["chunks"]
    assert chunks[-1]["end_offset"] == 100
    assert run.invoke(build(), ["tier", "status", tier]).exit_code == 0
    assert run.invoke(build(), ["tier", "ls", tier]).exit_code == 0


def test_verify_finds_damage(tier: str, tmp_path: Path) -> None:
    code, (report,) = call("verify", tier)
    assert (code, report["records"], report["damage"]) == (0, 100, [])
    chunk = next((tmp_path / "tier").glob("orders/0/*.chunk"))
    data = bytearray(chunk.read_bytes())
    data[100] ^= 4
    chunk.write_bytes(bytes(data))
    code, (report,) = call("verify", tier)
    assert code == 1
    assert len(report["damage"]) == 1  # type: ignore[arg-type]  # it is a list
    chunk.unlink()
    assert call("verify", tier)[0] == 1


def test_a_damaged_manifest_is_the_damage_of_its_own_shard(tier: str, tmp_path: Path) -> None:
    manifest = tmp_path / "tier" / "earlier" / "0" / "manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(b"no manifest")
    code, (report,) = call("verify", tier)
    assert (code, report["shards"], report["records"]) == (1, 1, 100)
    assert "earlier/0/manifest" in str(report["damage"])
    code, (report,) = call("verify", tier, "--shard", "orders_0")
    assert (code, report["damage"]) == (0, [])
    assert call("ls", tier, "--shard", "orders_0")[0] == 0
    orphan = tmp_path / "tier/orders/0/0000000009-00000000000000000007-0123456789ab.chunk"
    orphan.write_bytes(b"x")
    with pytest.raises(CorruptionError, match="earlier/0/manifest"):
        collect_garbage(TierConfig(url=tier, grace_ms=0))
    assert not orphan.exists()


def test_gc_leaves_what_is_needed_and_what_is_not_ours(tier: str, tmp_path: Path) -> None:
    (tmp_path / "tier/orders/0/notes.txt").write_text("mine")
    orphan = tmp_path / "tier/orders/0/0000000009-00000000000000000007-0123456789ab.chunk"
    orphan.write_bytes(b"x")
    _, (report,) = call("gc", tier)
    assert (report["deleted"], report["waiting"]) == (0, 1)
    _, (report,) = call("gc", tier, "--grace-ms", "0")
    assert (report["deleted"], report["foreign"]) == (1, ["orders/0/notes.txt"])
    assert not orphan.exists()
    assert call("verify", tier)[0] == 0


def test_a_lost_metadata_store_is_rebuilt(tier: str, tmp_path: Path) -> None:
    assert run.invoke(build(), ["tier", "rebuild", tier, str(tmp_path)]).exit_code == 0
    store = RocksDbMetadataStore(f"{tmp_path}/tier-meta")
    found = store.get_queue(SHARD)
    assert found is not None
    assert (found.min_offset, found.max_offset) == (0, 100)
    segments: list[object] = []
    store.iterate_file_segment(segments.append, queue=SHARD)
    assert len(segments) >= 2
    store.close()


def test_pull_brings_a_shard_back(tier: str, tmp_path: Path) -> None:
    target = str(tmp_path / "pulled")
    assert run.invoke(build(), ["tier", "pull", tier, "orders_0", target]).exit_code == 0
    with SegmentStore.open(target) as store:
        found = store.read(SHARD, 0)
    assert [(one.offset, one.headers[0][1]) for one in found] == [
        (n, str(n).encode()) for n in range(100) if n not in (3, 4)
    ]


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run.invoke(build(), ["tier", "status", f"file://{tmp_path}/none"])
    assert isinstance(result.exception, TierSetupError)
    assert not (tmp_path / "none").exists()
