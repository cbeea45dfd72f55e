"""The directory of an engine is gone while the metadata stay: nothing empty takes its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.free_ports import free_ports
from typer.testing import CliRunner

import penstock
from penstock.cli import build
from penstock.engine.engine_identity import EngineIdentities
from penstock.errors import CorruptionError, ShardLostError
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

ENGINES = ("segment", "rocksdb")
Options = dict[str, object]


@pytest.fixture(params=["embedded", "node of a cluster"])
def options(request: pytest.FixtureRequest) -> Options:
    if request.param == "embedded":
        return {}
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    [port] = free_ports(1)
    return {"node__id": 1, "node__peers": [f"1@127.0.0.1:{port}"]}


def fill(path: Path, options: Options) -> None:
    with penstock.open(path, **options) as store:
        for engine in ENGINES:
            store.create_topic(engine, storage=engine).write(b"kept")


def values(store: penstock.Store, topic: str) -> list[bytes | None]:
    return [record.value for record in store.topic(topic)]


def assert_lost(store: penstock.Store, name: str) -> None:
    topic = store.topic(name)
    with pytest.raises(ShardLostError, match="accept-loss"):
        topic.read()
    with pytest.raises(ShardLostError, match="come back without its data"):
        topic.write(b"new")
    assert "are lost" in topic.describe().partitions[0].problem


def test_what_was_kept_in_a_directory_that_is_gone_is_lost(
    tmp_path: Path, options: Options
) -> None:
    gone, other = ENGINES if options else ENGINES[::-1]
    data = tmp_path / "data"
    fill(data, options)
    shutil.rmtree(data / gone)
    for _ in range(2):
        with penstock.open(data, **options) as store:
            assert_lost(store, gone)
            assert values(store, other) == [b"kept"]
    with penstock.open(data, **options) as store:
        store.topic(gone).delete()
        store.create_topic(gone, storage=gone).write(b"anew")
    with penstock.open(data, **options) as store:
        assert values(store, gone) == [b"anew"]


def test_a_directory_that_is_put_back_has_what_it_had(tmp_path: Path, options: Options) -> None:
    """Its disk was not mounted, perhaps: while nothing new is in its place, nothing is lost."""
    data, engine = tmp_path / "data", "rocksdb" if options else "segment"
    fill(data, options)
    with penstock.open(data, **options) as store:
        store.create_topic("deleted", storage=engine).write(b"not missed")
    (data / engine).rename(tmp_path / "away")
    with penstock.open(data, **options) as store:
        assert_lost(store, engine)
        store.topic("deleted").delete()
    assert not (data / engine).exists()
    (tmp_path / "away").rename(data / engine)
    for more in (b"first", b"second"):
        with penstock.open(data, **options) as store:
            store.topic(engine).write(more)
    with penstock.open(data, **options) as store:
        assert values(store, engine) == [b"kept", b"first", b"second"]
        assert sorted(store.topics()) == ["rocksdb", "segment"]


def test_a_directory_that_is_put_back_too_late_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {})
    (data / "segment").rename(tmp_path / "away")
    with penstock.open(data) as store:
        store.create_topic("new").write(b"in a new directory")
    (data / "segment").rename(tmp_path / "new")
    (tmp_path / "away").rename(data / "segment")
    with pytest.raises(CorruptionError, match="not the directory that was here"):
        penstock.open(data)
    (data / "segment").rename(tmp_path / "away")
    (tmp_path / "new").rename(data / "segment")
    with penstock.open(data) as store:
        assert values(store, "new") == [b"in a new directory"]
        assert_lost(store, "segment")


@pytest.mark.parametrize("put_back", [False, True])
def test_a_loss_that_is_accepted_at_a_single_server_is_an_empty_shard(
    tmp_path: Path, put_back: bool
) -> None:
    data = tmp_path / "data"
    fill(data, {})
    (data / "segment").rename(tmp_path / "away")
    ports = {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}}
    with Server(str(data), merge_settings(EMBEDDED, ports)) as server:
        address = f"127.0.0.1:{server.port}"
        with penstock.connect(address) as store:
            assert_lost(store, "segment")
        done = CliRunner().invoke(build(), ["cluster", "accept-loss", "segment", "-s", address])
        assert "restarted 1 shards of segment" in done.output
        if not put_back:
            with penstock.connect(address) as store:
                assert store.topic("segment").write(b"anew").offset == 0
    if put_back:
        (tmp_path / "away").rename(data / "segment")
    for n in range(0 if put_back else 1, 3):
        with penstock.open(data) as store:
            assert store.topic("segment").write(b"anew").offset == n
            assert values(store, "segment") == [b"anew"] * (n + 1)


def test_a_crash_while_a_loss_is_reported_reports_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    fill(data, {})
    (data / "segment").rename(tmp_path / "away")
    with monkeypatch.context() as patched:
        patched.setattr(EngineIdentities, "record_lost", crash)
        for _ in range(2):
            with pytest.raises(CrashError):
                penstock.open(data)
    with penstock.open(data) as store:
        assert_lost(store, "segment")
    (tmp_path / "away").rename(data / "segment")
    with monkeypatch.context() as patched:
        patched.setattr(EngineIdentities, "record_present", crash)
        for _ in range(2):
            with pytest.raises(CrashError):
                penstock.open(data)
    with penstock.open(data) as store:
        assert values(store, "segment") == [b"kept"]


class CrashError(Exception):
    pass


def crash(*_: object) -> None:
    raise CrashError


def test_a_directory_from_before_there_were_ids_is_known_from_its_next_start_on(
    tmp_path: Path,
) -> None:
    fill(tmp_path, {})
    for name in ("engines", "segment/penstock/id", "rocksdb/penstock-id"):
        (tmp_path / name).unlink()
    with penstock.open(tmp_path) as store:
        assert values(store, "segment") == values(store, "rocksdb") == [b"kept"]
    shutil.rmtree(tmp_path / "segment")
    with penstock.open(tmp_path) as store:
        assert_lost(store, "segment")
