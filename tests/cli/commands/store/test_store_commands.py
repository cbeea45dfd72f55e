"""`penstock store …`, for people and for programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import (
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    flip,
    tree,
)

import penstock
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError
from penstock.record import QueueKind, Record, ShardId


def test_info_prints_parts_shards_and_bounds(run: Run, written: Path) -> None:
    ran = run("store", "info", written)
    assert ran.code == 0
    for text in (str(written), "written by", "penstock", "clean", "commit log", "orders_0", "297"):
        assert text in ran.out
    (line,) = run("store", "info", written, "--json").lines
    assert line["path"] == str(written)
    assert line["closed"] is True
    shards = line["shards"]
    assert isinstance(shards, list)
    assert len(shards) == 3


def test_info_of_rocketmqs_store(run: Run, golden: GoldenStore) -> None:
    out = run("store", "info", golden.root).out
    assert "rocketmq" in out
    assert "log 2023-11-14 22:13:30.582, queues 2023-11-14 22:13:39.314, index 2023" in out


def test_info_says_when_a_store_is_open(run: Run, tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path / "store"), QUIET):
        ran = run("store", "info", tmp_path / "store")
    assert "a writer has the store open (process" in ran.out


def test_ls_lists_shards_topics_and_files(run: Run, written: Path) -> None:
    assert "events_3" in run("store", "ls", written).out
    topics = run("store", "ls", written, "topics").out
    assert "events" in topics
    assert "events_3" not in topics
    assert str(written / "commitlog" / f"{0:020d}") in run("store", "ls", written, "files").out
    shards = run("store", "ls", written, "--json").lines
    assert [line["shard"] for line in shards] == ["empty_0", "events_3", "orders_0"]
    assert shards[2]["commit"] == ORDERS_COUNT
    assert len(run("store", "ls", written, "topics", "--json").lines) == 3
    files = run("store", "ls", written, "files", "--json").lines
    assert {line["part"] for line in files} >= {"commit log", "queues", "key index", "penstock"}


def test_cat_passes_over_a_batch_that_nobody_can_take_apart(run: Run, tmp_path: Path) -> None:
    batches = ShardId("batches", 0)
    with SegmentStore.open(str(tmp_path / "store"), QUIET) as store:
        store.create_shard(batches, QueueKind.BATCH)
        store.append(batches, Record(b"before"))
        store.append_batch(batches, b"any opaque bytes", 10)
        store.append_batch(batches, b"others", 10)
        store.append(batches, Record(b"behind"))
    ran = run("store", "cat", tmp_path / "store", "batches_0")
    assert (ran.code, ran.out) == (0, "before\nbehind\n")
    assert (
        "skipped 2 undecodable batches, the first: the record at offset 1 of 'batches_0'" in ran.err
    )
    assert run("store", "verify", tmp_path / "store").code == 0


def test_cat_prints_values_one_per_line(run: Run, written: Path) -> None:
    ran = run("store", "cat", written, "orders_0", "--from", 47, "--limit", 3)
    assert ran.out.splitlines() == ["order 47", "order 48", "(null)"]
    assert len(run("store", "cat", written, "events_3").out.splitlines()) == EVENTS_COUNT
    assert run("store", "cat", written, "empty_0").out == ""
    until = run("store", "cat", written, "orders_0", "--until", 3, "--tag", "eu").out
    assert until.splitlines() == ["order 0", "order 1"]


def test_cat_prints_raw_bytes(run: Run, written: Path) -> None:
    ran = run("store", "cat", written, "orders_0", "--raw", "--from", 1, "--until", 3)
    assert ran.out == "order 1order 2"


def test_cat_prints_every_field_as_json(run: Run, written: Path) -> None:
    first, second = run("store", "cat", written, "orders_0", "--limit", 2, "--json").lines
    assert first["key"] == {"base64": "/yBvZGQgMA=="}
    assert second == {
        **second,
        "shard": "orders_0",
        "offset": 1,
        "key": "o-1",
        "value": "order 1",
        "tags": ["eu"],
        "headers": [["n", "1"]],
        "timestamp_ms": 1_000_010,
        "expires_at_ms": None,
    }


def test_no_record_can_play_tricks_with_a_terminal(run: Run, tmp_path: Path) -> None:
    shard = ShardId("evil", 0)
    with SegmentStore.open(str(tmp_path / "store"), QUIET) as store:
        store.create_shard(shard)
        store.append(shard, Record(b"\x1b[2J [red]x[/red] \xff", key=b"\x1b]0;k", tags=("\n",)))
    for command in (
        ("cat", tmp_path / "store", "evil_0"),
        ("get", tmp_path / "store", "evil_0", 0),
        ("query", tmp_path / "store", "--tag", "\n"),
    ):
        out = run("store", *command).out
        assert "\x1b" not in out
        assert "\\x1b[2J [red]x[/red] \\xff" in out


def test_get_prints_one_record_with_all_fields(run: Run, written: Path) -> None:
    out = run("store", "get", written, "orders_0", 45).out
    for text in ("order 45", "\\xff odd 5", "big", "header n", "property KEYS", "127.0.0.1:10911"):
        assert text in out
    (line,) = run("store", "get", written, "orders_0", 45, "--json").lines
    assert line["tags"] == ["eu", "big"]
    assert line["position"] == ReadOnlyStore.open(str(written)).snapshot().get(ORDERS).position_of(
        45
    )
    assert line["file"] == str(written / "commitlog" / f"{0:020d}")


def test_get_of_a_deleted_record_says_so(run: Run, written: Path) -> None:
    ran = run("store", "get", written, "orders_0", 7)
    assert ran.code == 2
    assert ran.err == "penstock: the record at offset 7 of 'orders_0' was deleted\n"


def test_query_finds_by_key(run: Run, written: Path) -> None:
    out = run("store", "query", written, "--key", "o-1", "--limit", 2).out
    assert out.index("281") < out.index("241")
    assert "order 221" not in out
    lines = run("store", "query", written, "--key", "o-1", "--json").lines
    assert [line["offset"] for line in lines] == [
        *(281, 241, 221, 181, 161, 121, 101, 61, 41, 1),
    ]
    ranged = run(
        *("store", "query", written, "--key", "o-1", "--json"),
        *("--begin", 1_001_000, "--end", "1970-01-01T00:16:42"),
    ).lines
    assert [line["offset"] for line in ranged] == [181, 161, 121, 101]


def test_query_finds_by_a_key_that_is_no_text(run: Run, written: Path) -> None:
    key = b"\xff odd 3".hex()
    lines = run("store", "query", written, "--key-hex", key, "--json").lines
    assert [line["offset"] for line in lines] == [243, 183, 123, 63, 3]


def test_query_finds_by_tag_in_one_topic(run: Run, written: Path) -> None:
    lines = run("store", "query", written, "--in", "orders", "--tag", "big", "--json").lines
    assert [line["offset"] for line in lines][:3] == [0, 5, 10]
    assert run("store", "query", written, "--in", "events_3", "--tag", "big", "--json").out == ""


def test_query_finds_by_time(run: Run, written: Path) -> None:
    for time in ("1001000", "1970-01-01T00:16:41+00:00", "1970-01-01T01:16:41+01:00"):
        (line,) = run("store", "query", written, "--time", time, "--json").lines
        assert (line["shard"], line["offset"]) == ("orders_0", 101)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "one of --key, --key-hex, --tag and --time"),
        (("--key", "a", "--tag", "b"), "one of --key"),
        (("--time", "yesterday"), "'yesterday' is not a time"),
        (("--key-hex", "xyz"), "'xyz' is not a hexadecimal number"),
        (("--key", "a", "--in", "nothing"), "topic 'nothing' does not exist"),
    ],
)
def test_query_refuses_what_makes_no_sense(
    run: Run, written: Path, arguments: tuple[str, ...], reason: str
) -> None:
    ran = run("store", "query", written, *arguments)
    assert ran.code == 2
    assert reason in ran.err
    assert ran.err.count("\n") == 1


def test_verify_of_a_whole_store(run: Run, written: Path, golden: GoldenStore) -> None:
    ran = run("store", "verify", written)
    assert ran.code == 0
    assert "whole" in ran.out
    (line,) = run("store", "verify", golden.root, "--json").lines
    assert line["whole"] is True
    checked = line["checked"]
    assert isinstance(checked, dict)
    assert checked["records"] == 655


def test_verify_names_file_and_position_of_damage_and_exits_with_1(run: Run, copy: Path) -> None:
    position = ReadOnlyStore.open(str(copy)).snapshot().get(ORDERS).position_of(30)
    assert position is not None
    log = copy / "commitlog" / f"{0:020d}"
    flip(log, position + 100)
    ran = run("store", "verify", copy)
    assert ran.code == 1
    assert str(log) in ran.out
    assert str(position) in ran.out
    assert "1 finding" in ran.out
    assert "lost: offsets 30 to 30 of orders_0" in ran.out
    ran = run("store", "verify", copy, "--json")
    assert ran.code == 1
    finding, lost, summary = ran.lines
    assert finding["type"] == "finding"
    assert (finding["path"], finding["position"]) == (str(log), position)
    assert (lost["shard"], lost["first"], lost["end"]) == ("orders_0", 30, 31)
    assert (summary["whole"], summary["findings"]) == (False, 1)


def test_verify_changes_nothing(run: Run, copy: Path) -> None:
    before = tree(copy)
    run("store", "verify", copy)
    assert tree(copy) == before


def test_progress_is_for_terminals_only(run: Run, written: Path) -> None:
    assert run("store", "verify", written).err == ""


def test_rebuild_heals_what_is_derived_and_says_so(run: Run, copy: Path) -> None:
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index")
    assert run("store", "verify", copy).code == 1
    ran = run("store", "rebuild", copy)
    assert ran.code == 0
    assert "all queues" in ran.out
    assert "records read" in ran.out
    assert run("store", "verify", copy).code == 0
    (line,) = run("store", "rebuild", copy, "--json").lines
    assert line["clean_stop"] is True
    scanned = line["records_scanned"]
    assert isinstance(scanned, int)
    assert scanned >= ORDERS_COUNT


def test_rebuild_exits_with_1_when_records_are_damaged(run: Run, copy: Path) -> None:
    flip(copy / "commitlog" / f"{0:020d}", 150)
    ran = run("store", "rebuild", copy)
    assert ran.code == 1
    assert f"{copy}/commitlog/{0:020d} at 0" in ran.out.replace("\n", "")


def test_rebuild_needs_the_lock(run: Run, copy: Path) -> None:
    with SegmentStore.open(str(copy), QUIET):
        ran = run("store", "rebuild", copy)
    assert ran.code == 2
    assert "open" in ran.err


def test_repair_lists_first_and_changes_the_store_only_when_told(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(str(data), broker__commit_log_file_size=1 << 20) as store:
        topic = store.create_topic("Orders", storage="segment")
        for number in range(4):
            topic.write(b"value %d" % number)
    (log,) = (data / "segment" / "commitlog").glob("0*")
    os.truncate(log, log.read_bytes().rindex(b"value 3") + 3)
    assert f"penstock store repair {data}/segment" in run("store", "rebuild", data).err
    with pytest.raises(penstock.StoreError, match="penstock store repair"):
        penstock.open(str(data))
    before = tree(data / "segment")
    for place in (data, data / "segment"):
        ran = run("store", "repair", place)
        assert ran.code == 1
        assert "1 records would be lost" in ran.out.replace("\n", "")
    assert tree(data / "segment") == before
    *files, lost, summary = run("store", "repair", data, "--json").lines
    assert [line["path"] for line in files] == [str(log)]
    assert (lost["name"], lost["first"], lost["end"], lost["records"]) == ("Orders", 3, 4, 1)
    assert (summary["needed"], summary["applied"], summary["records"]) == (True, False, 1)
    assert "repaired, 1 records are lost" in run("store", "repair", data, "--yes").out
    assert run("store", "repair", data).code == 0
    assert run("store", "verify", data).code == 1
    with penstock.open(str(data)) as store:
        topic = store.topic("Orders")
        assert [each.value for each in topic.read(0, 0)] == [b"value %d" % n for n in range(3)]
        assert topic.write(b"next").offset == 4
        with pytest.raises(CorruptionError):
            topic.read(0, 3)


def test_repair_needs_the_lock(run: Run, copy: Path) -> None:
    with SegmentStore.open(str(copy), QUIET):
        ran = run("store", "repair", copy)
    assert ran.code == 2
    assert "open" in ran.err


def test_parts_that_lie_elsewhere_are_found(run: Run, tmp_path: Path) -> None:
    settings = SegmentSettings(
        sizes=QUIET.sizes, background=False, commit_log_path=str(tmp_path / "log")
    )
    with SegmentStore.open(str(tmp_path / "store"), settings) as store:
        store.create_shard(ORDERS)
        store.append(ORDERS, Record(b"here"))
    ran = run(
        *("store", "--commit-log-path", tmp_path / "log"),
        *("cat", tmp_path / "store", "orders_0"),
    )
    assert ran.out == "here\n"


def test_a_nodes_data_directory_is_looked_into_by_the_names_of_its_topics(
    run: Run, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with penstock.open(str(data), broker__commit_log_file_size=1 << 20) as store:
        store.create_topic("Orders", partitions=2, storage="segment")
        for number in range(4):
            store.topic("Orders").write(b"%d" % number, key=b"k", partition=number % 2)
        assert run("store", "info", data).code == 0
    (topic,) = run("store", "ls", data, "topics", "--json").lines
    assert topic["name"] == "Orders"
    assert topic["topic"] != "Orders"
    for directory in (data, data / "segment"):
        shards = run("store", "ls", directory, "--json").lines
        assert [line["name"] for line in shards] == ["Orders", "Orders"]
        assert run("store", "info", directory, "--json").lines[0]["shards"] == shards
        assert "Orders" in run("store", "ls", directory).out
        assert run("store", "cat", directory, "Orders_1").out == "1\n3\n"
        assert run("store", "cat", directory, f"{topic['topic']}_1").out == "1\n3\n"
    assert run("store", "get", data, "Orders_0", 1, "--json").lines[0]["value"] == "2"
    found = run("store", "query", data, "--in", "Orders_0", "--key", "k", "--json").lines
    assert [line["value"] for line in found] == ["2", "0"]
    found = run("store", "query", data, "--in", "Orders", "--key", "k", "--json").lines
    assert len(found) == 4
    assert run("store", "cat", data, "orders_0").code == 2
    assert run("store", "verify", data).code == 0
    assert run("store", "rebuild", data).code == 0
