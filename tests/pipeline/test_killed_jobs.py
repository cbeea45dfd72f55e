"""Jobs as people start them, killed with SIGKILL at work, and repeated: exact counts after."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SHARDS = [ShardId("numbers", partition) for partition in range(3)]
ROWS = 100_000
TOTAL = ROWS * len(SHARDS)
KILLS = 2
RUN_S = 1200


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "source"
    with SegmentStore.open(str(path)) as store:
        for shard in SHARDS:
            store.create_shard(shard)
        for first in range(0, ROWS, 5_000):
            for shard in SHARDS:
                numbers = range(first, first + 5_000)
                values = pa.array([b"%d of %d" % (n, shard.partition) for n in numbers])
                store.append_columns(shard, values, timestamps=pa.array(numbers, pa.int64()))
    return path


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from penstock.cli import main; main()", "pipeline"),
            *(str(each) for each in arguments),
            *("--master", "local[2]", "--json"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_and_repeat(works: Callable[[], object], *arguments: object) -> dict[str, int]:
    """Kill the job whenever `works` has changed, `KILLS` times, then let it end."""
    dice = random.Random(len(str(arguments)))
    for _ in range(KILLS):
        before = works()
        process = start(*arguments)
        deadline = time.monotonic() + RUN_S
        while process.poll() is None and works() == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(dice.random())
        if process.poll() is None:
            # The driver, its Java and whatever else is of its group, at once.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    last = start(*arguments)
    output, errors = last.communicate(timeout=RUN_S)
    assert last.returncode == 0, errors
    found: dict[str, int] = json.loads(output.splitlines()[-1])
    return found


def files_in(path: Path) -> Callable[[], object]:
    return lambda: sorted(str(each) for each in path.rglob("*") if each.is_file())


def values_in(path: Path) -> list[bytes | None]:
    with ReadOnlyStore.open(str(path)) as view:
        return [
            value
            for shard in view.shards()
            for batch in view.read_arrow(shard, columns=["value"])
            for value in batch.column("value").to_pylist()
        ]


def test_an_export_and_an_import_have_each_row_once(source: Path, tmp_path: Path) -> None:
    parquet = tmp_path / "parquet"
    kill_and_repeat(files_in(parquet), "export", source, parquet)
    files = [str(each) for each in sorted(parquet.glob("topic=*/day=*/*.parquet"))]
    table = ds.dataset(files, format="parquet").to_table(columns=["partition", "offset", "value"])
    rows = {(row["partition"], row["offset"]): row["value"] for row in table.to_pylist()}
    assert table.num_rows == len(rows) == TOTAL
    assert all(value == b"%d of %d" % (n, part) for (part, n), value in rows.items())
    again = tmp_path / "again"
    kill_and_repeat(files_in(again), "import", again, parquet)
    values = values_in(again)
    assert len(values) == len({*values}) == TOTAL


def test_an_offload_has_each_row_once(source: Path, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    arguments = "offload", source, "--tier", f"file://{tier}", "--chunk-size", 65_536
    kill_and_repeat(files_in(tier), *arguments)
    for shard in SHARDS:
        flat = CompositeFlatFile(TierConfig(url=f"file://{tier}"), shard)
        manifest = flat.refresh()
        assert manifest is not None
        found = [
            (record.offset, record.value)
            for chunk in flat.reader.stream()
            for record in flat.reader.live_records(chunk, manifest)
        ]
        assert found == [(n, b"%d of %d" % (n, shard.partition)) for n in range(ROWS)]
        flat.fetcher.close()


def test_a_run_has_each_row_once_in_topic_and_tier(source: Path, tmp_path: Path) -> None:
    made, tier = tmp_path / "made", f"file://{tmp_path}/tier"
    where = "--to", made, "--to-topic", "made", "--partitions", 3, "--offload", tier
    kill_and_repeat(
        files_in(made), "run", source, "--checkpoint", tmp_path / "state", "--once", *where
    )
    values = values_in(made)
    assert len(values) == len({*values}) == TOTAL
    ends = []
    for shard in SHARDS:
        found = CompositeFlatFile(TierConfig(url=tier), shard).refresh()
        assert found is not None
        ends.append(found.end_offset)
    assert ends == [ROWS] * len(SHARDS)
