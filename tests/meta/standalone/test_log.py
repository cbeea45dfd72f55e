"""The log of one node: what is acknowledged stays, at every point where it can stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.meta.scripts import rows
from tests.meta.simulated_database import SimulatedDatabase, broken, busy, full

from penstock.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    NotAStoreError,
    StoreError,
)
from penstock.meta.standalone.client import MetadataMachine, OffsetMachine
from penstock.meta.standalone.group import StandaloneGroup
from penstock.meta.standalone.log import METADATA, StandaloneLog, offset_group_name
from penstock.meta.state.metadata import machine as metadata
from penstock.meta.state.metadata.commands import (
    AllocateProducerIds,
    Answer,
    Applied,
    Command,
    CreateTopic,
    DeleteTopic,
    ProducerIds,
    RegisterNode,
    Request,
)
from penstock.meta.state.model import TopicConfig
from penstock.meta.state.offsets import machine as offset
from penstock.meta.state.offsets.commands import (
    GroupName,
    OffsetAnswer,
    OffsetRequest,
    TakeEpochs,
)
from penstock.meta.state.view import MemoryView
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import BATCH_SIZE_MAX, Batch
from penstock.meta.storage.groups import ENTRY_SIZE_MAX, LogLimits

MetadataGroup = StandaloneGroup[Request, Answer]
OffsetGroup = StandaloneGroup[OffsetRequest, OffsetAnswer]

SMALL = LogLimits(entries_max=4, entries_kept=2)


class Logs:
    """A started log with both kinds of groups."""

    def __init__(self, database: SimulatedDatabase, limits: LogLimits | None = None) -> None:
        self.log = StandaloneLog(database, node_id=1, limits=limits)
        self.metadata = self.log.add_group(METADATA, MetadataMachine())
        self.offsets = self.log.add_group(offset_group_name(0), OffsetMachine())
        self.log.start()

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()


def data_of(command: Command, request_id: str = "") -> bytes:
    return metadata.encode_request(Request(1000, command, request_id))


def commands() -> Iterator[Command]:
    """A few commands of several sizes, one of which is rejected."""
    for number in range(4):
        yield CreateTopic(f"t-{number}", "default", f"t{number}", 1, TopicConfig())
        yield AllocateProducerIds(10)
    yield DeleteTopic("nothing")
    yield DeleteTopic("t-1")


def expected_rows(count: int) -> list[tuple[bytes, bytes]]:
    """Return the rows that the first `count` commands leave."""
    view = MemoryView()
    for command in list(commands())[:count]:
        metadata.apply(view, Request(1000, command))
    return rows(view)


def held_rows(group: MetadataGroup) -> list[tuple[bytes, bytes]]:
    return list(group.reader.scan(b"", b"\xff" * 16))


def test_an_answer_means_that_the_entry_is_synced_and_can_be_read() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        answer = logs.metadata.propose(data_of(AllocateProducerIds(10)))
        assert isinstance(answer, Applied)
        assert answer.result == ProducerIds(1, 10)
        cut = database.after_power_cut()
    with Logs(cut) as again:
        assert held_rows(again.metadata) == held_rows(logs.metadata)
        assert again.log.status[0].applied == 1


def run_until(database: SimulatedDatabase) -> int:
    """Propose the commands until one fails; return how many were answered."""
    answered = 0
    try:
        logs = Logs(database, SMALL)
    except StoreError:
        return 0
    with logs:
        try:
            for command in commands():
                logs.metadata.propose(data_of(command))
                answered += 1
        except StoreError:
            assert logs.log.failure is not None
    return answered


def operations_of_a_whole_run() -> int:
    database = SimulatedDatabase()
    assert run_until(database) == len(list(commands()))
    return len(database.operations)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_every_crash_point_keeps_what_was_answered_and_nothing_by_halves(is_done: bool) -> None:
    total = operations_of_a_whole_run()
    for stop_at in range(total):
        database = SimulatedDatabase()
        database.stop_at, database.is_done_at_stop = stop_at, is_done
        answered = run_until(database)
        unsynced = len(database.batches) - database.synced
        images = [database.after_kill()]
        images += [database.after_power_cut(kept) for kept in range(unsynced + 1)]
        for image in images:
            with Logs(image, SMALL) as again:
                status = again.log.status[0]
                assert answered <= status.applied <= answered + 1, stop_at
                assert held_rows(again.metadata) == expected_rows(status.applied), stop_at
                again.metadata.propose(data_of(RegisterNode(1, "here")))
                assert again.log.status[0].applied == status.applied + 1


def test_a_second_crash_during_the_replay_changes_nothing() -> None:
    database = SimulatedDatabase()
    database.stop_at = operations_of_a_whole_run() - 1  # an entry is synced, and not applied
    answered = run_until(database)
    first = database.after_power_cut()
    replay = first.after_kill()
    Logs(replay).log.close()
    for stop_at in range(len(replay.operations)):
        crashed = first.after_kill()
        crashed.stop_at = stop_at
        run_until(crashed)
        with Logs(crashed.after_power_cut()) as again:
            assert held_rows(again.metadata) == expected_rows(answered + 1)


def test_what_a_start_shows_of_a_killed_process_survives_a_power_cut() -> None:
    total = operations_of_a_whole_run()
    for stop_at in range(total):
        database = SimulatedDatabase()
        database.stop_at, database.is_done_at_stop = stop_at, True
        run_until(database)
        killed = database.after_kill()
        with Logs(killed, SMALL) as shown:
            seen = held_rows(shown.metadata)
        with Logs(killed.after_power_cut(), SMALL) as again:
            assert held_rows(again.metadata) == seen, stop_at


def test_old_entries_are_dropped_only_behind_what_the_device_holds_of_the_state() -> None:
    database = SimulatedDatabase()
    with Logs(database, SMALL) as logs:
        for number in range(50):
            logs.metadata.propose(data_of(AllocateProducerIds(number + 1)))
            status = logs.log.status[0]
            assert status.last - status.cut <= SMALL.entries_max + 2
            # The worst power cut of all, after every single entry.
            with Logs(database.after_power_cut()) as cut:
                assert cut.log.status[0].applied == number + 1
                assert held_rows(cut.metadata) == held_rows(logs.metadata)
        assert logs.log.status[0].cut > 40
    assert sum(key[2] == 4 for key, _ in database.rows(fmt.META_LOG)[:-1]) <= 6


def test_a_log_of_large_entries_is_bounded_by_its_size() -> None:
    limits = LogLimits(entries_max=1_000, entries_kept=500, size_max=100_000)
    with Logs(SimulatedDatabase(), limits) as logs:
        for _ in range(30):
            logs.metadata.propose(data_of(RegisterNode(1, "x" * 10_000)))
        status = logs.log.status[0]
        assert status.last - status.cut < 15


def test_a_failed_sync_stops_the_log_for_good_and_reads_go_on() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        logs.metadata.propose(data_of(AllocateProducerIds(10)))
        database.fail_next("sync", broken())
        with pytest.raises(DiskFailedError):
            logs.metadata.propose(data_of(AllocateProducerIds(10)))
        with pytest.raises(DiskFailedError):
            logs.metadata.propose(data_of(AllocateProducerIds(10)))
        with pytest.raises(DiskFailedError):
            logs.offsets.propose(epochs_data("g"))
        assert isinstance(logs.log.failure, DiskFailedError)
        assert held_rows(logs.metadata)
    with pytest.raises(DiskFailedError):
        logs.metadata.propose(data_of(AllocateProducerIds(10)))


def test_while_little_room_is_left_proposals_are_refused_and_the_log_goes_on_later() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        logs.metadata.propose(data_of(AllocateProducerIds(10)))
        database.is_full = True
        for _ in range(3):
            with pytest.raises(DiskFullError):
                logs.metadata.propose(data_of(AllocateProducerIds(10)))
        assert logs.log.failure is None
        assert held_rows(logs.metadata)
        database.is_full = False
        answer = logs.metadata.propose(data_of(AllocateProducerIds(10)))
        assert isinstance(answer, Applied)
        assert answer.result == ProducerIds(11, 10)


def test_a_full_disk_that_rocksdb_meets_stops_the_log_with_an_error_that_says_so() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        database.fail_next("write", full())
        with pytest.raises(DiskFullError):
            logs.metadata.propose(data_of(AllocateProducerIds(10)))
        with pytest.raises(DiskFullError):
            logs.metadata.propose(data_of(AllocateProducerIds(10)))


def test_a_write_that_was_refused_before_it_began_fails_alone() -> None:
    database = SimulatedDatabase()
    with Logs(database, SMALL) as logs:
        for number in range(20):
            if number % 3 == 0:
                database.fail_next("write", busy())
                with pytest.raises(BusyError):
                    logs.metadata.propose(data_of(AllocateProducerIds(10)))
            logs.metadata.propose(data_of(AllocateProducerIds(10)))
        assert logs.log.failure is None
        assert logs.log.status[0].applied == 20
    with Logs(database.after_power_cut()) as again:
        assert again.log.status[0].applied == 20


def test_concurrent_proposals_share_syncs_and_get_their_own_answers() -> None:
    database = SimulatedDatabase()
    firsts: list[int] = []

    def propose(logs: Logs) -> None:
        for _ in range(25):
            answer = logs.metadata.propose(data_of(AllocateProducerIds(3)))
            assert isinstance(answer, Applied)
            assert isinstance(answer.result, ProducerIds)
            firsts.append(answer.result.first)

    with Logs(database) as logs:
        threads = [threading.Thread(target=propose, args=(logs,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(firsts) == list(range(1, 600, 3))
    assert database.operations.count("sync") <= 202


def epochs_data(group: str) -> bytes:
    command = TakeEpochs((GroupName("default", group),), node=1)
    return offset.encode_request(OffsetRequest(1000, command))


def test_a_turn_takes_proposals_of_all_groups_and_syncs_once() -> None:
    database = SimulatedDatabase()
    log = StandaloneLog(database, node_id=1)
    meta = log.add_group(METADATA, MetadataMachine())
    offsets = log.add_group(offset_group_name(0), OffsetMachine())
    threads = [
        threading.Thread(target=meta.propose, args=(data_of(AllocateProducerIds(1)),)),
        threading.Thread(target=offsets.propose, args=(epochs_data("g"),)),
    ]
    for thread in threads:
        thread.start()
    while not (meta.has_work and offsets.has_work):
        pass
    before = database.operations.count("sync")
    log.turn()
    for thread in threads:
        thread.join()
    assert database.operations.count("sync") == before + 1
    log.close()


def test_a_proposal_of_the_largest_size_fits_beside_a_flood_of_others() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        size = ENTRY_SIZE_MAX - len(data_of(RegisterNode(1, ""))) - 8
        threads = [
            threading.Thread(
                target=logs.metadata.propose, args=(data_of(RegisterNode(1, "x" * size)),)
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert logs.log.status[0].applied == 4
    assert max(batch.size for batch in database.batches) <= 2 * BATCH_SIZE_MAX


def test_what_is_no_request_is_refused_and_never_logged() -> None:
    with Logs(SimulatedDatabase()) as logs:
        for bad in (b"", b"\xc1", b"garbage", epochs_data("g"), b"x" * (ENTRY_SIZE_MAX + 1)):
            with pytest.raises(BadRequestError):
                logs.metadata.propose(bad)
        assert logs.log.status[0].last == 0


def test_a_closed_log_finishes_what_is_queued_and_refuses_the_rest() -> None:
    logs = Logs(SimulatedDatabase())
    logs.metadata.propose(data_of(AllocateProducerIds(1)))
    logs.log.close()
    logs.log.close()
    with pytest.raises(ClosedError):
        logs.metadata.propose(data_of(AllocateProducerIds(1)))


def test_a_missing_entry_is_reported_and_not_stepped_over() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        for _ in range(5):
            logs.metadata.propose(data_of(AllocateProducerIds(1)))
    damage = Batch()
    damage.delete(fmt.META_LOG, fmt.entry_key(0, 3))
    database.write(damage)
    with pytest.raises(CorruptionError, match="entry after 2 is missing"):
        Logs(database)


def test_a_log_that_ends_before_its_state_is_reported() -> None:
    database = SimulatedDatabase()
    with Logs(database) as logs:
        for _ in range(3):
            logs.metadata.propose(data_of(AllocateProducerIds(1)))
    damage = Batch()
    damage.delete(fmt.META_LOG, fmt.entry_key(0, 3))
    database.write(damage)
    with pytest.raises(CorruptionError, match="entry 3 is applied"):
        Logs(database)


def put_entries(database: SimulatedDatabase, *entries: fmt.Entry) -> None:
    batch = Batch()
    for entry in entries:
        batch.put(fmt.META_LOG, fmt.entry_key(0, entry.index), fmt.encode_entry(entry))
    database.write(batch)


def test_what_a_raft_leader_left_is_applied_with_its_empty_entries_and_terms() -> None:
    database = SimulatedDatabase()
    with Logs(database):
        pass
    put_entries(
        database,
        fmt.Entry(index=1, term=2, data=b""),
        fmt.Entry(index=2, term=2, data=data_of(AllocateProducerIds(7))),
        fmt.Entry(index=3, term=5, data=b""),
    )
    with Logs(database) as logs:
        status = logs.log.status[0]
        assert (status.applied, status.term) == (3, 5)
        answer = logs.metadata.propose(data_of(AllocateProducerIds(1)))
        assert isinstance(answer, Applied)
        assert answer.result == ProducerIds(8, 1)
    row = database.get(fmt.META_LOG, fmt.entry_key(0, 4))
    assert row is not None
    assert fmt.decode_entry(4, row).term == 5
    hard_state = database.get(fmt.META_LOG, fmt.hard_state_key(0))
    assert hard_state is not None
    assert fmt.HARD_STATE.unpack(hard_state) == (5, 1, 4)


def test_a_change_of_members_that_was_not_applied_is_left_to_the_cluster() -> None:
    database = SimulatedDatabase()
    with Logs(database):
        pass
    put_entries(database, fmt.Entry(index=1, term=1, data=b"x", kind=fmt.ENTRY_CONF_CHANGE))
    with pytest.raises(NotAStoreError, match="start the node in its cluster"):
        Logs(database)


def test_an_entry_of_a_newer_release_is_refused_with_its_number() -> None:
    database = SimulatedDatabase()
    with Logs(database):
        pass
    put_entries(database, fmt.Entry(index=1, term=1, data=b"\x93\x01\x91\xa3new\xa0"))
    with pytest.raises(NotAStoreError, match="entry 1 of metadata cannot be read"):
        Logs(database)


def test_a_directory_of_a_larger_group_does_not_run_alone() -> None:
    database = SimulatedDatabase()
    with Logs(database):
        pass
    batch = Batch()
    members = fmt.encode_configuration(fmt.Configuration(voters=(1, 2, 3)))
    batch.put(fmt.META_LOG, fmt.configuration_key(0), members)
    database.write(batch)
    with pytest.raises(NotAStoreError, match="voters 1, 2, 3"):
        Logs(database)


def test_a_mistake_of_our_own_wakes_everybody_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(MetadataMachine):
        def apply(self, view: object, request: object) -> Answer:
            raise AssertionError("a broken invariant")

    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    log = StandaloneLog(SimulatedDatabase(), node_id=1)
    group = log.add_group(METADATA, Broken())
    log.start()
    with pytest.raises(ClosedError, match="a broken invariant"):
        group.propose(data_of(AllocateProducerIds(1)))
    log.close()
    assert len(seen) == 1
