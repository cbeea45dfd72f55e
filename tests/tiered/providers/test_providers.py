"""Every provider does what the contract says; addresses that make no sense are told."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.tiered.providers.azure_server import AzureServer, find_azurite, running_azurite
from tests.tiered.providers.gcs_stand_in import running_stand_in
from tests.tiered.providers.s3_server import S3Server

from penstock.errors import (
    AlreadyExistsError,
    StaleWriteError,
    TierSetupError,
    TierUnavailableError,
)
from penstock.testing.tier_conformance import TierConformance
from penstock.tiered import providers
from penstock.tiered.providers import TierProvider, open_provider
from penstock.tiered.providers.memory import MemoryProvider, drop_bucket
from penstock.tiered.providers.posix import PosixProvider
from penstock.tiered.providers.retrying import RetryingProvider


class TestMemory(TierConformance):
    @pytest.fixture
    def provider(self) -> Iterator[TierProvider]:
        name = uuid.uuid4().hex
        yield open_provider(f"memory://{name}")
        drop_bucket(name)


class TestMemoryPrefix(TierConformance):
    @pytest.fixture
    def provider(self) -> Iterator[TierProvider]:
        name = uuid.uuid4().hex
        MemoryProvider(name).put_if_absent("beside", b"1")
        yield open_provider(f"memory://{name}/some/prefix")
        drop_bucket(name)


class TestFile(TierConformance):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> TierProvider:
        return open_provider(f"file://{tmp_path}/tier")


@pytest.mark.s3
class TestS3(TierConformance):
    @pytest.fixture
    def provider(self, s3_server: S3Server) -> TierProvider:
        name = uuid.uuid4().hex
        s3_server.create_bucket(name)
        return open_provider(f"s3://{name}/a/prefix", s3_server.options())

    def test_a_big_object_goes_in_parts(self, provider: TierProvider) -> None:
        data = os.urandom(1 << 20) * 33
        provider.put_if_absent("big", data)
        assert provider.get_range("big", (20 << 20) + 5, 100) == data[5:105]

    def test_a_missing_bucket_is_told(self, s3_server: S3Server) -> None:
        provider = open_provider("s3://no-such-bucket/x", s3_server.options())
        with pytest.raises(TierSetupError, match="no such bucket"):
            provider.get("k")
        with pytest.raises(TierSetupError, match="no such bucket"):
            provider.put_if_absent("k", b"1")
        with pytest.raises(TierSetupError, match="no such bucket"):
            list(provider.list())

    def test_all_options_may_come_from_the_environment(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3_server.create_bucket("by-environment")
        for name, value in s3_server.options().items():
            monkeypatch.setenv(f"AWS_{name.upper()}", value)
        provider = open_provider("s3://by-environment/x")
        provider.put_if_absent("k", b"1")
        assert provider.get("k").data == b"1"

    def test_a_wrong_secret_is_told(self, s3_server: S3Server) -> None:
        s3_server.create_bucket("secrets")
        options = {**s3_server.options(), "secret_access_key": "wrong"}
        with pytest.raises(TierSetupError):
            open_provider("s3://secrets/x", options).put_if_absent("k", b"1")


@pytest.fixture(scope="module")
def azurite() -> Iterator[AzureServer]:
    program = find_azurite()
    if program is None:
        pytest.skip("no emulator of Azure: npm install azurite, and its bin on the PATH")
    with running_azurite(program) as server:
        yield server


@pytest.mark.azure
class TestAzure(TierConformance):
    @pytest.fixture
    def provider(self, azurite: AzureServer) -> TierProvider:
        name = uuid.uuid4().hex
        azurite.create_container(name)
        return open_provider(f"az://{name}/a/prefix", azurite.options())

    def test_a_missing_container_is_told(self, azurite: AzureServer) -> None:
        provider = open_provider("az://no-such-container/x", azurite.options())
        with pytest.raises(TierSetupError, match="no such bucket"):
            provider.put_if_absent("k", b"1")
        with pytest.raises(TierSetupError, match="no such bucket"):
            provider.get("k")

    def test_a_wrong_key_is_told(self, azurite: AzureServer) -> None:
        azurite.create_container("secrets")
        options = {**azurite.options(), "account_key": "d3Jvbmc="}
        with pytest.raises(TierSetupError):
            open_provider("az://secrets/x", options).put_if_absent("k", b"1")


class TestGoogle(TierConformance):
    @pytest.fixture
    def provider(self) -> Iterator[TierProvider]:
        pytest.importorskip("obstore")
        with running_stand_in() as server:
            yield open_provider(f"gs://{uuid.uuid4().hex}/a/prefix", server.options())


@pytest.mark.parametrize(
    "url", ["", "tier", "tape:/x", "file://relative/path", "s3:///prefix", "file:"]
)
def test_an_address_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(TierSetupError):
        open_provider(url)


def test_a_package_of_others_may_provide_a_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, dict[str, str]]] = []

    def open_theirs(url: str, options: dict[str, str]) -> TierProvider:
        opened.append((url, options))
        return MemoryProvider(uuid.uuid4().hex)

    class TheirPoint(EntryPoint):
        def load(self) -> object:
            return open_theirs

    points = [TheirPoint("tape", "their.module:open", providers.ENTRY_POINTS)]

    def found(*, group: str, name: str) -> list[EntryPoint]:
        return [one for one in points if (one.group, one.name) == (group, name)]

    monkeypatch.setattr(providers, "entry_points", found)
    provider = open_provider("tape://drive/7", {"speed": "slow"})
    provider.put_if_absent("one", b"1")
    assert provider.get("one").data == b"1"
    assert opened == [("tape://drive/7", {"speed": "slow"})]


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(TierSetupError):
        open_provider(f"file://{tmp_path}/file").put_if_absent("a/b", b"1")
    with pytest.raises(TierSetupError):
        open_provider(f"file://{tmp_path}/file/below").put_if_absent("a/b", b"1")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_directory_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(TierSetupError, match="no such directory"):
        open_provider(f"file://{tmp_path}/none", {"create": "false"})
    assert not (tmp_path / "none").exists()


def test_a_killed_writer_leaves_nothing_that_is_listed(tmp_path: Path) -> None:
    provider = PosixProvider(str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".penstock-0123").write_bytes(b"half")
    assert list(provider.list()) == []
    assert provider.remove_leftovers(before_ms=0) == 0
    assert provider.remove_leftovers(before_ms=1 << 60) == 1
    assert not (tmp_path / "a" / ".penstock-0123").exists()


class _LosesAnswers(MemoryProvider):
    """Does what it is asked to, and says that it did not answer."""

    def __init__(self, name: str, lost: int) -> None:
        super().__init__(name)
        self.lost = lost

    def put_if_absent(self, key: str, data: bytes) -> None:
        super().put_if_absent(key, data)
        self._lose()

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        version = super().compare_and_set(key, data, expected)
        self._lose()
        return version

    def _lose(self) -> None:
        if self.lost:
            self.lost -= 1
            raise TierUnavailableError("no answer")


def test_a_lost_answer_is_settled_by_reading_back() -> None:
    inner = _LosesAnswers(uuid.uuid4().hex, lost=1)
    provider = RetryingProvider(inner)
    provider.put_if_absent("one", b"mine")
    inner.lost = 1
    version = provider.compare_and_set("m", b"mine", None)
    assert provider.get("m") == (b"mine", version)


def test_a_rival_is_told_from_a_lost_answer() -> None:
    inner = _LosesAnswers(uuid.uuid4().hex, lost=0)
    provider = RetryingProvider(inner)
    inner.put_if_absent("one", b"theirs")
    with pytest.raises(AlreadyExistsError):
        provider.put_if_absent("one", b"mine")
    inner.compare_and_set("m", b"theirs", None)
    with pytest.raises(StaleWriteError):
        provider.compare_and_set("m", b"mine", None)
