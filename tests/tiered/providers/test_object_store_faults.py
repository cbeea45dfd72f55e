"""A real S3 server behind a proxy that fails: nothing is lost, served twice or damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tiered.providers.fault_proxy import FAULTS, FaultProxy, running_proxy
from tests.tiered.providers.s3_server import S3Server
from tests.tiered.rig import SHARD, fill, open_store, read_all

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.engine.segment.store import SegmentStore
from penstock.errors import StoreError, TierUnavailableError
from penstock.record import Offset, StoredRecord
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.upkeep import TierLimits
from penstock.tiered.object_names import chunk_name
from penstock.tiered.providers import object_store, open_provider
from penstock.tiered.providers.contract import remove_leftovers
from penstock.tiered.providers.s3_uploads import open_uploads
from penstock.tiered.upload.dispatcher import upload_shard

pytestmark = pytest.mark.s3
DEADLINE_S = 120.0


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with running_proxy(s3_server.port, slow_s=2.0) as proxy:
        yield proxy


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        yield store


@pytest.fixture
def config(s3_server: S3Server, proxy: FaultProxy) -> TierConfig:
    bucket = uuid.uuid4().hex
    s3_server.create_bucket(bucket)
    options = {**s3_server.options(proxy.port), "timeout_s": "1.5", "retries": "1"}
    return TierConfig(
        url=f"s3://{bucket}/prefix", options=options, chunk_size=3000, segment_size=9000
    )


def until_it_works(attempt: Callable[[], object]) -> object:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return attempt()
        except TierUnavailableError:
            if time.monotonic() > deadline:
                raise


def test_every_kind_of_fault_at_a_fifth_of_all_requests(
    store: SegmentStore, config: TierConfig, proxy: FaultProxy
) -> None:
    proxy.ratio = 0.2
    for first in range(0, 240, 60):
        fill(store, 60, start=first)

        def upload() -> None:
            flat = CompositeFlatFile(config, SHARD)
            flat.acquire()
            upload_shard(store, flat)

        until_it_works(upload)
        found = until_it_works(lambda: read_all(CompositeFlatFile(config, SHARD)))
        assert found == store.read(SHARD, 0)
    assert all(proxy.met[fault] for fault in FAULTS), proxy.met
    proxy.ratio = 0.0
    flat = CompositeFlatFile(config, SHARD)
    manifest = flat.refresh()
    assert manifest is not None
    later = CompositeFlatFile(TierConfig(url=config.url, options=config.options, grace_ms=0), SHARD)
    time.sleep(1.1)  # the server's clock has seconds only
    later.upkeep.collect_garbage()
    named = {chunk.name for chunk in flat.manifest.chunks_from(-1)}
    named |= {segment.name for segment in manifest.segments} | {"manifest"}
    assert {one.key.rpartition("/")[2] for one in flat.provider.list()} == named


def test_a_big_object_in_parts_survives_faults(
    config: TierConfig, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "MULTIPART_SIZE", 6 << 20)
    monkeypatch.setattr(object_store, "PART_SIZE", 5 << 20)
    provider = open_provider(config.url, config.options)
    data = os.urandom(1 << 20) * 16
    proxy.ratio = 0.2
    until_it_works(lambda: provider.put_if_absent("big", data))
    assert until_it_works(lambda: provider.get("big").data == data)


def test_a_tier_that_comes_back_is_caught_up_with(
    tmp_path: Path, config: TierConfig, proxy: FaultProxy
) -> None:
    engine = build_tiered_engine(
        open_store(tmp_path / "store", background=True),
        config,
        metadata_path=f"{tmp_path}/tier-meta",
        limits=TierLimits(upload_interval_ms=50, scrub_size=0),
    )
    try:
        engine.create_shard(SHARD, ShardConfig(tiering=ShardTiering(local_retention_bytes=1)))
        fill(engine.store, 30)
        wait_for(lambda: engine.tiers.bounds(SHARD)[1] == 30)
        proxy.is_gone = True
        fill(engine.store, 30, start=30)
        wait_for(lambda: bool(engine.dispatcher.failures()))
        engine.store.retention.run()
        assert engine.store.bounds(SHARD).earliest <= 30, "the tier lacks what lies behind"
        assert engine.store.read(SHARD, 30), "and the log still serves it"
        proxy.is_gone = False
        wait_for(lambda: engine.tiers.bounds(SHARD)[1] == 60 and not engine.dispatcher.failures())
        engine.store.retention.run()
        assert engine.store.bounds(SHARD).earliest > 30
        found = engine.read_by_offset(SHARD, Offset(0), max_records=100)
        assert [one.offset for one in found] == [*range(60)]
    finally:
        engine.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            if condition():
                return
        except StoreError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


PUTS = """
import sys
from penstock.tiered.object_names import chunk_name
from penstock.tiered.providers import object_store, open_provider
from penstock.tiered.providers.contract import remove_leftovers
from penstock.tiered.providers.s3_uploads import open_uploads
object_store.MULTIPART_SIZE, object_store.PART_SIZE = 6 << 20, 5 << 20
url, key, options = sys.argv[1], sys.argv[2], dict(each.split("=", 1) for each in sys.argv[3:])
open_provider(url, options).put_if_absent(key, b"x" * (11 << 20))
"""
REQUESTS = 6
"""Is there one? Begin; three parts; end."""


def test_a_kill_between_any_two_parts_leaves_nothing_behind(
    config: TierConfig, proxy: FaultProxy
) -> None:
    provider = open_provider(config.url, config.options)
    proxy.slow_s = 60.0
    options = {**config.options, "timeout_s": "60"}
    provider.put_if_absent("orders/0/manifest", b"beside")
    stopped_at: list[int] = []
    for number in range(REQUESTS + 1):
        key = f"orders/0/{chunk_name(1, number)}"
        proxy.held.clear()
        proxy.hold_before = proxy.met["requests"] + number
        arguments = [f"{name}={value}" for name, value in options.items()]
        child = subprocess.Popen([sys.executable, "-c", PUTS, config.url, key, *arguments])
        wait_for(lambda child=child: proxy.held.is_set() or child.poll() is not None)  # type: ignore[misc]  # bound now
        if proxy.held.is_set():
            stopped_at.append(number)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        proxy.hold_before = None
        found = provider.head(key)
        assert (found is None) == (number in stopped_at), number
        if found is not None:
            assert provider.get(key).data == b"x" * (11 << 20)
    assert stopped_at == [*range(REQUESTS)], "it was killed before each of its requests"
    uploads = open_uploads(config.url, config.options)
    assert uploads is not None
    begun = list(uploads.unfinished())
    assert len(begun) >= 3, "parts of killed writers lie about"
    assert remove_leftovers(provider, before_ms=0) == 0, "none is older"
    assert remove_leftovers(provider, before_ms=1 << 50) == len(begun)
    assert list(uploads.unfinished()) == []
    assert provider.get("orders/0/manifest").data == b"beside"


def test_uploads_of_others_are_left_alone(config: TierConfig, proxy: FaultProxy) -> None:
    proxy.slow_s = 60.0
    proxy.hold_before = 3
    arguments = [f"{name}={value}" for name, value in config.options.items()]
    child = subprocess.Popen([sys.executable, "-c", PUTS, config.url, "theirs", *arguments])
    wait_for(proxy.held.is_set)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    proxy.hold_before = None
    provider = open_provider(config.url, config.options)
    assert provider.head("theirs") is None
    assert remove_leftovers(provider, before_ms=1 << 50) == 0
    uploads = open_uploads(config.url, config.options)
    assert uploads is not None
    assert [one.key for one in uploads.unfinished()] == ["prefix/theirs"]


def test_whole_chunks_are_streamed_through_faults(
    store: SegmentStore, config: TierConfig, proxy: FaultProxy
) -> None:
    fill(store, 300)
    flat = CompositeFlatFile(config, SHARD)
    flat.acquire()
    upload_shard(store, flat)
    proxy.ratio = 0.2
    manifest = flat.refresh()
    assert manifest is not None

    def stream() -> list[StoredRecord]:
        chunks = CompositeFlatFile(config, SHARD).reader.stream()
        return [one for chunk in chunks for one in flat.reader.live_records(chunk, manifest)]

    assert until_it_works(stream) == store.read(SHARD, 0, max_records=300)
