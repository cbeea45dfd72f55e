"""The sample engine of another package keeps the storage contract, and a node serves it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory
from tests.engine.sample_engine import sample_installed

import penstock
from penstock.engine.contract import Capabilities, StorageEngine
from penstock.engine.plugins import EngineContext, load_plugin
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import BadRequestError, SetupError, ShardLostError
from penstock.testing.conformance import EngineConformance, EngineHarness
from penstock.testing.conformance.engines import copy_at_rest


class SampleHarness(EngineHarness):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory / "sqlite"
        self._directory.mkdir()
        self._plugin = load_plugin("sqlite")
        self._engine: StorageEngine | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, evicts=False, power_safe=True)

    def make(self) -> StorageEngine:
        context = EngineContext(str(self._directory), self.clock, StableOffsets())
        self._engine = self._plugin(context)
        return self._engine

    def reopen(self) -> StorageEngine:
        self.close()
        return self.make()

    def crash(self) -> StorageEngine:
        copy = self._directory.with_name(f"{self._directory.name}+")
        copy_at_rest(self._directory, copy)
        self.close()
        self._directory = copy
        return self.make()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class TestSampleEngine(EngineConformance):
    @pytest.fixture
    def harness(self) -> Iterator[EngineHarness]:
        with quick_directory() as directory, sample_installed(Path(directory)):
            yield SampleHarness(Path(directory))


def test_a_topic_of_a_plugin_is_written_and_read_through_a_node(tmp_path: Path) -> None:
    with sample_installed(tmp_path):
        with penstock.open(tmp_path / "data") as store:
            topic = store.create_topic("orders", partitions=2, storage="plugin:sqlite")
            topic.write(b"3 apples", key=b"o-17", tags=["eu"], partition=1)
            assert [info.storage for info in store.list_topics()] == ["plugin:sqlite"]
        assert (tmp_path / "data" / "plugins" / "sqlite" / "records.sqlite").is_file()
        with penstock.open(tmp_path / "data") as store:
            records = store.topic("orders").read(partition=1)
            assert [record.value for record in records] == [b"3 apples"]


def test_a_topic_of_an_engine_that_is_not_installed_is_not_created(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as store:
        with pytest.raises(SetupError, match="0 installed packages offer the engine 'sqlite'"):
            store.create_topic("orders", storage="plugin:sqlite")
        assert [topic.name for topic in store.list_topics()] == []


@pytest.mark.parametrize("name", ["plugin:", "plugin:A", "plugin:a/b", "plugin:" + "a" * 33, "sql"])
def test_a_storage_type_of_no_known_form_is_rejected(tmp_path: Path, name: str) -> None:
    with (
        penstock.open(tmp_path / "data") as store,
        pytest.raises(BadRequestError, match="storage"),
    ):
        store.create_topic("orders", storage=name)


def test_a_node_without_the_package_serves_its_other_topics(tmp_path: Path) -> None:
    with sample_installed(tmp_path), penstock.open(tmp_path / "data") as store:
        store.create_topic("orders", storage="plugin:sqlite").write(b"kept")
        store.create_topic("others").write(b"served")
    shutil.rmtree(tmp_path / "packages")
    with penstock.open(tmp_path / "data") as store:
        assert [record.value for record in store.topic("others").read()] == [b"served"]
        with pytest.raises(SetupError, match="install exactly one package"):
            store.topic("orders").read()
    with sample_installed(tmp_path), penstock.open(tmp_path / "data") as store:
        assert [record.value for record in store.topic("orders").read()] == [b"kept"]


def test_a_plugin_whose_directory_is_gone_has_lost_its_shards(tmp_path: Path) -> None:
    with sample_installed(tmp_path):
        with penstock.open(tmp_path / "data") as store:
            store.create_topic("orders", storage="plugin:sqlite").write(b"gone")
        shutil.rmtree(tmp_path / "data" / "plugins")
        with penstock.open(tmp_path / "data") as store, pytest.raises(ShardLostError):
            store.topic("orders").read()


def test_an_entry_point_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with sample_installed(tmp_path):
        (tmp_path / "packages" / "penstock_sqlite" / "__init__.py").write_text("")
        with pytest.raises(SetupError, match="cannot be imported from 'penstock_sqlite:open"):
            load_plugin("sqlite")
