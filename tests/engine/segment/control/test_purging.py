"""Deleted shards leave nothing behind, and nothing brings them back."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.engine.segment.rig import EVENTS, LOGS, ORDERS, QUIET, SIZES, Rig, create, fill, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.queue import shard_state
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.state_files import StateFiles, bucket_of
from penstock.engine.segment.retention import RetentionPolicy
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import UnknownShardError
from penstock.record import Position, QueueKind, Record, ShardId
from penstock.testing import FaultyDisk, PowerCut


class Store:
    """A store with a shard that was deleted, and one that goes on."""

    def __init__(self, kind: QueueKind = QueueKind.SIMPLE) -> None:
        self.kind = kind
        self.rig = Rig()
        self.model = ShardModel()
        create(self.rig.store, EVENTS)
        create(self.rig.store, ORDERS, kind=kind)
        fill(self.rig.store, ORDERS, 60)
        self.rig.store.delete_offsets(ORDERS, [3, 4])
        self.rig.store.checkpoint()
        self.rig.store.delete_shard(ORDERS)

    def push_out(self, files: int = 3) -> None:
        """Write and drop so many records of the other shard that old log files go."""
        for number in range(files * 9):
            each = record(number, size=900)
            self.rig.store.append(EVENTS, each)
            self.model.append([each])
        self.rig.store.retention.set_policy(EVENTS, RetentionPolicy(records=2))
        self.rig.store.run_upkeep()
        self.model.floor = self.model.next_offset - 2

    def saved(self) -> set[ShardId]:
        return set(StateFiles(self.rig.disk, "store/penstock/shards").load_all()[0])

    def traces(self) -> list[str]:
        return [path for path in self.rig.disk.files() if "/orders" in path]


@pytest.fixture(params=QueueKind)
def store(request: pytest.FixtureRequest) -> Store:
    return Store(request.param)


def test_a_deleted_shard_is_forgotten_when_no_log_file_speaks_of_it(store: Store) -> None:
    store.rig.store.checkpoint()
    assert ORDERS in store.saved()
    store.push_out()
    left = {shard.topic for shard in store.saved()}
    assert left == {"events", "events%ctl", "%ctl"}
    assert store.traces() == []
    for name in ("consumequeue", "batchconsumequeue", "penstock/times", "penstock/sums"):
        assert not any("orders" in each for each in store.rig.disk.list(f"store/{name}"))
    for each in store.rig.lives():
        assert each.shards() == [EVENTS]
        check_shard(each, EVENTS, store.model)
    assert verify("store", disk=store.rig.disk.copy(), settings=store.rig.settings).findings == []


def test_a_deleted_shard_is_remembered_while_a_log_file_speaks_of_it(store: Store) -> None:
    store.rig.store.retention.set_policy(EVENTS, RetentionPolicy(keep=True))
    for number in range(30):
        written = record(number, size=900)
        store.rig.store.append(EVENTS, written)
        store.model.append([written])
    store.rig.store.run_upkeep()
    assert (
        store.rig.store.bounds(EVENTS).start_position < store.rig.store.bounds(EVENTS).end_position
    )
    assert ORDERS in store.saved()
    store.rig.close()
    for lost in ("penstock/checkpoint", "penstock/shards", "penstock", "index", "consumequeue"):
        copy = store.rig.copy()
        copy.disk.remove_tree(f"store/{lost}")
        for each in copy.lives():
            assert each.shards() == [EVENTS]
            check_shard(each, EVENTS, store.model)


@pytest.mark.parametrize("lost", ["nothing", "penstock/checkpoint", "penstock", "consumequeue"])
def test_a_forgotten_shard_does_not_come_back_in_a_rebuild(store: Store, lost: str) -> None:
    store.push_out()
    store.rig.close()
    store.rig.disk.remove_tree(f"store/{lost}")
    for each in store.rig.lives():
        assert each.shards() == [EVENTS]


def test_a_shard_created_again_after_its_namesake_was_forgotten_may_have_another_kind(
    store: Store,
) -> None:
    store.push_out()
    (kind,) = set(QueueKind) - {store.kind}
    create(store.rig.store, kind=kind)
    model = ShardModel()
    model.append(fill(store.rig.store, ORDERS, 90, first=500))
    store.rig.store.delete_offsets(ORDERS, [7])
    model.deleted.add(7)
    for each in store.rig.lives():
        check_shard(each, ORDERS, model)
        check_shard(each, EVENTS, store.model)


def test_a_shard_created_again_before_the_log_forgot_it_stays(store: Store) -> None:
    create(store.rig.store, kind=store.kind)
    store.push_out()
    model = ShardModel()
    for each in store.rig.lives():
        assert each.shards() == [EVENTS, ORDERS]
        check_shard(each, ORDERS, model)
    model.append(fill(store.rig.store, ORDERS, 5))
    store.rig.store.delete_offsets(ORDERS, [2])
    model.deleted.add(2)
    for each in store.rig.lives():
        check_shard(each, ORDERS, model)


def test_topics_that_come_and_go_leave_the_store_as_small_as_it_was() -> None:
    rig = Rig()
    create(rig.store, EVENTS)
    rig.store.retention.set_policy(EVENTS, RetentionPolicy(records=1))
    sizes = []
    for turn in range(4):
        for number in range(50):
            shard = create(rig.store, ShardId(f"passing-{turn}-{number}", 0))
            rig.store.append(shard, record(number))
            rig.store.delete_shard(shard)
        for number in range(20):
            rig.store.append(EVENTS, record(number, size=900))
        rig.store.run_upkeep()
        rig.store.run_upkeep()
        states = StateFiles(rig.disk, "store/penstock/shards").load_all()[0]
        sizes.append((len(states), len(rig.disk.list("store/consumequeue"))))
    assert len(set(sizes)) == 1, sizes
    assert sizes[0] < (60, 60)


def test_a_power_cut_while_a_shard_is_forgotten_brings_nothing_back() -> None:
    for call in range(0, 400, 17):
        store = Store()
        store.rig.store.checkpoint()
        store.rig.disk.stop_at_call(call)
        with suppress(PowerCut):
            store.push_out()
        again = store.rig.crash(call)
        assert again.shards() == [EVENTS]
        create(again)
        model = ShardModel()
        model.append(fill(again, ORDERS, 3, first=700))
        for each in store.rig.lives():
            check_shard(each, ORDERS, model)


def test_files_of_a_forgotten_shard_do_not_come_back_after_a_power_cut() -> None:
    for seed in range(8):
        store = Store()
        store.rig.store.checkpoint()
        store.push_out()
        assert store.rig.crash(seed).shards() == [EVENTS]
        assert store.traces() == []
        model = ShardModel()
        create(store.rig.store)
        model.append(fill(store.rig.store, ORDERS, 3, first=700))
        check_shard(store.rig.restart(), ORDERS, model)
        disk = store.rig.disk.copy()
        assert verify("store", disk=disk, settings=store.rig.settings).findings == []


def test_a_start_forgets_what_a_killed_process_did_not() -> None:
    store = Store()
    store.rig.store.checkpoint()
    old = store.rig.disk.copy()
    store.push_out()
    store.rig.close()
    for name in ("shards", "copies"):
        # As if the states had been saved before the files went.
        for bucket in old.list(f"store/penstock/{name}"):
            path = f"store/penstock/{name}/{bucket}"
            if not store.rig.disk.exists(path) or ORDERS in _shards_in(old, name, bucket):
                store.rig.disk.replace(path, old.files()[path])
    assert ORDERS in store.saved()
    assert store.rig.store.shards() == [EVENTS]
    store.rig.close()
    assert ORDERS not in store.saved()


def _shards_in(disk: FaultyDisk, name: str, bucket: str) -> set[ShardId]:
    states = StateFiles(disk, f"store/penstock/{name}").load_all()[0]
    return {shard for shard in states if bucket_of(shard) == int(bucket)}


def test_a_state_of_an_earlier_release_does_not_say_when_its_shard_was_deleted() -> None:
    state = ShardState(QueueKind.SIMPLE)
    state.drop(100)
    state.folded_until = Position(5_000)
    fields = msgspec.msgpack.decode(state.to_bytes())
    known = shard_state._Packed.__struct_fields__.index("dropped_at")
    again = ShardState.from_bytes(msgspec.msgpack.encode(fields[:known]))
    assert not again.is_gone(4_999)
    assert again.is_gone(5_000)
    assert ShardState.from_bytes(state.to_bytes()).is_gone(100)


def test_an_empty_file_of_states_is_not_a_missing_one() -> None:
    rig = Rig(QUIET)
    create(rig.store, LOGS)
    files = StateFiles(rig.disk, "store/penstock/other")
    files.save([LOGS], {LOGS: ShardState(QueueKind.SIMPLE)}, durable=True)
    (bucket,) = files.buckets
    files.save([LOGS], {}, durable=True)
    assert files.load_all(expected=[bucket]) == ({}, [])
    assert StateFiles(rig.disk, "nowhere").load_all(expected=[bucket])[1] != []


def test_a_record_for_a_forgotten_shard_is_refused_as_for_any_unknown_one(store: Store) -> None:
    store.push_out()
    for each in store.rig.lives():
        with pytest.raises(UnknownShardError):
            each.append(ORDERS, Record(b"late"))
        with pytest.raises(UnknownShardError):
            each.read(ORDERS, 0)
        each.delete_shard(ORDERS)


def test_the_background_removes_the_files_of_deleted_shards(tmp_path: Path) -> None:
    settings = SegmentSettings(sizes=SIZES, derived_interval_ms=50, publish_interval_ms=50)
    with SegmentStore.open(str(tmp_path), settings) as store:
        shards = [create(store, ShardId(f"passing-{number}", 0)) for number in range(60)]
        for shard in shards:
            store.append(shard, record(1))
        create(store, EVENTS)
        store.append(EVENTS, record(2))
        store.checkpoint()
        queues = tmp_path / "consumequeue"
        assert len(list(queues.iterdir())) > len(shards)
        for shard in shards:
            store.delete_shard(shard)
        deadline = time.monotonic() + 60
        while any(each.name.startswith("passing") for each in queues.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert store.read(EVENTS, 0)[0].value == record(2).value
        create(store, shards[0])
        assert store.append(shards[0], record(3)) == 0
    with SegmentStore.open(str(tmp_path), settings) as store:
        assert store.shards() == [EVENTS, shards[0]]
        assert [each.value for each in store.read(shards[0], 0)] == [record(3).value]
    assert verify(str(tmp_path)).findings == []


class TidyDisk(FaultyDisk):
    """Somebody else removes a topic's directory as soon as nothing is in it."""

    def remove_tree(self, path: str) -> None:
        super().remove_tree(path)
        self.remove_empty(path.rpartition("/")[0])


@pytest.mark.parametrize("kind", QueueKind)
def test_a_shard_is_made_again_while_its_directories_are_removed(kind: QueueKind) -> None:
    rig = Rig(disk=TidyDisk())
    for count in (3, 2):
        create(rig.store, ORDERS, kind=kind)
        fill(rig.store, ORDERS, count)
        rig.store.run_upkeep()
        assert rig.store.bounds(ORDERS).next == count
        rig.store.delete_shard(ORDERS)
