"""An operation of the store is defined once per layer; see the page of docs/designs on that."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.adapter.bench import Bench

from penstock import Message, Record
from penstock.adapter.driver_manager import StorageDriverManager
from penstock.adapter.requests import NamespaceRequest, StoreRequest, TopicRequest
from penstock.api.requests.groups import GroupRequest
from penstock.api.requests.node import NodeRequest
from penstock.platform.calls.grpc import attribute_of
from penstock.record import Offset
from penstock.remote import shards_pb2, storage_pb2
from penstock.remote.peers.shard_service import ShardService
from penstock.remote.server.service import StorageService
from penstock.remote.wire.calls import CALL_OF, CALLS
from penstock.remote.wire.shard_calls import SHARD_CALLS

SOURCE = Path(__file__).parents[1] / "src" / "penstock"
ENGINES = {
    "engine/contract.py",
    "engine/per_shard_engine.py",
    "engine/segment/engine.py",
    "tiered/engine.py",
}
LAYERS = ENGINES | {"engine/handler.py", "api/topic.py"}
PARTS = {"engine/routing/stable_reads.py": "engine/handler.py"}
"""Modules that hold a part of a layer's class."""
OPERATIONS = (
    "delete_by_key",
    "delete_by_offset",
    "delete_records_before",
    "get_offset_by_timestamp",
    "read_by_key",
    "read_by_tag",
)
BASES = {NamespaceRequest, TopicRequest, GroupRequest}


def all_requests(base: type[object]) -> set[type[object]]:
    """Return the requests of the product; tests may define others."""
    found = set()
    for kind in base.__subclasses__():
        found |= all_requests(kind)
        if kind not in BASES and kind.__module__.startswith("penstock."):
            found.add(kind)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_defined_once_in_each_layer(operation: str) -> None:
    definitions = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name == operation:
                name = path.relative_to(SOURCE).as_posix()
                definitions.append(PARTS.get(name, name))
    assert set(definitions) <= LAYERS, sorted(set(definitions) - LAYERS)
    assert len(definitions) == len(set(definitions)), sorted(definitions)


def test_every_request_can_be_sent() -> None:
    requests = all_requests(StoreRequest) | all_requests(NodeRequest)
    assert len(requests) > 25
    assert requests == set(CALL_OF)
    assert len(CALL_OF) == len(CALLS)


def test_every_request_says_how_it_is_run() -> None:
    # The bases are structs, whose metaclass knows no abstract methods.
    for base in (StoreRequest, NodeRequest):
        for request in all_requests(base):
            assert getattr(request, "run", None) is not base.run, request


def test_every_method_of_the_services_has_an_entry_or_a_handler() -> None:
    for messages, name, service, calls in (
        (storage_pb2, "StorageService", StorageService, {call.method for call in CALLS}),
        (shards_pb2, "ShardService", ShardService, {call.method for call in SHARD_CALLS}),
    ):
        for method in messages.DESCRIPTOR.services_by_name[name].methods:
            assert method.name in calls or hasattr(service, attribute_of(method.name)), method.name


class ReadFromEnd(TopicRequest[list[Message]], frozen=True):
    """The example of the design page: the last records of a partition."""

    partition: int
    count: int = 10

    def run(self, drivers: StorageDriverManager) -> list[Message]:
        route = self.route(drivers)
        name = route.shard(self.partition)
        info = route.driver.stable_info(name)
        start = Offset(max(info.earliest, info.commit - self.count))
        page = route.driver.read_by_offset(name, start, max_records=self.count)
        return [Message(self.topic, self.partition, record) for record in page]


def test_a_new_request_runs_without_a_change_of_any_layer() -> None:
    with Bench() as bench:
        bench.create("orders")
        bench.manager.batch_write("orders", [Record(b"%d" % number) for number in range(20)])
        last = bench.manager.execute(ReadFromEnd("orders", 0, 3))
        assert [message.value for message in last] == [b"17", b"18", b"19"]
