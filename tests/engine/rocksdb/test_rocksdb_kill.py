"""A writer killed at any moment loses nothing it acknowledged, and leaves no hole.

One process writes and deletes, says so, and is killed at a random moment; then this one opens the
database, compares it with what was said, and the next writer goes on with the same files.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Struct, field
from tests.engine.rocksdb.writer_to_kill import SHARDS, batch

from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.record import Offset, Producer, ShardId

WRITER = Path(__file__).with_name("writer_to_kill.py")


class Begun(Struct):
    """What the writer said it would do, and has not said is done."""

    kind: str
    token: str = ""
    count: int = 0
    sequence: int = 0
    offset: int = 0


class Expected(Struct):
    """What one shard must hold."""

    latest: int = 0
    earliest: int = 0
    values: dict[int, bytes] = field(default_factory=dict)
    begun: Begun | None = None

    def begin(self, line: dict[str, str | int]) -> None:
        self.begun = Begun(
            str(line["begin"]),
            str(line.get("token", "")),
            int(line.get("count", 0)),
            int(line.get("sequence", 0)),
            int(line.get("offset", 0)),
        )

    def finish(self) -> None:
        begun = self.begun
        assert begun is not None
        if begun.kind == "write":
            for record in batch(begun.token, begun.count):
                assert record.value is not None
                self.values[self.latest] = record.value
                self.latest += 1
        elif begun.kind == "delete":
            self.values.pop(begun.offset, None)
        else:
            self.earliest = max(self.earliest, begun.offset)
            self.values = {o: v for o, v in self.values.items() if o >= self.earliest}
        self.begun = None


def write_and_kill(directory: Path, seed: int, expected: dict[str, Expected]) -> None:
    """Run a writer, kill it after a while, and note what it said."""
    command = [sys.executable, str(WRITER), str(directory), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.15))
        writer.kill()
        said = first + writer.stdout.read()
    for line in said.splitlines():
        try:
            fields = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last one, cut short
        shard = expected[fields["shard"]]
        if "begin" in fields:
            shard.begin(fields)
        else:
            assert fields["done"] != "write" or fields["first"] == shard.latest
            shard.finish()


def settle(engine: RocksDBStorageEngine, shard: ShardId, expected: Expected, seed: int) -> None:
    """Find out whether what had begun was done, wholly or not at all; if not, do it."""
    info = engine.shard_info(shard)
    begun = expected.begun
    if begun is None:
        assert info.latest == expected.latest
        return
    if begun.kind == "write":
        assert info.latest in (expected.latest, expected.latest + begun.count)
        again = engine.batch_write(
            shard, batch(begun.token, begun.count), producer=Producer(seed, 0, begun.sequence)
        )
        assert again.first == expected.latest
        assert again.repeated == (info.latest > expected.latest)
    elif begun.kind == "delete":
        engine.delete_by_offset(shard, Offset(begun.offset))
    else:
        engine.delete_records_before(shard, Offset(begun.offset))
    expected.finish()


def compare(engine: RocksDBStorageEngine, shard: ShardId, expected: Expected) -> None:
    info = engine.shard_info(shard)
    assert (info.latest, info.earliest) == (expected.latest, expected.earliest)
    found = engine.read_by_offset(shard, Offset(0), max_records=1 << 30, max_size=1 << 40)
    assert {record.offset: record.value for record in found} == expected.values
    tagged = engine.read_by_tag(shard, "t", max_records=1 << 30, max_size=1 << 40)
    assert tagged == found
    keyed = [
        record for n in range(3) for record in engine.query_by_key(shard, b"%d" % n, limit=1 << 30)
    ]
    assert sorted(keyed, key=lambda record: record.offset) == found


def check_no_row_is_left_over(engine: RocksDBStorageEngine) -> None:
    rows = [chr(key[9]) for key, _ in engine._family.scan(b"D", b"E")]
    assert rows.count("K") == rows.count("R")
    assert rows.count("T") == 2 * rows.count("R")


def kill_repeatedly(directory: Path, rounds: int, first_seed: int) -> None:
    expected = {name: Expected() for name in SHARDS}
    acknowledged = 0
    for seed in range(first_seed, first_seed + rounds):
        write_and_kill(directory, seed, expected)
        with closing(RocksDBStorageEngine.open(str(directory))) as engine:
            for name, shard in expected.items():
                settle(engine, ShardId.parse(name), shard, seed)
                compare(engine, ShardId.parse(name), shard)
                acknowledged += len(shard.values)
                if len(shard.values) > 1_000:
                    offset = Offset(shard.latest - 100)
                    shard.begun = Begun("delete_before", offset=offset)
                    engine.delete_records_before(ShardId.parse(name), offset)
                    shard.finish()
                # What a large write left behind goes with the next write.
                shard.begun = Begun("write", token=f"{seed}.after", count=1)
                engine.batch_write(ShardId.parse(name), batch(f"{seed}.after", 1))
                shard.finish()
            check_no_row_is_left_over(engine)
    assert acknowledged > rounds


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "db", rounds=5, first_seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_writer_killed_300_times_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "db", rounds=300, first_seed=random.randrange(1, 1 << 30))
