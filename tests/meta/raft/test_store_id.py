"""The id by which the others of a cluster know a data directory again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until

import penstock
from penstock.errors import ShardLostError
from penstock.node.directory import NodeDirectory

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)


class CrashError(Exception):
    pass


def crash(*_: object) -> None:
    raise CrashError


def join(path: Path, port: int) -> penstock.Store:
    """Open the store as the only node of a cluster."""
    return penstock.open(path, node__id=1, node__peers=[f"1@127.0.0.1:{port}"])


def test_a_crash_while_a_directory_joins_a_cluster_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(tmp_path) as store:
        store.create_topic("t").write(b"from before the cluster")
    [port] = free_ports(1)
    with monkeypatch.context() as patched:
        patched.setattr(NodeDirectory, "write_store_id", crash)  # registered, but not stored
        for _ in range(2):
            with pytest.raises(CrashError):
                join(tmp_path, port)
    chosen = (tmp_path / "store-id.new").read_text()
    assert not (tmp_path / "store-id").exists()
    with join(tmp_path, port) as store:
        assert [record.value for record in store.topic("t")] == [b"from before the cluster"]
    assert (tmp_path / "store-id").read_text() == chosen
    assert not (tmp_path / "store-id.new").exists()


def test_another_directory_under_the_same_number_has_lost_the_records(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with join(tmp_path, port) as store:
        store.create_topic("t").write(b"v")
    (tmp_path / "store-id").unlink()
    with join(tmp_path, port) as store, pytest.raises(ShardLostError, match="accept-loss"):
        store.topic("t").read()


def test_a_stop_leaves_a_proof_that_the_next_start_takes(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with join(tmp_path, port) as store:
        store.create_topic("t").write(b"v")
        wait_until((tmp_path / "session").exists, "the run is noted")
        assert not (tmp_path / "clean-stop").exists()
    assert (tmp_path / "clean-stop").exists()
    stopped = (tmp_path / "clean-stop").read_text()
    with join(tmp_path, port):
        assert not (tmp_path / "clean-stop").exists()
        wait_until((tmp_path / "session").exists, "the run is noted")
        assert (tmp_path / "session").read_text() != stopped, "it has a broker epoch of its own"


def test_a_run_without_the_cluster_leaves_no_proof(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with join(tmp_path, port) as store:
        store.create_topic("t").write(b"v")
    with penstock.open(tmp_path):
        pass
    assert not {"session", "clean-stop"} & {entry.name for entry in tmp_path.iterdir()}
