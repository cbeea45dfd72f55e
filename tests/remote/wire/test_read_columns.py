"""Arrow columns over the wire: the same records as rows, and None where only rows can be had."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import penstock
from penstock import Record
from penstock.adapter.requests import ReadColumns
from penstock.errors import BadRequestError, UnknownTopicError
from penstock.record import Offset
from penstock.remote.client.backend import RemoteBackend
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

COUNT = 10_000
COLUMNS = ("offset", "key", "value", "tags", "headers", "timestamp", "expires")
FAR = 1 << 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    ports = merge_settings(EMBEDDED, {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}})
    with Server(str(tmp_path_factory.mktemp("node")), ports) as running:
        with penstock.connect(f"127.0.0.1:{running.port}") as store:
            for name, storage in (("numbers", "segment"), ("kept in memory", "memory")):
                store.create_topic(name, partitions=1, storage=storage)
                store.topic(name).write_many([record(n) for n in range(COUNT)], partition=0)
            store.topic("numbers").delete_before(0, 3)
        yield running


@pytest.fixture
def backend(server: Server) -> Iterator[RemoteBackend]:
    found = RemoteBackend(f"127.0.0.1:{server.port}")
    yield found
    found.close()


def record(number: int) -> Record:
    return Record(
        None if number == 17 else b"value %d" % number,
        key=None if number % 10 == 9 else b"key %d" % number,
        tags=("third",) if number % 3 == 0 else (),
        headers=(("number", b"%d" % number), ("none", None)) if number % 5 == 0 else (),
        timestamp_ms=number + 1,
    )


def query(
    offset: int = 0, until: int = FAR, tag: str | None = None, size: int = FAR
) -> ReadColumns:
    return ReadColumns("numbers", 0, offset, until, COLUMNS, tag, size)


def rows(backend: RemoteBackend, request: ReadColumns) -> list[tuple[object, ...]]:
    found = backend.execute(request)
    assert found is not None
    return [
        (row["offset"], row["value"], row["key"], row["tags"], row["headers"])
        for batch in found
        for row in batch.to_pylist()
    ]


def test_columns_are_what_rows_are(backend: RemoteBackend) -> None:
    expected = []
    for first in range(3, COUNT, 1000):
        page = backend.read_by_offset("numbers", 0, Offset(first), max_size=FAR)
        expected += [
            (
                one.offset,
                one.value,
                one.key,
                list(one.tags),
                [{"key": name, "value": value} for name, value in one.headers],
            )
            for one in page
        ]
    assert rows(backend, query()) == expected
    assert len(expected) == COUNT - 3


def test_a_range_and_a_tag_are_kept_to(backend: RemoteBackend) -> None:
    assert [row[0] for row in rows(backend, query(100, 103))] == [100, 101, 102]
    assert [row[0] for row in rows(backend, query(0, 10, "third"))] == [3, 6, 9]
    assert rows(backend, query(COUNT)) == []


def test_a_page_is_about_as_large_as_asked_for(backend: RemoteBackend) -> None:
    part = rows(backend, query(size=1))
    assert 0 < len(part) < COUNT - 3
    (last, *_) = part[-1]
    assert isinstance(last, int)
    assert len(part) + len(rows(backend, query(last + 1))) == COUNT - 3


def test_only_rows_can_be_had_of_other_engines(backend: RemoteBackend) -> None:
    assert backend.execute(replace(query(), topic="kept in memory")) is None


def test_what_does_not_exist_is_named(backend: RemoteBackend) -> None:
    with pytest.raises(UnknownTopicError):
        backend.execute(replace(query(), topic="nothing"))
    with pytest.raises(BadRequestError, match="there is no column 'colour'"):
        backend.execute(replace(query(), columns=("colour",)))
