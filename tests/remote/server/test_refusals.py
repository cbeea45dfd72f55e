"""What a store refuses, it refuses from afar as well: nothing is altered on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock import Record, Store
from penstock.errors import BadRequestError, RequestError, StoreError
from penstock.meta.state.model import TieringPolicy
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

SETTINGS = merge_settings(
    EMBEDDED, {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
)
INFINITE: Final = float("inf")
NO_TEXT: Final = "\udcff"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "served"), SETTINGS) as running:
        yield running


@pytest.fixture
def remote(server: Server) -> Iterator[Store]:
    with penstock.connect(f"127.0.0.1:{server.port}") as store:
        yield store


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(tmp_path / "embedded") as store:
        yield store


def create(**options: object) -> Callable[[Store], object]:
    return lambda store: store.create_topic_info("new", None, options).config


def alter(**options: object) -> Callable[[Store], object]:
    return lambda store: store.alter_topic_info("t", None, options).config


def write(**parts: object) -> Callable[[Store], object]:
    record = Record(b"v", **parts)  # type: ignore[arg-type] # wrong on purpose
    return lambda store: store.topic("t").write_many([record])


REFUSED: Final[dict[str, Callable[[Store], object]]] = {
    "an infinite limit": create(retention_ms=INFINITE),
    "a limit that is no number": alter(retention_ms=float("nan")),
    "a fraction": alter(retention_ms=1.5),
    "a limit of more than 64 bits": alter(retention_ms=1 << 70),
    "bytes for text": create(tag_header=b"a"),
    "a moment for a limit": alter(retention_ms=datetime.now(UTC)),
    "a set": alter(retention_ms={1}),
    "text that is none": create(tag_header=NO_TEXT),
    "tags in a list": write(tags=["eu"]),
    "one text for tags": write(tags="eu"),
    "a tag that spells UTF-8 in escapes": write(tags=("\udcc3\udca9",)),
    "headers in a list": write(headers=[("a", b"b")]),
    "a header in a list": write(headers=(["a", b"b"],)),
    "a group's offset of more than 64 bits": (
        lambda store: store.reset_group("g", {("t", 0): 1 << 70})
    ),
    "a start in a partition that is not there": (
        lambda store: store.topic("t").read_by_tag("eu", start_offset={5: -1})
    ),
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED)
def test_what_an_embedded_store_refuses_is_refused_from_afar(
    embedded: Store, remote: Store, ask: Callable[[Store], object]
) -> None:
    for store in (embedded, remote):
        topic = store.create_topic("t", retention_ms=60_000)
        with pytest.raises(BadRequestError):
            ask(store)
        assert store.topics() == ["t"]
        assert store.groups() == []
        assert topic.describe().config.retention_ms == 60_000
        assert topic.read() == []


def test_options_that_a_store_takes_arrive_as_they_are(embedded: Store, remote: Store) -> None:
    options: dict[str, object] = {
        "retention_ms": 1 << 40,
        "tag_header": "naïve",
        "memory_records_max": None,
        "tiering": TieringPolicy(upload_interval_ms=5),
    }
    assert create(**options)(remote) == create(**options)(embedded)


@pytest.mark.parametrize("name", [5, NO_TEXT, b"t", None])
def test_what_is_no_name_is_refused_alike(embedded: Store, remote: Store, name: str) -> None:
    for store in (embedded, remote):
        with pytest.raises(BadRequestError, match="name"):
            _ = name in store
        assert "" not in store


@pytest.mark.parametrize("namespace", [5, NO_TEXT, b"n", ["n"]])
def test_what_is_no_namespace_is_refused_alike(
    embedded: Store, remote: Store, namespace: str
) -> None:
    for store in (embedded, remote):
        with pytest.raises(BadRequestError, match="namespace"):
            store.namespace(namespace)


@pytest.mark.parametrize(
    "address",
    [5, None, b"127.0.0.1:9190", "", ":9190", "localhost", "localhost:", "::1:9190", NO_TEXT],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadRequestError, match="address"):
        penstock.connect(address)


@pytest.mark.parametrize("deadline_s", ["x", None, [1], True, float("nan"), 0, -1])
def test_what_is_no_deadline_is_refused(server: Server, deadline_s: float) -> None:
    with pytest.raises(BadRequestError, match="deadline_s"):
        penstock.connect(f"127.0.0.1:{server.port}", deadline_s=deadline_s)


@pytest.mark.parametrize("seconds", [INFINITE, 1e10])
def test_a_deadline_may_be_as_long_as_one_likes(server: Server, seconds: float) -> None:
    with penstock.connect(f"127.0.0.1:{server.port}", deadline_s=seconds) as store:
        assert store.topics() == []


@pytest.mark.parametrize("seconds", [INFINITE, 1e10])
def test_a_wait_may_be_as_long_as_one_likes(remote: Store, seconds: float) -> None:
    topic = remote.create_topic("t")
    timer = threading.Timer(0.2, lambda: topic.write(b"late"))
    timer.start()
    assert topic.wait({0: 0}, seconds=seconds)
    timer.join()


def test_a_wait_that_is_longer_than_a_server_waits_at_once_goes_on(
    server: Server, remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.remote.server.service.WAIT_S_MAX", 0.05)
    topic = remote.create_topic("t")
    timer = threading.Timer(0.5, lambda: topic.write(b"late"))
    timer.start()
    assert topic.wait({0: 0}, seconds=60)
    timer.join()
    assert not topic.wait({0: 1}, seconds=0.2)


def test_a_wait_for_nothing_sensible_is_refused(remote: Store) -> None:
    topic = remote.create_topic("t")
    with pytest.raises(RequestError):
        topic.wait({9: 0}, seconds=INFINITE)
    with pytest.raises(StoreError):
        remote.topic("none").wait({0: 0}, seconds=INFINITE)
