"""Finds in the histories of clients what a log must never do. Pure functions.

lost                 an acknowledged write, or an acknowledged commit of a group, is gone
duplicate            one write is stored twice
reordered            records are not in the order in which they were written or read
inconsistent offset  two records at one offset
aborted read         a record of an aborted transaction or a failed write was read
read past commit     a record was read before its commit, or disappeared after it was read
poll gap             a reader skipped a record that was there
stuck client         a client did not get on although all nodes ran again
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from tests.cluster.history import (
    ABSENT,
    NO_OFFSET,
    NO_TRANSACTION,
    Client,
    History,
    Outcome,
    Poll,
    Transaction,
    Write,
    identity_of,
    number_of,
    writer_of,
)

PER_KIND_MAX: Final = 20
"""Anomalies of one kind that are listed; a broken cluster has as many as writes."""


class Anomaly(NamedTuple):
    kind: str
    shard: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind}, shard {self.shard}: {self.text}"


def check(history: History) -> list[Anomaly]:
    """Return the anomalies of a history, at most `PER_KIND_MAX` of each kind."""
    found: dict[str, list[Anomaly]] = {}
    for one in chain(
        _lost(history),
        _duplicates(history),
        _reordered_by_producer(history),
        _reordered_in_time(history),
        _inconsistent_offsets(history),
        _aborted_reads(history),
        _early_reads(history),
        _vanished_reads(history),
        _poll_gaps(history),
        _lost_commits(history),
        _stuck(history),
    ):
        same = found.setdefault(one.kind, [])
        if len(same) < PER_KIND_MAX:
            same.append(one)
    return [one for same in found.values() for one in same]


def describe(value: int) -> str:
    attempt = value & 1023
    tail = f" (attempt {attempt})" if attempt else ""
    return f"record {number_of(value)} of writer {writer_of(value)}{tail}"


def _transactions(client: Client) -> dict[int, Transaction]:
    return {one.number: one for one in client.transactions}


def _is_stored(write: Write, transactions: dict[int, Transaction]) -> bool:
    """Return whether the client was promised that a write is stored for good."""
    if write.outcome is not Outcome.OK:
        return False
    if write.transaction == NO_TRANSACTION:
        return True
    ended = transactions.get(write.transaction)
    return ended is not None and ended.outcome is Outcome.OK


def _positions(history: History) -> dict[int, dict[int, int]]:
    """Return the first offset of each value, by shard."""
    places: dict[int, dict[int, int]] = {}
    for shard, log in history.logs(is_committed=False).items():
        places[shard] = {}
        for offset, value in log.items():
            places[shard].setdefault(value, offset)
    return places


def _lost(history: History) -> Iterator[Anomaly]:
    stored = {shard: {value for _, value in log.items()} for shard, log in history.final.items()}
    for client in history.clients:
        transactions = _transactions(client)
        for write in client.writes():
            if not _is_stored(write, transactions) or write.value in stored.get(write.shard, ()):
                continue
            log = history.final.get(write.shard)
            if log is not None and 0 <= write.offset < log.start:
                continue  # retention has deleted it
            where = f" at offset {write.offset}" if write.offset != NO_OFFSET else ""
            text = f"{describe(write.value)} was acknowledged{where} and is gone"
            yield Anomaly("lost", write.shard, text)


def _duplicates(history: History) -> Iterator[Anomaly]:
    once = {client.writer for client in history.clients if client.is_exactly_once}
    for shard, log in history.final.items():
        first: dict[int, int] = {}
        for offset, value in log.items():
            if writer_of(value) not in once:
                continue
            before = first.setdefault(identity_of(value), offset)
            if before != offset:
                text = f"{describe(value)} is stored at offsets {before} and {offset}"
                yield Anomaly("duplicate", shard, text)


def _reordered_by_producer(history: History) -> Iterator[Anomaly]:
    ordered = {client.writer for client in history.clients if client.is_ordered and client.writer}
    for shard, log in history.final.items():
        last: dict[int, int] = {}
        for offset, value in log.items():
            writer, number = writer_of(value), number_of(value)
            if writer not in ordered:
                continue
            if number < last.get(writer, -1):
                text = f"{describe(value)} at offset {offset} follows its record {last[writer]}"
                yield Anomaly("reordered", shard, text)
            last[writer] = max(number, last.get(writer, -1))
    for client in history.clients:
        yield from _rewound_polls(client)


def _rewound_polls(client: Client) -> Iterator[Anomaly]:
    """An answer has ascending offsets from the position on that was asked for."""
    for poll in client.polls():
        before = poll.position - 1
        for offset in poll.offsets:
            if offset <= before:
                text = (
                    f"{client.name} asked from {poll.position} on and got {offset} after {before}"
                )
                yield Anomaly("reordered", poll.shard, text)
            before = max(before, offset)


def _reordered_in_time(history: History) -> Iterator[Anomaly]:
    """A write that began after another one was acknowledged has the greater offset, whoever wrote
    them: else two leaders appended at one time."""
    places = _positions(history)
    by_shard: dict[int, list[tuple[int, Write]]] = {}
    for client in history.clients:
        for write in client.writes():
            offset = places.get(write.shard, {}).get(write.value)
            if write.outcome is Outcome.OK and offset is not None:
                by_shard.setdefault(write.shard, []).append((offset, write))
    for shard, writes in by_shard.items():
        writes.sort(key=lambda pair: pair[0], reverse=True)
        soonest, which = inf, (0, 0)
        for offset, write in writes:
            if write.began > soonest:
                text = (
                    f"{describe(write.value)} at offset {offset} was begun after "
                    f"{describe(which[0])} at offset {which[1]} was acknowledged"
                )
                yield Anomaly("reordered", shard, text)
            if write.ended < soonest:
                soonest, which = write.ended, (write.value, offset)


def _observed(history: History) -> Iterator[tuple[str, int, int, int]]:
    """Yield who saw which value at which offset of a shard: readers, and acknowledgements."""
    for client in history.clients:
        for poll in client.polls():
            for offset, value in zip(poll.offsets, poll.values, strict=True):
                yield client.name, poll.shard, offset, value
        for write in client.writes():
            if write.outcome is Outcome.OK and write.offset != NO_OFFSET:
                yield client.name, write.shard, write.offset, write.value


def _inconsistent_offsets(history: History) -> Iterator[Anomaly]:
    seen: dict[tuple[int, int], int] = {}
    for logs in (history.final, history.uncommitted):
        for shard, log in logs.items():
            for offset, value in log.items():
                seen.setdefault((shard, offset), value)
                if seen[shard, offset] != value:
                    text = f"offset {offset}: readers disagree at the end"
                    yield Anomaly("inconsistent offset", shard, text)
    for name, shard, offset, value in _observed(history):
        other = seen.setdefault((shard, offset), value)
        if other != value:
            text = f"offset {offset}: {name} saw {describe(value)}, others {describe(other)}"
            yield Anomaly("inconsistent offset", shard, text)


def _committed_polls(history: History) -> Iterator[tuple[Client, Poll]]:
    for client in history.clients:
        if client.is_committed_reader:
            for poll in client.polls():
                yield client, poll


def _refused(history: History) -> dict[int, str]:
    """Return the values that no reader of committed records may see, and why."""
    refused: dict[int, str] = {}
    for client in history.clients:
        aborted = {one.number for one in client.transactions if one.outcome is Outcome.FAILED}
        for write in client.writes():
            if write.outcome is Outcome.FAILED:
                refused[write.value] = "a write that failed"
            elif write.transaction in aborted:
                refused[write.value] = f"aborted transaction {write.transaction}"
    return refused


def _aborted_reads(history: History) -> Iterator[Anomaly]:
    refused = _refused(history)
    for client, poll in _committed_polls(history):
        for offset, value in zip(poll.offsets, poll.values, strict=True):
            if value in refused:
                text = f"{client.name} read {describe(value)} at {offset}, of {refused[value]}"
                yield Anomaly("aborted read", poll.shard, text)
    for shard, log in history.final.items():
        for offset, value in log.items():
            if value in refused:
                text = f"{describe(value)} of {refused[value]} shows at offset {offset}"
                yield Anomaly("aborted read", shard, text)


def _early_reads(history: History) -> Iterator[Anomaly]:
    """A record of a transaction was read before its producer asked to commit it; any record before
    its write began."""
    earliest: dict[int, float] = {}
    for client in history.clients:
        transactions = _transactions(client)
        for write in client.writes():
            allowed = write.began
            if write.transaction in transactions:
                ended = transactions[write.transaction]
                allowed = -inf if ended.outcome is Outcome.FAILED else ended.commit_began
            elif write.transaction != NO_TRANSACTION:
                allowed = inf
            earliest[write.value] = allowed
    for client, poll in _committed_polls(history):
        for offset, value in zip(poll.offsets, poll.values, strict=True):
            if poll.ended < earliest.get(value, -inf):
                text = f"{client.name} read {describe(value)} at {offset} before its commit"
                yield Anomaly("read past commit", poll.shard, text)


def _vanished_reads(history: History) -> Iterator[Anomaly]:
    refused = _refused(history)
    for client in history.clients:
        logs = history.logs(is_committed=client.is_committed_reader)
        for poll in client.polls():
            log = logs.get(poll.shard)
            if log is None:
                continue
            for offset, value in zip(poll.offsets, poll.values, strict=True):
                is_gone = offset >= log.start and log.get(offset) == ABSENT
                if is_gone and value not in refused:
                    text = f"{client.name} read {describe(value)} at {offset}, which is gone"
                    yield Anomaly("read past commit", poll.shard, text)


def _poll_gaps(history: History) -> Iterator[Anomaly]:
    for client in history.clients:
        logs = history.logs(is_committed=client.is_committed_reader)
        for poll in client.polls():
            log = logs.get(poll.shard)
            if log is None or not poll.offsets:
                continue
            position = max(poll.position, log.start)
            for offset in poll.offsets:
                skipped = next(log.items(position, offset), None)
                if skipped is not None:
                    text = (
                        f"{client.name} asked from {position} on and got {offset}: it skipped "
                        f"{describe(skipped[1])} at {skipped[0]}"
                    )
                    yield Anomaly("poll gap", poll.shard, text)
                position = max(position, offset + 1)


def _lost_commits(history: History) -> Iterator[Anomaly]:
    """A fetched offset of a group is at least every offset whose commit ended before the fetch.
    The committers of a run never go back."""
    acknowledged: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for client in history.clients:
        for one in client.commits:
            if not one.is_fetch and one.outcome is Outcome.OK:
                acknowledged.setdefault((one.group, one.shard), []).append((one.ended, one.offset))
    for client in history.clients:
        for one in client.commits:
            if not one.is_fetch or one.outcome is not Outcome.OK:
                continue
            known = acknowledged.get((one.group, one.shard), [])
            wanted = max((offset for ended, offset in known if ended < one.began), default=-1)
            if one.offset < wanted:
                text = (
                    f"group {one.group} had committed {wanted}, and {client.name} got {one.offset}"
                )
                yield Anomaly("lost", one.shard, text)


def _stuck(history: History) -> Iterator[Anomaly]:
    for client in history.clients:
        if client.open_since is not None:
            seconds = history.ended_at - client.open_since
            text = f"a call of {client.name} did not end within {seconds:.0f} s"
            yield Anomaly("stuck client", -1, text)
        elif history.healed_at and client.last_ok < history.healed_at:
            seconds = history.ended_at - history.healed_at
            why = f"; its last error: {client.notes[-1]}" if client.notes else ""
            text = f"{client.name} succeeded in nothing for {seconds:.0f} s of rest{why}"
            yield Anomaly("stuck client", -1, text)
