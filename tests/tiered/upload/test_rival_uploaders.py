"""Uploaders in processes of their own that fight for one shard: each epoch has one winner, and the
tier has every record once."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.tiered.providers.s3_server import S3Server
from tests.tiered.rig import SHARD, fill, open_store, read_all

from penstock.record import StoredRecord
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.scrubber import ScrubReport, verify_shard
from penstock.tiered.upload.dispatcher import upload_shard

TIMEOUT_S = 300
RECORDS = 400


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[StoredRecord]]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, RECORDS)
        return tmp_path / "store", store.read(SHARD, 0, max_records=RECORDS)


def race(path: Path, url: str, mode: str, options: dict[str, str], rivals: int) -> list[int]:
    """Let processes fight; return the epochs that they won."""
    command = [sys.executable, "-m", "tests.tiered.upload.uploader_process", str(path), url, mode]
    command += [f"{name}={value}" for name, value in options.items()]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(rivals)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * rivals
    finally:
        for process in processes:
            process.kill()
            process.wait(60)
    return [int(line) for output in outputs for line in output.split()]


def check(
    store: tuple[Path, list[StoredRecord]],
    url: str,
    mode: str,
    options: dict[str, str],
    rivals: int,
) -> None:
    path, written = store
    epochs = race(path, url, mode, options, rivals)
    assert len(set(epochs)) == len(epochs) > 0, "an epoch has exactly one winner"
    config = TierConfig(url=url, options=options)
    last = CompositeFlatFile(config, SHARD)
    assert last.acquire() == max(epochs) + 1, "and each is known to its winner"
    with open_store(path) as log:
        upload_shard(log, last)
    flat = CompositeFlatFile(config, SHARD)
    assert read_all(flat) == written
    report = ScrubReport()
    verify_shard(flat, report)
    assert report.damage == []
    assert report.records == RECORDS, "and none is there twice"


def test_processes_that_race_for_a_directory(
    store: tuple[Path, list[StoredRecord]], tmp_path: Path
) -> None:
    check(store, f"file://{tmp_path}/tier", "same", {}, 2)


@pytest.mark.s3
@pytest.mark.parametrize("mode", ["next", "same"])
def test_processes_that_race_for_a_bucket(
    store: tuple[Path, list[StoredRecord]], s3_server: S3Server, mode: str
) -> None:
    bucket = uuid.uuid4().hex
    s3_server.create_bucket(bucket)
    check(store, f"s3://{bucket}/prefix", mode, s3_server.options(), 3)
