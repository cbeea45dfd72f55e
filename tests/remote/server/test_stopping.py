"""A server that is told to stop does so at once, whoever waits for records there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

import penstock
from penstock.errors import StoreError
from penstock.meta.proto import meta_pb2 as meta_pb
from penstock.meta.service import SERVICE as META_SERVICE
from penstock.remote import storage_pb2 as pb
from penstock.remote.server.node_server import Server
from penstock.remote.wire.call import SERVICE
from penstock.settings import EMBEDDED, merge_settings

SETTINGS = merge_settings(
    EMBEDDED, {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
)
LONG_S = 3600.0
WAIT_S = 40.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Would wait for ever before it stops; each test closes it."""
    monkeypatch.setattr("penstock.remote.server.node_server.GRACE_S", LONG_S)
    for module in ("client.backend", "server.service"):
        monkeypatch.setattr(f"penstock.remote.{module}.WAIT_S_MAX", LONG_S)
    return Server(str(tmp_path / "data"), SETTINGS)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until_somebody_waits(server: Server) -> None:
    end = time.monotonic() + WAIT_S
    while not any(entry.appended for entry in server.node.storage_cache.entries()):
        assert time.monotonic() < end, "nobody waits"
        time.sleep(0.01)


def test_a_consumer_that_waits_does_not_hold_up_the_end(server: Server) -> None:
    store = penstock.connect(f"127.0.0.1:{server.port}")
    topic = store.create_topic("t")
    told: list[StoreError] = []

    def wait() -> None:
        try:
            topic.wait({0: 0}, seconds=LONG_S)
        except StoreError as error:
            told.append(error)

    waiting = started(wait)
    wait_until_somebody_waits(server)
    closing = started(server.close)
    closing.join(WAIT_S)
    assert not closing.is_alive()
    store.close()
    waiting.join(WAIT_S)
    assert len(told) == 1, "it goes on waiting for the server, until its own end"


def test_a_stream_that_follows_a_topic_ends(server: Server) -> None:
    with penstock.connect(f"127.0.0.1:{server.port}") as store:
        store.create_topic("t").write_many([b"1", b"2"])
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        read = channel.unary_stream(
            f"/{SERVICE}/ReadStream",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.RecordsReply.FromString,
        )
        name = pb.TopicName(namespace="default", topic="t")
        pages = iter(read(pb.ReadRequest(name=name, max_records=9, max_size=1 << 20, follow=True)))
        assert [record.value for record in next(pages).records] == [b"1", b"2"]
        closing = started(server.close)
        assert [record.value for page in pages for record in page.records] == []
        closing.join(WAIT_S)
        assert not closing.is_alive()


def test_a_stream_that_watches_the_metadata_ends(server: Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watch = channel.unary_stream(
            f"/{META_SERVICE}/Watch",
            request_serializer=meta_pb.WatchRequest.SerializeToString,
            response_deserializer=meta_pb.WatchReply.FromString,
        )
        updates = iter(watch(meta_pb.WatchRequest(after=0), timeout=LONG_S))
        while not next(updates).is_level:
            pass
        closing = started(server.close)
        assert [update for update in updates if update.events] == []
        closing.join(WAIT_S)
        assert not closing.is_alive()
