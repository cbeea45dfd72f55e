"""A topic that was deleted and created again is another one: no position of the old one counts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError
from penstock.node.connect_store import connect
from penstock.pipeline.options.source_options import read_options
from penstock.pipeline.read.positions import Positions, PositionsJson
from penstock.pipeline.read.ranges import batch_ranges
from penstock.pipeline.read.sources import open_source
from penstock.pipeline.read.stream_offsets import StreamPlanner
from penstock.record import Record, ShardId
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

ORDERS = ShardId("orders", 0)


class Place:
    """Something that a stream reads, and the ways to write to it and to create its topic anew."""

    def options(self) -> dict[str, str]:
        raise NotImplementedError

    def write(self, count: int) -> None:
        raise NotImplementedError

    def recreate(self) -> None:
        raise NotImplementedError

    def close(self) -> None: ...

    def planner(self, **more: str) -> StreamPlanner:
        chosen = {"subscribe": "orders", "startingOffsets": "earliest", **self.options(), **more}
        return StreamPlanner(read_options(chosen, streaming=True))


class Plain(Place):
    def __init__(self, root: Path) -> None:
        self.path = root / "plain"
        self._change(create=True)

    def options(self) -> dict[str, str]:
        return {"path": str(self.path)}

    def _change(self, count: int = 0, *, drop: bool = False, create: bool = False) -> None:
        with SegmentStore.open(str(self.path)) as store:
            if drop:
                store.delete_shard(ORDERS)
            if drop or create:
                store.create_shard(ORDERS)
            for number in range(count):
                store.append(ORDERS, Record(b"%d" % number))

    def write(self, count: int) -> None:
        self._change(count)

    def recreate(self) -> None:
        self._change(drop=True)


class Node(Place):
    def __init__(self, root: Path, *, by_endpoint: bool) -> None:
        self._root = root / "node"
        settings = merge_settings(EMBEDDED, {"server": {"port": 0, "http_port": 0}})
        self._server = Server(str(self._root), settings)
        self._by_endpoint = by_endpoint
        self._store = connect(f"127.0.0.1:{self._server.port}")
        self._store.create_topic("orders", partitions=1)

    def options(self) -> dict[str, str]:
        if self._by_endpoint:
            return {"endpoint": f"127.0.0.1:{self._server.port}"}
        return {"path": str(self._root)}

    def write(self, count: int) -> None:
        topic = self._store.topic("orders")
        before = topic.describe().partitions[0].commit
        topic.write_many([Record(b"%d" % number) for number in range(count)])
        if not self._by_endpoint:
            self._wait(lambda view, shard: view.bounds(shard).commit >= before + count)

    def recreate(self) -> None:
        self._store.topic("orders").delete()
        self._store.create_topic("orders", partitions=1)
        if not self._by_endpoint:
            self._wait(lambda view, shard: view.bounds(shard).commit == 0)

    def _wait(self, is_seen: Callable[[ReadOnlyStore, ShardId], bool]) -> None:
        """Wait until the files show what the node did: it publishes twice a second."""
        shard = ShardId(self._store.topic("orders").describe().topic_id, 0)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with ReadOnlyStore.open(str(self._root / "segment")) as view:
                if shard in view.shards() and is_seen(view, shard):
                    return
            time.sleep(0.1)
        raise AssertionError("the files do not show what the node did")

    def close(self) -> None:
        self._store.close()
        self._server.close()


@pytest.fixture(params=["plain", "directory", "endpoint"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = str(request.param)
    place = Plain(tmp_path) if kind == "plain" else Node(tmp_path, by_endpoint=kind == "endpoint")
    yield place
    place.close()


def read(planner: StreamPlanner, start: PositionsJson, most: int | None = None) -> PositionsJson:
    """Take the steps of a batch; return where it ends."""
    end = planner.latest(start, most)
    planner.tasks(start, end)
    return end


def planned(planner: StreamPlanner, start: PositionsJson, end: PositionsJson) -> list[list[int]]:
    return [[each.start, each.end] for task in planner.tasks(start, end) for each in task.ranges]


def test_a_recreated_topic_fails_the_stream_and_both_ids_are_named(place: Place) -> None:
    place.write(100)
    planner = place.planner()
    read_up_to = read(planner, planner.initial())
    assert read_up_to["orders"]["0"] == 100
    planner.close()
    place.recreate()
    place.write(50)
    # Fewer records than were read, then more: neither passes for news of the old topic.
    for more in (1, 200):
        place.write(more)
        planner = place.planner()
        with pytest.raises(BadRequestError, match="was deleted and created again") as caught:
            planner.latest(read_up_to, None)
        assert str(read_up_to["orders"]["id"]) in str(caught.value)
        assert str(planner.newest()["orders"]["id"]) in str(caught.value)
        planner.close()


def test_without_failing_a_recreated_topic_is_read_from_its_first_record(place: Place) -> None:
    place.write(100)
    planner = place.planner(failOnDataLoss="false")
    before = read(planner, planner.initial())
    place.recreate()
    place.write(150)
    for most, until in ((None, 150), (60, 60)):
        end = planner.latest(before, most)
        assert end["orders"]["0"] == until
        assert planned(planner, before, end) == [[0, until]]
    # The batch that Spark logged before the topic was recreated is empty now.
    assert planned(planner, {"orders": {**before["orders"], "0": 40}}, before) == []
    planner.close()


def test_a_checkpoint_of_an_earlier_release_adopts_the_present_id(place: Place) -> None:
    place.write(30)
    planner = place.planner()
    old: PositionsJson = {"orders": {"0": 10}}
    end = planner.latest(old, None)
    assert [*end["orders"]] == ["id", "0"]
    assert planned(planner, old, end) == [[10, 30]]
    planner.close()


def test_offsets_of_a_batch_with_an_id_are_of_that_topic_alone(place: Place) -> None:
    place.write(100)
    planner = place.planner()
    begin = json.dumps(read(planner, planner.initial()))
    planner.close()
    place.recreate()
    place.write(120)
    chosen = {**place.options(), "subscribe": "orders", "startingOffsets": begin}
    strict = read_options(chosen, streaming=False)
    source = open_source(strict)
    with pytest.raises(BadRequestError, match="created again"):
        batch_ranges(source, strict)
    lenient = read_options({**chosen, "failOnDataLoss": "false"}, streaming=False)
    assert [(each.start, each.end) for each in batch_ranges(source, lenient)] == [(0, 120)]
    source.close()


def test_a_topic_that_is_gone_and_a_shard_that_was_cut_fail_the_stream(tmp_path: Path) -> None:
    place = Plain(tmp_path)
    place.write(10)
    planner = place.planner()
    end = planner.latest(planner.initial(), None)
    further: PositionsJson = {"orders": {**end["orders"], "0": 12}}
    with pytest.raises(BadRequestError, match="ends at 10, but was read up to 12"):
        planner.latest(further, None)
    planner.close()
    planner = place.planner(failOnDataLoss="false")
    assert planner.latest(further, None) == end
    with SegmentStore.open(str(place.path)) as store:
        store.delete_shard(ORDERS)
    assert planner.latest(end, None) == {}
    assert planner.tasks(end, {}) == []
    planner.close()


def test_a_shard_keeps_its_birth_through_restarts_crashes_and_rebuilds(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def births() -> int:
        with ReadOnlyStore.open(str(path)) as view:
            return view.state(ORDERS).born_at

    with SegmentStore.open(str(path)) as store:
        store.create_shard(ORDERS)
        store.append(ORDERS, Record(b"x"))
    first = births()
    assert first > 0
    with SegmentStore.open(str(path)) as store:
        store.set_config(ORDERS, b"other")  # writes a further line of the journal
    assert births() == first
    for name in ("shards", "live"):  # the states are lost: the journal tells
        for file in (path / "penstock" / name).glob("*"):
            file.unlink()
    with SegmentStore.open(str(path)):
        pass
    assert births() == first
    with SegmentStore.open(str(path)) as store:
        store.delete_shard(ORDERS)
        store.create_shard(ORDERS)
    assert births() > first


@given(
    st.dictionaries(st.tuples(st.text(min_size=1), st.integers(0, 99)), st.integers(0), max_size=8),
    st.booleans(),
)
def test_positions_are_the_same_after_a_trip_through_text(
    offsets: dict[tuple[str, int], int], with_ids: bool
) -> None:
    shards = {ShardId(*shard): offset for shard, offset in offsets.items()}
    ids = {shard.topic: f"{shard.topic}-1" for shard in shards} if with_ids else {}
    found = Positions(shards, ids)
    text = json.dumps(found.to_json())
    assert Positions.parse(text, "offsets") == found
    shuffled = Positions(dict(reversed(shards.items())), ids)
    assert json.dumps(shuffled.to_json()) == text  # Spark compares text


def test_a_stream_waits_for_enough_records_but_not_too_long(tmp_path: Path) -> None:
    place = Plain(tmp_path)
    place.write(10)
    patient = place.planner(minOffsetsPerTrigger="20", maxTriggerDelay="1h")
    start = patient.initial()
    assert patient.latest(start, None) == start
    place.write(10)
    assert patient.latest(start, 15)["orders"]["0"] == 15
    assert patient.latest(start, None)["orders"]["0"] == 20
    hasty = place.planner(minOffsetsPerTrigger="30", maxTriggerDelay="0ms")
    assert hasty.latest(start, None)["orders"]["0"] == 20
    patient.stop_here()  # Trigger.AvailableNow: what is there is all that comes
    assert patient.latest({"orders": {**start["orders"], "0": 15}}, None)["orders"]["0"] == 20
    for planner in (patient, hasty):
        planner.close()
    for wrong in (
        {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
        {"maxTriggerDelay": "x"},
    ):
        with pytest.raises(BadRequestError, match="Trigger"):
            place.planner(**wrong)


def test_tasks_of_a_stream_keep_to_the_limit_of_records(tmp_path: Path) -> None:
    place = Plain(tmp_path)
    place.write(10)
    planner = place.planner(maxRecordsPerPartition="4")
    start = planner.initial()
    assert planned(planner, start, planner.latest(start, None)) == [[0, 4], [4, 8], [8, 10]]
    planner.close()
