"""Each anomaly is planted into a correct history, and is the only one that is found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf

import pytest
from tests.cluster.checker import PER_KIND_MAX, check
from tests.cluster.history import (
    Client,
    Commit,
    FinalLog,
    History,
    Outcome,
    Transaction,
    number_of,
    value_of,
    writer_of,
)

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
WRITER, COPIER = 1, 2
LOG, COPIES = 0, 1


def correct() -> History:
    """A writer of shard 0, one of whose writes has no answer and one of which failed; a copier that
    committed a transaction in shard 1 and aborted another; a reader of both; a group."""
    writer, copier = Client("writer", WRITER), Client("copier", COPIER)
    reader, group = Client("reader"), Client("group")
    log, copies = FinalLog(), FinalLog()
    for number in range(6):
        outcome = {3: UNKNOWN, 4: FAILED}.get(number, OK)
        times = (10.0 + number, 10.5 + number)
        value = value_of(WRITER, number)
        # Number 3 was stored although its answer was lost, number 4 was not.
        offset = number if number < 4 else number - 1
        writer.wrote(LOG, value, times, outcome, offset if outcome is OK else -1)
        if outcome is not FAILED:
            log.put(offset, value)
    writer.end(50.0)
    for number in (0, 1):
        copier.wrote(COPIES, value_of(COPIER, number), (30.0, 30.5), OK, number, transaction=7)
        copies.put(number, value_of(COPIER, number))
        aborted = value_of(COPIER, 2 + number)
        copier.wrote(COPIES, aborted, (33.0, 33.5), OK, 3 + number, transaction=8)
    # Offsets 2 and 5 are markers; the copier has copied records 2 and 3 again.
    for number in (2, 3):
        value = value_of(COPIER, number, attempt=1)
        copier.wrote(COPIES, value, (36.0, 36.5), OK, 4 + number, transaction=9)
        copies.put(4 + number, value)
    copier.transactions = [
        Transaction(7, 31.0, 32.0, OK),
        Transaction(8, inf, 34.0, FAILED),
        Transaction(9, 37.0, 38.0, OK),
    ]
    copier.end(50.0)
    reader.polled(LOG, 0, (15.0, 20.0), [0, 1, 2], values(log, 0, 1, 2))
    reader.polled(LOG, 3, (21.0, 22.0), [3, 4], values(log, 3, 4))
    reader.polled(COPIES, 0, (39.0, 40.0), [0, 1, 6, 7], values(copies, 0, 1, 6, 7))
    reader.end(50.0)
    group.commits = [
        Commit("g", LOG, 3, 22.0, 23.0, OK, is_fetch=False),
        Commit("g", LOG, 5, 24.0, 25.0, UNKNOWN, is_fetch=False),
        Commit("g", LOG, 3, 26.0, 27.0, OK, is_fetch=True),
    ]
    group.end(50.0)
    return History(
        [writer, copier, reader, group], {LOG: log, COPIES: copies}, healed_at=45.0, ended_at=60.0
    )


def values(log: FinalLog, *offsets: int) -> list[int]:
    return [log.get(offset) for offset in offsets]


def client(history: History, name: str) -> Client:
    return next(one for one in history.clients if one.name == name)


def plant_lost_write(history: History) -> None:
    client(history, "writer").wrote(LOG, value_of(WRITER, 6), (17.0, 18.0), OK, 5)


def plant_lost_write_of_a_transaction(history: History) -> None:
    copier = client(history, "copier")
    copier.wrote(COPIES, value_of(COPIER, 5), (36.5, 36.8), OK, 9, transaction=9)


def plant_duplicate(history: History) -> None:
    # As a repeat that is not recognized, of the newest record: the order stays right.
    history.final[LOG].put(5, value_of(WRITER, 5))


def plant_copy_of_both_attempts(history: History) -> None:
    copier = client(history, "copier")
    value = value_of(COPIER, 3, attempt=2)
    copier.wrote(COPIES, value, (40.0, 40.1), OK, 9, transaction=10)
    copier.transactions.append(Transaction(10, 41.0, 42.0, OK))
    history.final[COPIES].put(9, value)


def plant_reordered_records(history: History) -> None:
    writer = client(history, "writer")
    for number, offset in ((8, 5), (7, 6)):
        # Both were on their way at one time, so that only their numbers tell.
        writer.wrote(LOG, value_of(WRITER, number), (17.0, 18.0), OK, offset)
        history.final[LOG].put(offset, value_of(WRITER, number))


def plant_two_leaders(history: History) -> None:
    other = Client("other", 5)
    # Begun when everything before was acknowledged, and stored in front of a record of then.
    other.wrote(LOG, value_of(5, 1), (19.0, 19.5), OK, 5)
    other.wrote(LOG, value_of(5, 2), (17.0, 18.0), OK, 6)
    other.is_ordered = False
    other.end(50.0)
    history.final[LOG].put(5, value_of(5, 1))
    history.final[LOG].put(6, value_of(5, 2))
    history.clients.append(other)


def plant_rewound_poll(history: History) -> None:
    log = history.final[LOG]
    client(history, "reader").polled(LOG, 2, (41.0, 42.0), [2, 1], values(log, 2, 1))


def plant_other_value_at_an_offset(history: History) -> None:
    client(history, "reader").polled(LOG, 1, (41.0, 42.0), [1], [value_of(WRITER, 2)])


def plant_acknowledgement_of_a_taken_offset(history: History) -> None:
    writer = client(history, "writer")
    writer.wrote(LOG, value_of(WRITER, 6), (17.0, 18.0), OK, 2)
    history.final[LOG].put(5, value_of(WRITER, 6))


def plant_read_of_an_aborted_record(history: History) -> None:
    client(history, "reader").polled(COPIES, 3, (41.0, 42.0), [3], [value_of(COPIER, 2)])


def plant_failed_write_that_shows(history: History) -> None:
    history.final[LOG].put(5, value_of(WRITER, 4))
    client(history, "writer").is_ordered = False


def plant_read_before_the_commit(history: History) -> None:
    copies = history.final[COPIES]
    client(history, "reader").polled(COPIES, 0, (30.5, 30.9), [0], values(copies, 0))


def plant_record_that_disappears(history: History) -> None:
    unknown = value_of(WRITER, 9)
    client(history, "writer").wrote(LOG, unknown, (17.0, 18.0), UNKNOWN)
    client(history, "reader").polled(LOG, 5, (20.0, 21.0), [5], [unknown])


def plant_poll_gap(history: History) -> None:
    log = history.final[LOG]
    client(history, "reader").polled(LOG, 1, (41.0, 42.0), [1, 3], values(log, 1, 3))


def plant_poll_gap_at_the_front(history: History) -> None:
    log = history.final[LOG]
    client(history, "reader").polled(LOG, 1, (41.0, 42.0), [2], values(log, 2))


def plant_lost_commit(history: History) -> None:
    fetched = Commit("g", LOG, 2, 26.0, 27.0, OK, is_fetch=True)
    client(history, "group").commits.append(fetched)


def plant_call_without_end(history: History) -> None:
    client(history, "reader").begin(46.0)


def plant_client_without_success(history: History) -> None:
    idle = Client("idle")
    idle.end(44.0)
    idle.notes.append("NotLeaderError: node 2")
    history.clients.append(idle)


PLANTED: list[tuple[Callable[[History], None], str]] = [
    (plant_lost_write, "lost"),
    (plant_lost_write_of_a_transaction, "lost"),
    (plant_lost_commit, "lost"),
    (plant_duplicate, "duplicate"),
    (plant_copy_of_both_attempts, "duplicate"),
    (plant_reordered_records, "reordered"),
    (plant_two_leaders, "reordered"),
    (plant_rewound_poll, "reordered"),
    (plant_other_value_at_an_offset, "inconsistent offset"),
    (plant_acknowledgement_of_a_taken_offset, "inconsistent offset"),
    (plant_read_of_an_aborted_record, "aborted read"),
    (plant_failed_write_that_shows, "aborted read"),
    (plant_read_before_the_commit, "read past commit"),
    (plant_record_that_disappears, "read past commit"),
    (plant_poll_gap, "poll gap"),
    (plant_poll_gap_at_the_front, "poll gap"),
    (plant_call_without_end, "stuck client"),
    (plant_client_without_success, "stuck client"),
]


def test_a_correct_history_has_no_anomaly() -> None:
    assert check(correct()) == []


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[one.__name__ for one, _ in PLANTED])
def test_a_planted_anomaly_is_found_and_nothing_else(
    plant: Callable[[History], None], kind: str
) -> None:
    history = correct()
    plant(history)
    found = check(history)
    assert {one.kind for one in found} == {kind}, found
    assert all(one.text for one in found)


def test_records_that_retention_deleted_are_not_lost() -> None:
    history = correct()
    shorter = FinalLog(start=2)
    for offset, value in history.final[LOG].items(2):
        shorter.put(offset, value)
    history.final[LOG] = shorter
    assert check(history) == []


def test_a_writer_that_repeats_may_store_a_record_twice() -> None:
    history = correct()
    plant_duplicate(history)
    client(history, "writer").is_exactly_once = False
    assert check(history) == []


def test_of_many_anomalies_a_bounded_number_is_listed() -> None:
    history = correct()
    writer = client(history, "writer")
    for number in range(10, 10 + 10 * PER_KIND_MAX):
        writer.wrote(LOG, value_of(WRITER, number), (17.0, 18.0), OK, number)
    found = check(history)
    assert [one.kind for one in found] == ["lost"] * PER_KIND_MAX


def test_a_value_tells_its_writer_and_its_number() -> None:
    value = value_of(3, 12_345_678_901, attempt=9)
    assert writer_of(value) == 3
    assert number_of(value) == 12_345_678_901
    assert value_of(3, 12_345_678_901) != value
    assert value.bit_length() < 64


def test_histories_are_compact() -> None:
    made = Client("writer", WRITER)
    for number in range(10_000):
        made.wrote(0, value_of(WRITER, number), (1.0, 2.0), OK, number)
        made.polled(0, number, (1.0, 2.0), [number], [value_of(WRITER, number)])
    size = sum(sys.getsizeof(one) for one in vars(made).values())
    assert size < 10_000 * 130
