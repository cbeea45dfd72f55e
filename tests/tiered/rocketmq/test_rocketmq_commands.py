"""`penstock tier` over a tier that RocketMQ wrote: looked into, verified, copied; and where that
layout cannot be used, a sentence says what can."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import build
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, TierSetupError
from penstock.record import ShardId
from penstock.tiered.providers import check_address, check_new_address
from penstock.tiered.rocketmq.tier import RocketMqTier, cluster_name

GOLDEN = Path(__file__).parents[2] / "golden" / "rocketmq-5.5-tiered.tar.xz"


@pytest.fixture
def url(tmp_path: Path) -> str:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return f"rocketmq+file://{tmp_path}/rocketmq-tiered/tiered"


def call(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    result = CliRunner().invoke(build(), ["tier", *arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_status_ls_and_verify_read_what_rocketmq_wrote(url: str) -> None:
    _, shards = call("status", url)
    tier = RocketMqTier(url)
    assert [one["shard"] for one in shards] == [shard.name for shard in tier.shards()]
    assert all((one["start_offset"], one["end_offset"]) == (0, 100) for one in shards)
    _, files = call("ls", url, "--shard", "TopicA_0")
    assert files[0]["first_offset"] == 0
    assert files[-1]["end_offset"] == 100
    assert all(int(str(one["size"])) > 0 for one in files)
    code, (report,) = call("verify", url)
    assert (code, report["shards"], report["records"], report["damage"]) == (0, 6, 600, [])
    assert CliRunner().invoke(build(), ["tier", "status", url]).exit_code == 0
    assert CliRunner().invoke(build(), ["tier", "ls", url]).exit_code == 0


def test_damage_in_rocketmqs_files_is_found(url: str, tmp_path: Path) -> None:
    path = next(tmp_path.glob("**/broker-a/TopicA/0/COMMIT_LOG/cfcd2084*"))
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(bytes(data))
    code, (report,) = call("verify", url)
    assert (code, report["records"]) == (1, 599)
    assert "TopicA_0 offset" in str(report["damage"])


def test_pull_brings_a_queue_of_rocketmqs_into_a_store(url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "pulled")
    result = CliRunner().invoke(build(), ["tier", "pull", url, "TopicA_0", target])
    assert result.exit_code == 0, result.exception
    shard = ShardId("TopicA", 0)
    with SegmentStore.open(target) as store:
        found = store.read(shard, 0)
    told = list(RocketMqTier(url).queue(shard).records())
    assert [(one.offset, one.value) for one in found] == [(one.offset, one.value) for one in told]
    again = CliRunner().invoke(build(), ["tier", "pull", url, "TopicA_77", str(tmp_path / "x")])
    assert isinstance(again.exception, BadRequestError)


def test_a_directory_of_several_clusters_asks_for_one(url: str, tmp_path: Path) -> None:
    root = tmp_path / "rocketmq-tiered/tiered"
    (cluster,) = [path for path in root.iterdir() if path.is_dir()]
    shutil.copytree(cluster, root / cluster_name("other"))
    refused = CliRunner().invoke(build(), ["tier", "status", url])
    assert isinstance(refused.exception, TierSetupError)
    assert "cluster=" in str(refused.exception)
    _, shards = call("status", url, "--set", "cluster=other")
    assert len(shards) == 6


@pytest.mark.parametrize("command", ["gc", "repair"])
def test_commands_that_need_a_manifest_say_so(url: str, command: str) -> None:
    result = CliRunner().invoke(build(), ["tier", command, url])
    assert isinstance(result.exception, TierSetupError)
    assert "RocketMQ's own layout" in str(result.exception)


def test_a_node_says_why_its_tier_cannot_be_of_that_layout(url: str, tmp_path: Path) -> None:
    for check in (check_address, check_new_address):
        with pytest.raises(TierSetupError, match="RocketMqTier"):
            check(url)
    with (
        penstock.open(str(tmp_path / "data"), tiering__url=url) as store,
        pytest.raises(TierSetupError, match=r"tiering\.url: .*RocketMQ's own layout"),
    ):
        store.create_topic("orders").write(penstock.Record(b"x"))
