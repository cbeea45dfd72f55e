"""Every method with every argument wrong: a typed error, whichever way the store is reached."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.api.conftest import KINDS

import penstock
from penstock import Producer, Record, Store, StoreError, aio
from penstock.api import Consumer, Topic
from penstock.errors import BadRequestError, RequestError
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

NOT_TEXTS: Final = (None, 1, b"t", ["t"], "", "\ud800")
NOT_NAMES: Final = (None, 5, b"t", ["t"], "\udcff", "\ud800")
NOT_KEYS: Final = ("k", 1, ["k"], bytearray(b"k"))
NOT_COUNTS: Final = (0, -1, "1", 1.5, b"1", [1], -(1 << 70))
NOT_OFFSETS: Final = (-1, "1", 1.5, None, b"1", [1], -(1 << 70))
NOT_PARTITIONS: Final = (-1, 2, 1 << 70, "0", 1.5, b"0", [0])
TOO_EARLY: Final = datetime.min  # noqa: DTZ901 - local time, on purpose
NOT_MOMENTS: Final = ("now", None, 1.5, [1], TOO_EARLY)
NOT_SECONDS: Final = ("1", None, [1], float("nan"), True)
NOT_VALUES: Final = ("text", 1, 1.5, ["v"], {"v": 1}, object())
NOT_PRODUCERS: Final = (1, "p", (1, 0), Producer(1, -1, 0), Producer(1, 0, -1), Producer(-1, 0, 0))
NOT_PLACES: Final[tuple[object, ...]] = (
    {},
    {("t", 9): 0},
    {("t", 0): -1},
    {"t": 0},
    {("t", "0"): 0},
    {("t", 0): "1"},
)


class Call(NamedTuple):
    """A call that is right, and what makes it wrong."""

    arguments: dict[str, object]
    wrong: dict[str, tuple[object, ...]]


TOPIC: Final[dict[str, Call]] = {
    "write": Call(
        {"value": b"v"},
        {
            "value": NOT_VALUES,
            "key": NOT_KEYS,
            "tags": ("eu", 1, [1], [b"t"], ["\ud800"]),
            "headers": (1, "h", [("h",)], {1: b"v"}, {"h": "v"}, [1]),
            "timestamp": ("now", 1.5, [1], 1 << 63, TOO_EARLY),
            "expires": ("now", 1.5, [1], 1 << 63, TOO_EARLY),
            "partition": NOT_PARTITIONS,
            "producer": NOT_PRODUCERS,
        },
    ),
    "write_many": Call(
        {"values": [b"v"]},
        {
            "values": ([], (), [7], ["text"], [b"v", 1], None, 7, [Record("text")]),  # type: ignore[arg-type] # on purpose
            "partition": NOT_PARTITIONS,
            "producer": NOT_PRODUCERS,
        },
    ),
    "read": Call(
        {"partition": 0, "offset": 0, "max_records": 1, "max_size": 1},
        {
            "partition": (None, *NOT_PARTITIONS),
            "offset": NOT_OFFSETS,
            "max_records": (None, *NOT_COUNTS),
            "max_size": (None, *NOT_COUNTS),
        },
    ),
    "read_by_tag": Call(
        {"tag": "eu"},
        {
            "tag": (None, 1, b"t", ["t"], "\ud800"),
            "partition": NOT_PARTITIONS,
            "start_offset": (*NOT_OFFSETS, {0: -1}, {0: "1"}, {5: -1}),
            "max_records": (None, *NOT_COUNTS),
            "max_size": (None, *NOT_COUNTS),
        },
    ),
    "read_by_key": Call({"key": b"k"}, {"key": (None, *NOT_KEYS)}),
    "query": Call(
        {"key": b"k"},
        {
            "key": (None, *NOT_KEYS),
            "since": NOT_MOMENTS,
            "until": ("now", 1.5, [1], TOO_EARLY),
            "limit": (None, *NOT_COUNTS),
        },
    ),
    "offset_at": Call(
        {"moment": 0, "partition": 0},
        {"moment": NOT_MOMENTS, "partition": (None, *NOT_PARTITIONS)},
    ),
    "offsets_at": Call({"moment": 0}, {"moment": NOT_MOMENTS}),
    "wait": Call(
        {"positions": {0: 0}, "seconds": 0.0},
        {
            "positions": ({0: -1}, {9: 0}, {0: "1"}, {"0": 0}, None, 1),
            "seconds": NOT_SECONDS,
        },
    ),
    "delete_by_key": Call({"key": b"k"}, {"key": (None, *NOT_KEYS)}),
    "delete_by_offset": Call(
        {"partition": 0, "offset": 0},
        {"partition": (None, *NOT_PARTITIONS), "offset": NOT_OFFSETS},
    ),
    "delete_before": Call(
        {"partition": 0, "offset": 0},
        {"partition": (None, *NOT_PARTITIONS), "offset": NOT_OFFSETS},
    ),
    "alter": Call(
        {},
        {
            "partitions": (0, -1, 1, "3", 1.5, [3], 1 << 40),
            "retention_ms": ("1", 0, -2, 1.5, "\udcff", "\ud800"),
            "retention_bytes": ("1", 0, -2, "\udcff"),
            "retention_records": ("1", 0, -2),
            "flush": ("often", 1, None),
            "cleanup": ("burn", 1, None, "delete,compact"),
            "tombstone_retention_ms": ("1", -1, 1.5, None),
            "compaction_lag_ms": ("1", -1, 1.5, None),
            "tag_header": (1, "a\x01b", "x" * 256, "\udcff"),
            "tiering": (object(), 1, 1.5, "perhaps", "\udcff", {}, [1]),
            "tiering.provider": (1, "\udcff"),
            "storage": ("memory",),
            "colour": ("red",),
        },
    ),
    "compact": Call({}, {}),
    "describe": Call({}, {}),
    "delete": Call({}, {}),
}

STORE: Final[dict[str, Call]] = {
    "create_topic": Call(
        {"name": "new"},
        {
            "name": (*NOT_TEXTS, "n" * 5_000),
            "partitions": (0, -1, "3", 1.5, [3], 1 << 40),
            "storage": ("paper", 1, b"memory"),
            "partitioner": ("dice", 1),
            "retention_ms": ("1", 0, -2, 1.5, "\udcff"),
            "memory_records_max": ("1", 0, -1, "\udcff"),
            "record_size_max": ("1", 0, -1, 1 << 40, "\udcff"),
            "replication": ("1", 0, -1, 2, "\udcff"),
            "flush": ("often", 1, None, "\udcff"),
            "tiering": (object(), 1, 1.5, "perhaps", "\udcff", {}, [1]),
            "colour": ("red",),
        },
    ),
    "write_many": Call(
        {"batch": [("t", b"v")]},
        {"batch": ([], [("none", b"v")], [("t", 7)], [(7, b"v")], [b"v"], [7], None, 7)},
    ),
    "topic": Call({"name": "t"}, {"name": NOT_NAMES}),
    "namespace": Call({"name": "n"}, {"name": NOT_NAMES}),
    "__contains__": Call({"name": "t"}, {"name": NOT_NAMES}),
    "describe_group": Call({"group": "g"}, {"group": (*NOT_TEXTS, "nobody")}),
    "delete_group": Call({"group": "g"}, {"group": NOT_TEXTS}),
    "reset_group": Call(
        {"group": "g", "offsets": {("t", 0): 0}},
        {"group": NOT_TEXTS, "offsets": (*NOT_PLACES, {("none", 0): 0}, None, 7)},
    ),
}

CONSUMER: Final[dict[str, Call]] = {
    "poll": Call(
        {"timeout": 0.0, "max_records": 1},
        {"timeout": NOT_SECONDS, "max_records": (None, *NOT_COUNTS)},
    ),
    "commit": Call(
        {"offsets": {("t", 0): 0}},
        {"offsets": (*NOT_PLACES[1:], {("none", 0): 0}, 7, [7])},
    ),
    "seek": Call(
        {"topic": "t", "partition": 0, "offset": 0},
        {
            "topic": ("none", 1, None, ["t"]),
            "partition": (None, *NOT_PARTITIONS),
            "offset": NOT_OFFSETS,
        },
    ),
    "seek_to": Call(
        {"start": "earliest"},
        {"start": ("noon", None, 1.5, [1], TOO_EARLY)},
    ),
}

NO_CALLS: Final = {"pages", "records", "partitions", "query_message_by_key"}
"""Of a topic: iterators and what is the same by another name."""


def tries(kind: str) -> Iterator[tuple[object, str, dict[str, object], str]]:
    """Yield what to call on: a class, the method, its arguments, and what is wrong."""
    for owner, calls in ((Topic, TOPIC), (Store, STORE), (Consumer, CONSUMER)):
        for method, call in calls.items():
            for argument, wrongs in call.wrong.items():
                for wrong in wrongs:
                    arguments = {**call.arguments, argument: wrong}
                    yield owner, method, arguments, f"{kind}: {method}({argument}={wrong!r})"


def settle(answer: object, loop: asyncio.AbstractEventLoop) -> object:
    return loop.run_until_complete(answer) if inspect.iscoroutine(answer) else answer


def try_everything(
    store: Store | aio.AsyncStore, kind: str, loop: asyncio.AbstractEventLoop
) -> list[str]:
    """Return what was answered otherwise than by an error that says what is wrong."""
    settle(store.create_topic("t", partitions=2, storage=kind), loop)
    settle(store.topic("t").write(b"first", partition=0), loop)
    consumer = store.consumer("g", ["t"])
    settle(consumer.commit(), loop)
    owners = {Topic: store.topic("t"), Store: store, Consumer: consumer}
    failures = []
    for owner, method, arguments, what in tries(kind):
        assert isinstance(owner, type)
        if not hasattr(owners[owner], method):
            continue  # coroutines have no `in`
        try:
            answer = settle(getattr(owners[owner], method)(**arguments), loop)
        except RequestError as error:
            if not str(error):
                failures.append(f"{what}: an error without a word")
        except Exception as error:  # noqa: BLE001 - collected, so that all are shown at once
            failures.append(f"{what}: {type(error).__name__}: {error}"[:200])
        else:
            failures.append(f"{what}: answered {answer!r}"[:200])
    if failures:
        settle(store.topic("t").delete(), loop)
        return failures
    assert settle(store.topic("t").write(b"second", partition=0), loop) == (0, 1)
    page = settle(store.topic("t").read(0, 0), loop)
    assert isinstance(page, list)
    assert [record.value for record in page] == [b"first", b"second"]
    assert settle(store.topics(), loop) == ["t"]
    assert settle(store.groups(), loop) == ["g"]
    settle(store.topic("t").delete(), loop)
    return failures


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(params=["embedded", "remote", "aio embedded", "aio remote"])
def any_store(
    request: pytest.FixtureRequest, directory: Path, loop: asyncio.AbstractEventLoop
) -> Iterator[Store | aio.AsyncStore]:
    way: str = request.param
    if way.endswith("embedded"):
        with penstock.open(directory) as store:
            yield aio.AsyncStore(store) if way.startswith("aio") else store
        return
    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    with Server(str(directory), merge_settings(EMBEDDED, ports)) as server:
        address = f"127.0.0.1:{server.port}"
        if way.startswith("aio"):
            connected = loop.run_until_complete(aio.connect(address))
            yield connected
            loop.run_until_complete(connected.close())
        else:
            with penstock.connect(address) as store:
                yield store


@pytest.mark.timeout(300)
def test_every_wrong_argument_is_refused_by_name_and_the_store_works_on(
    any_store: Store | aio.AsyncStore, loop: asyncio.AbstractEventLoop
) -> None:
    failures = [each for kind in KINDS for each in try_everything(any_store, kind, loop)]
    assert failures == []


def test_the_table_of_calls_has_every_method() -> None:
    for owner, calls in ((Topic, TOPIC), (Consumer, CONSUMER)):
        methods = {name for name in vars(owner) if not name.startswith("_")} - NO_CALLS
        without = {
            "close",
            "follow",
            "positions",
            "committed",
            "lag",
            "fetch",
            "hand_out",
            "commit_handled",
            "check_poll",
            "errors",
            "check_errors",
            "skip",
        }
        assert methods - without == set(calls)


NOT_FOR_COROUTINES: Final = {
    *("create_topic_info", "alter_topic_info"),
    *("pages", "fetch", "hand_out", "commit_handled", "check_poll"),
}


@pytest.mark.parametrize(
    ("plain", "coroutines"),
    [(Store, aio.AsyncStore), (Topic, aio.AsyncTopic), (Consumer, aio.AsyncConsumer)],
)
def test_coroutines_have_the_same_methods_and_arguments(plain: type, coroutines: type) -> None:
    for name, method in vars(plain).items():
        if name.startswith("_") or name in NOT_FOR_COROUTINES:
            continue
        twin = getattr(coroutines, name)
        if callable(method):
            expected = inspect.signature(method).parameters
            assert list(inspect.signature(twin).parameters) == list(expected), name


def test_an_unknown_topic_is_said_by_every_method_of_a_topic(
    any_store: Store | aio.AsyncStore, loop: asyncio.AbstractEventLoop
) -> None:
    missing = any_store.topic("missing")
    for method, call in TOPIC.items():
        with pytest.raises(penstock.UnknownTopicError):
            settle(getattr(missing, method)(**call.arguments), loop)
    with pytest.raises(penstock.UnknownTopicError):
        settle(any_store.consumer("g", ["missing"]).commit(), loop)


ODD_NAMES: Final = (
    *("a/b", "..", ".", "~", "%", "*", "-", "_0", "a_0", "a b", "a\nb", "x\x00y", "\\"),
    *("é", "名前", "\U0001f642", "\u202e", "n" * 200, "A", "a", "con", "default"),
)


def test_names_may_hold_any_characters(
    any_store: Store | aio.AsyncStore, loop: asyncio.AbstractEventLoop
) -> None:
    for number, name in enumerate(ODD_NAMES):
        storage = KINDS[number % len(KINDS)]
        topic = settle(any_store.create_topic(name, storage=storage), loop)
        assert isinstance(topic, Topic | aio.AsyncTopic)
        settle(topic.write(b"of %d" % number, key=name.encode(), tags=[name]), loop)
        consumer = any_store.consumer(name, [name])
        page = settle(consumer.poll(), loop)
        assert isinstance(page, list)
        assert [message.value for message in page] == [b"of %d" % number]
        settle(consumer.commit(), loop)
    assert settle(any_store.topics(), loop) == sorted(ODD_NAMES)
    assert settle(any_store.groups(), loop) == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        found = settle(any_store.topic(name).read_by_tag(name), loop)
        assert isinstance(found, list)
        assert [message.key for message in found] == [name.encode()]
        settle(any_store.topic(name).delete(), loop)
    assert settle(any_store.topics(), loop) == []


async def _all(messages: AsyncIterator[penstock.Message]) -> list[bytes | None]:
    return [message.value async for message in messages]


def test_iterators_refuse_what_is_wrong(
    any_store: Store | aio.AsyncStore, loop: asyncio.AbstractEventLoop
) -> None:
    settle(any_store.create_topic("t"), loop)
    for wrong in ({"partition": 9}, {"start": -1}, {"tag": 7}, {"start": {0: "1"}}):
        found = getattr(any_store.topic("t"), "records")(**wrong)  # noqa: B009 - wrong on purpose
        with pytest.raises(StoreError):
            settle(_all(found), loop) if isinstance(found, AsyncIterator) else list(found)


def test_a_consumer_is_made_of_names(
    any_store: Store | aio.AsyncStore, loop: asyncio.AbstractEventLoop
) -> None:
    settle(any_store.create_topic("t"), loop)
    made = getattr(any_store, "consumer")  # noqa: B009 - wrong on purpose
    for group in (*NOT_TEXTS, "\udcff"):
        with pytest.raises(BadRequestError):
            settle(made(group, ["t"]).poll(), loop)
    for topics in (1, None, [], [["t"]], [None], ["t", 1], ["\udcff"]):
        with pytest.raises(BadRequestError):
            settle(made("g", topics).poll(), loop)
    for timeout in NOT_SECONDS[0], NOT_SECONDS[3]:
        found = made("g", ["t"]).follow(timeout)
        with pytest.raises(BadRequestError):
            settle(_all(found), loop) if isinstance(found, AsyncIterator) else list(found)
