"""Damage in a tier: readers get what comes before it and an error that names it, operators see it,
and `repair` restores what can be found and lets readers go on after the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.tiered.rig import SHARD, fill, open_store, read_all, upload
from typer.testing import CliRunner

from penstock.cli import build
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, TierDamageError, TierObjectMissingError
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.compaction import rewrite_segments
from penstock.tiered.maintenance.damage import LOG_INTERVAL_S, DamageReports
from penstock.tiered.maintenance.repair import repair_tier
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.read.tier_query import TierQuery

SIZE = 20_000
"""Bytes of a value: a few records make a block, a few blocks a chunk."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store", log_file_size=1 << 20) as store:
        store.create_shard(SHARD)
        yield store


@pytest.fixture
def flat(store: SegmentStore, tmp_path: Path) -> CompositeFlatFile:
    """Thirty records in five chunks, of which four are sealed in two segments."""
    fill(store, 30, size=SIZE)
    config = TierConfig(
        url=f"file://{tmp_path}/tier", chunk_size=6 * SIZE + 3000, segment_size=7 * SIZE
    )
    flat = CompositeFlatFile(config, SHARD)
    flat.acquire()
    for until in (12, 24, 30):
        upload(store, flat, until=until)
    manifest = flat.current()
    assert manifest is not None
    assert [each.chunks for each in manifest.segments] == [2, 2]
    assert len(manifest.chunks) == 1
    return flat


def entries(flat: CompositeFlatFile) -> list[tuple[str, int, int]]:
    flat.refresh()
    return [(e.name, e.first_offset, e.end_offset) for e in flat.manifest.chunks_from(-1)]


def path_of(tmp_path: Path, name: str) -> Path:
    return tmp_path / "tier/orders/0" / name


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def fresh(flat: CompositeFlatFile, registry: CollectorRegistry | None = None) -> CompositeFlatFile:
    """Another reader of the same tier, with nothing in its caches."""
    metrics = TierMetrics(registry if registry is not None else CollectorRegistry())
    provider = flat.config.open()
    fetcher = flat.config.fetcher(provider, DamageReports(metrics))
    return CompositeFlatFile(flat.config, SHARD, provider=provider, fetcher=fetcher)


def test_the_records_before_damage_come_first_and_the_error_names_what_is_lost(
    flat: CompositeFlatFile, tmp_path: Path
) -> None:
    name, first, end = entries(flat)[1]
    flip(path_of(tmp_path, name), 4 * SIZE)  # the second block: records of the middle
    registry = CollectorRegistry()
    reader = fresh(flat, registry)
    page = reader.reader.read(TierQuery(0, max_records=1000, max_size=1 << 30))
    got = [one.offset for one in page.records]
    assert got == list(range(page.next_offset))
    assert first < page.next_offset < end, "also the sound ones of the same chunk"
    with pytest.raises(TierDamageError) as caught:
        reader.reader.read(TierQuery(page.next_offset))
    error = caught.value
    assert (error.shard, error.first_offset) == (SHARD.name, page.next_offset)
    assert error.object_name.endswith(name)
    assert name in str(error)
    assert "tier repair" in str(error)
    damaged = [n for n in range(first, end) if is_lost(reader, n)]
    assert damaged
    assert reader.reader.read(TierQuery(damaged[-1] + 1)).records[0].offset == damaged[-1] + 1
    raw = reader.reader.read_raw(TierQuery(first, max_records=100))
    assert len(raw) == damaged[0] - first
    with pytest.raises(TierDamageError):
        reader.reader.read_raw(TierQuery(damaged[0]))
    with pytest.raises(CorruptionError):
        reader.get_message_async(damaged[0]).result(60)
    assert registry.get_sample_value("penstock_tier_damaged_chunks_total") == 1
    assert (registry.get_sample_value("penstock_tier_damaged_reads_total") or 0) > 1
    assert [one.object_name for one in reader.fetcher.damage.known()] == [error.object_name]


def is_lost(flat: CompositeFlatFile, offset: int) -> bool:
    try:
        flat.reader.read(TierQuery(offset, max_records=1))
    except TierDamageError:
        return True
    return False


def test_a_missing_object_is_told_as_such_after_the_records_before_it(
    flat: CompositeFlatFile, tmp_path: Path
) -> None:
    name, first, end = entries(flat)[2]
    path_of(tmp_path, name).unlink()
    reader = fresh(flat)
    page = reader.reader.read(TierQuery(0, max_records=1000, max_size=1 << 30))
    assert [one.offset for one in page.records] == list(range(first))
    with pytest.raises(TierObjectMissingError, match="missing") as caught:
        reader.reader.read(TierQuery(first))
    assert (caught.value.first_offset, caught.value.end_offset) == (first, end)
    assert reader.reader.read(TierQuery(end)).records[0].offset == end
    with pytest.raises(TierObjectMissingError):
        list(reader.reader.stream())


def test_a_list_of_chunks_that_is_missing_names_all_its_offsets(
    flat: CompositeFlatFile, tmp_path: Path
) -> None:
    manifest = flat.refresh()
    assert manifest is not None
    segment = manifest.segments[1]
    path_of(tmp_path, segment.name).unlink()
    reader = fresh(flat)
    page = reader.reader.read(TierQuery(0, max_records=1000, max_size=1 << 30))
    assert page.next_offset == segment.first_offset
    with pytest.raises(TierObjectMissingError) as caught:
        reader.reader.read(TierQuery(page.next_offset))
    assert (caught.value.first_offset, caught.value.end_offset) == (
        segment.first_offset,
        segment.end_offset,
    )


def test_an_object_that_was_replaced_meanwhile_is_no_damage(
    store: SegmentStore, flat: CompositeFlatFile, tmp_path: Path
) -> None:
    reader = fresh(flat)
    assert reader.current() is not None
    name, first, end = entries(flat)[0]
    flat.upkeep.delete_ranges([(first, end - 1)])
    rewrite_segments(flat, dead_ratio=0.1)
    assert name not in [each[0] for each in entries(flat)]
    path_of(tmp_path, name).unlink()
    found = reader.reader.read(TierQuery(first, max_records=1)).records
    assert [one.offset for one in found] == [end - 1]
    assert reader.fetcher.damage.known() == []


def test_the_log_has_one_line_for_an_object_and_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    reports = DamageReports(TierMetrics(registry), clock)

    def damage(name: str) -> TierDamageError:
        return TierDamageError(
            name, shard="a_0", first_offset=1, end_offset=2, position=3, reason="flipped"
        )

    for _ in range(50):
        reports.report(damage("one"))
    reports.report(damage("two"))
    assert caplog.text.count("tier_chunk_damaged") == 2
    clock.advance(LOG_INTERVAL_S + 1)
    reports.report(damage("one"))
    assert caplog.text.count("tier_chunk_damaged") == 3
    assert registry.get_sample_value("penstock_tier_damaged_chunks_total") == 2
    for n in range(5000):
        reports.report(damage(f"many {n}"), by_reader=False)
    assert len(reports.known()) == 1024


def test_one_damaged_chunk_keeps_no_other_segment_from_being_rewritten(
    flat: CompositeFlatFile, tmp_path: Path
) -> None:
    flat.upkeep.seal(only_if_due=False)
    before = entries(flat)
    flip(path_of(tmp_path, before[0][0]), 100)
    flat.upkeep.delete_ranges([(n, n + 1) for n in range(30) if n % 3])
    rewrite_segments(flat, dead_ratio=0.5)
    after = [each[0] for each in entries(flat)]
    assert before[0][0] in after
    assert before[-1][0] not in after


# Repair


def repaired(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, list[dict[str, object]]]]:
    command = ["tier", "repair", f"file://{tmp_path}/tier", "--json", *arguments]
    result = CliRunner().invoke(build(), command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def test_a_dry_run_tells_and_changes_nothing(flat: CompositeFlatFile, tmp_path: Path) -> None:
    assert repaired(tmp_path)[0] == 0
    chunks = entries(flat)
    path_of(tmp_path, chunks[0][0]).unlink()
    flip(path_of(tmp_path, chunks[-1][0]), 10)
    before = {p: p.read_bytes() for p in (tmp_path / "tier").rglob("*") if p.is_file()}
    code, report = repaired(tmp_path)
    assert code == 1
    missing, damaged = report["repairs"]
    assert (missing["is_missing"], missing["lost"]) == (True, [[chunks[0][1], chunks[0][2]]])
    assert damaged["is_missing"] is False
    assert damaged["sound"] == 0 or damaged["lost"] != []
    assert {p: p.read_bytes() for p in (tmp_path / "tier").rglob("*") if p.is_file()} == before
    assert CliRunner().invoke(build(), ["tier", "repair", flat.config.url]).exit_code == 1


def test_what_the_log_still_holds_is_restored(
    store: SegmentStore, flat: CompositeFlatFile, tmp_path: Path
) -> None:
    flat.upkeep.delete_ranges([(2, 4)])
    chunks = entries(flat)
    path_of(tmp_path, chunks[0][0]).unlink()
    flip(path_of(tmp_path, chunks[-1][0]), SIZE // 2)
    flip(path_of(tmp_path, chunks[2][0]), -200)  # its footer
    store.flush(publish=True)
    code, report = repaired(tmp_path, "--data", str(tmp_path / "store"), "--apply")
    assert code == 0
    assert [one["lost"] for one in report["repairs"]] == [[], [], []]
    found = read_all(fresh(flat))
    assert found == [one for one in store.read(SHARD, 0) if one.offset not in (2, 3)]
    assert CliRunner().invoke(build(), ["tier", "verify", flat.config.url]).exit_code == 0
    fill(store, 3, start=30, size=SIZE)
    flat.refresh()
    upload(store, flat)
    assert read_all(fresh(flat))[-1].offset == 32


def test_without_the_log_the_lost_becomes_holes_and_readers_go_on(
    store: SegmentStore, flat: CompositeFlatFile, tmp_path: Path
) -> None:
    chunks = entries(flat)
    gone = set(range(chunks[0][1], chunks[0][2]))
    path_of(tmp_path, chunks[0][0]).unlink()
    flip(path_of(tmp_path, chunks[1][0]), 4 * SIZE)
    reader = fresh(flat)
    unread = {n for n in range(chunks[1][1], chunks[1][2]) if is_lost(reader, n)}
    assert len(unread) > 1, "all records of a damaged block"
    gone.add(chunks[1][1] + 3)  # of these, all but one are whole
    code, report = repaired(tmp_path, "--apply")
    assert code == 0
    lost = [tuple(each) for one in report["repairs"] for each in one["lost"]]  # type: ignore[attr-defined]  # a list of lists
    assert {n for first, end in lost for n in range(first, end)} == gone
    kept = [one for one in store.read(SHARD, 0) if one.offset not in gone]
    assert read_all(fresh(flat)) == kept
    assert read_all(reader) == kept, "one that was open sees it, too"
    assert reader.commit_offset == 30
    assert repaired(tmp_path)[0] == 0


def test_an_older_generation_that_was_not_deleted_yet_is_used(
    store: SegmentStore, flat: CompositeFlatFile, tmp_path: Path
) -> None:
    flat.upkeep.seal(only_if_due=False)
    before = entries(flat)
    flat.upkeep.delete_ranges([(n, n + 1) for n in range(30) if n % 3])
    rewrite_segments(flat, dead_ratio=0.5)
    after = entries(flat)
    assert not {each[0] for each in before} & {each[0] for each in after}
    path_of(tmp_path, after[0][0]).unlink()
    config = TierConfig(url=flat.config.url)
    (told,) = repair_tier(config).repairs
    assert (told.from_generation, told.lost) == (0, ((0, 6),)), "it may hold deleted records"
    flip(path_of(tmp_path, after[1][0]), SIZE // 2)
    told, other = repair_tier(config, older=True, apply=True).repairs
    assert (told.from_generation, told.lost) == (6, ())
    assert other.lost == ()
    assert other.from_generation > 0
    wanted = [n for n in range(30) if n < 6 or n % 3 == 0]
    assert [one.offset for one in read_all(fresh(flat))] == wanted


def test_a_lost_list_of_chunks_is_made_again_from_the_chunks(
    store: SegmentStore, flat: CompositeFlatFile, tmp_path: Path
) -> None:
    manifest = flat.refresh()
    assert manifest is not None
    for segment in manifest.segments:
        path_of(tmp_path, segment.name).write_bytes(b"no list")
    code, report = repaired(tmp_path, "--apply")
    assert code == 0
    assert len(report["repairs"]) == len(manifest.segments)
    assert all(one["lost"] == [] for one in report["repairs"])
    assert read_all(fresh(flat)) == store.read(SHARD, 0)
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
