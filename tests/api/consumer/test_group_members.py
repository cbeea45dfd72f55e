"""Consumers of one group share its partitions, in this process and over a network."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.api import Consumer, Store
from penstock.api.backend import TopicPartition
from penstock.api.topic_info import GroupMember
from penstock.errors import (
    BadRequestError,
    GroupFencedError,
    GroupNotEmptyError,
    UnknownGroupError,
)
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings


@pytest.fixture(params=["embedded", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "embedded":
        with penstock.open(tmp_path / "data") as opened:
            yield opened
        return
    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    with (
        Server(str(tmp_path / "data"), merge_settings(EMBEDDED, ports)) as server,
        penstock.connect(f"127.0.0.1:{server.port}") as opened,
    ):
        yield opened


def fill(store: Store, values: int = 400, partitions: int = 4) -> None:
    work = store.create_topic("work", partitions=partitions)
    work.write_many([b"%d" % number for number in range(values)])


def drain(consumer: Consumer) -> list[int]:
    return [int(message.value or b"") for message in consumer]


def members_of(store: Store) -> tuple[GroupMember, ...]:
    try:
        return store.describe_group("workers").members
    except UnknownGroupError:  # without members and without commits there is none
        return ()


def until(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def poll_until(happened: Callable[[], bool], *consumers: Consumer) -> None:
    def step() -> bool:
        for consumer in consumers:
            consumer.poll()
        return happened()

    until(step)


def test_two_consumers_of_one_thread_share_the_records(store: Store) -> None:
    fill(store)
    with store.consumer("workers", ["work"]) as a, store.consumer("workers", ["work"]) as b:
        # The group has decided that `a` gives up two partitions.
        until(lambda: sorted(len(member.partitions) for member in members_of(store)) == [0, 2])
        of_a, of_b = drain(a), drain(b)

        def has_the_rest() -> bool:
            """What `a` gives up goes to `b` with the rebalance after that."""
            of_b.extend(drain(b))
            return len(of_b) >= 200

        until(has_the_rest)
        assert len(of_a) == len(of_b) == 200
        assert sorted(of_a + of_b) == list(range(400))
        a.commit()
        b.commit()
        assert store.describe_group("workers").total_lag == 0


def test_threads_that_come_and_go_read_every_record_and_commit(store: Store) -> None:
    fill(store, 2_000)
    seen: list[int] = []
    failures: list[BaseException] = []

    def work(stop_after: int) -> None:
        try:
            with store.consumer("workers", ["work"]) as consumer:
                for handled, message in enumerate(consumer.follow(timeout=1.5), 1):
                    seen.append(int(message.value or b""))
                    if handled % 50 == 0:
                        consumer.commit()
                    if handled == stop_after:
                        break
                consumer.commit()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(count,)) for count in (200, 5_000, 5_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert set(seen) == set(range(2_000))
    assert store.describe_group("workers").total_lag == 0


def test_a_member_that_closes_hands_its_partitions_to_the_others(store: Store) -> None:
    fill(store)
    calls: list[tuple[str, list[TopicPartition]]] = []
    a = store.consumer(
        "workers",
        ["work"],
        on_assigned=lambda parts: calls.append(("assigned", parts)),
        on_revoked=lambda parts: calls.append(("revoked", parts)),
    )
    everything = [("work", partition) for partition in range(4)]
    assert calls == [("assigned", everything)]
    b = store.consumer("workers", ["work"])
    poll_until(lambda: len(a.positions) == len(b.positions) == 2, a, b)
    revoked = [parts for name, parts in calls if name == "revoked"]
    assert sorted(part for parts in revoked for part in parts) == sorted(b.positions)
    b.close()
    poll_until(lambda: sorted(a.positions) == everything, a)
    a.close()


def test_a_revoked_partition_can_be_committed_by_its_callback_and_goes_on_there(
    store: Store,
) -> None:
    fill(store)
    a: Consumer
    a = store.consumer("workers", ["work"], on_revoked=lambda _: a.commit())
    of_a = [int(message.value or b"") for message in a.poll(max_records=300)]
    with store.consumer("workers", ["work"]) as b:
        rest: list[int] = []

        def all_read() -> bool:
            rest.extend(int(message.value or b"") for one in (a, b) for message in one.poll())
            return len(of_a) + len(rest) >= 400

        until(all_read)
        assert sorted(of_a + rest) == list(range(400))
        a.close()


def test_a_group_with_members_is_neither_reset_nor_deleted_nor_committed_from_outside(
    store: Store,
) -> None:
    fill(store)
    with store.consumer("workers", ["work"]) as member:
        drain(member)
        member.commit()
        outside = store.consumer("workers", ["work"], assign="all")
        assert outside.poll() == []
        calls: list[Callable[[], None]] = [
            lambda: store.reset_group("workers", {("work", 0): 0}),
            lambda: store.delete_group("workers"),
            lambda: outside.commit({("work", 0): 0}),
        ]
        for refused in calls:
            with pytest.raises(GroupNotEmptyError, match="penstock-") as caught:
                refused()
            assert "penstock-" in caught.value.members
    store.reset_group("workers", {("work", 0): 0})
    assert len(store.consumer("workers", ["work"], assign="all").poll()) == 100
    store.delete_group("workers")


def test_describing_a_group_shows_state_members_and_who_reads_what(store: Store) -> None:
    fill(store)
    with store.consumer("workers", ["work"]) as a, store.consumer("workers", ["work"]) as b:
        poll_until(lambda: len(a.positions) == len(b.positions) == 2, a, b)
        info = store.describe_group("workers")  # nothing was committed yet
        assert (info.state, info.protocol) == ("Stable", "cooperative-sticky")
        shown = sorted(part for member in info.members for part in member.partitions)
        assert shown == [("work", partition) for partition in range(4)]
        assert {len(member.partitions) for member in info.members} == {2}
        assert store.groups() == ["workers"]
        a.commit()
    info = store.describe_group("workers")
    assert (info.state, info.members) == ("Empty", ())


def test_a_member_that_does_not_read_loses_its_partitions_and_cannot_commit(store: Store) -> None:
    fill(store)
    lost: list[TopicPartition] = []
    a = store.consumer("workers", ["work"], max_poll_interval=0.3, on_lost=lost.extend)
    drain(a)
    until(lambda: not members_of(store))
    with store.consumer("workers", ["work"]) as b:
        assert len(drain(b)) == 400
        b.commit()
        with pytest.raises(GroupFencedError):
            a.commit()
        with pytest.raises(GroupFencedError):
            a.commit({("work", 0): 7})
        assert b.committed() == {("work", partition): 100 for partition in range(4)}
    assert a.poll() == []  # joins again, and goes on where the group is
    # On a busy machine it may have lost them before: between two polls of `drain`.
    everything = [("work", partition) for partition in range(4)]
    assert lost == everything * (len(lost) // 4)
    assert lost
    a.commit()
    a.close()


def test_a_commit_of_a_partition_that_another_member_has_is_refused(store: Store) -> None:
    fill(store)
    with store.consumer("workers", ["work"]) as a, store.consumer("workers", ["work"]) as b:
        poll_until(lambda: len(a.positions) == len(b.positions) == 2, a, b)
        theirs = next(iter(b.positions))
        with pytest.raises(GroupFencedError):
            a.commit({theirs: 1})
        b.commit({theirs: 2})
        assert a.committed()[theirs] == 2


def test_explicit_partitions_are_read_outside_the_group(store: Store) -> None:
    fill(store)
    with store.consumer("workers", ["work"], assign=[("work", 1), ("work", 3)]) as consumer:
        assert len(drain(consumer)) == 200
        assert sorted(consumer.positions) == [("work", 1), ("work", 3)]
        consumer.commit()
    assert store.describe_group("workers").state == "Empty"
    with pytest.raises(BadRequestError):
        store.consumer("workers", ["work"], assign=[("other", 1)])
    with pytest.raises(BadRequestError):
        store.consumer("workers", ["work"], assign="some")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError):
        store.consumer("workers", ["work"], asign="all")  # type: ignore[call-arg]  # wrong on purpose


def test_a_static_member_gets_its_partitions_back_without_a_rebalance(store: Store) -> None:
    fill(store)
    other = store.consumer("workers", ["work"], instance_id="other")
    first = store.consumer("workers", ["work"], instance_id="one")
    poll_until(lambda: len(first.positions) == len(other.positions) == 2, first, other)
    had = set(first.positions)
    first.close()
    again = store.consumer("workers", ["work"], instance_id="one")
    assert set(again.positions) == had
    assert len(other.positions) == 2
    again.close()
    other.close()


def test_a_consumer_that_is_dropped_leaves(store: Store) -> None:
    fill(store)
    assert len(drain(store.consumer("workers", ["work"]))) == 400
    assert len(drain(store.consumer("workers", ["work"]))) == 400
    until(lambda: store.groups() == [])


def test_members_of_different_topics_read_their_own(store: Store) -> None:
    fill(store)
    store.create_topic("other", partitions=2).write_many([b"7"] * 10)
    with (
        store.consumer("workers", ["work"]) as a,
        store.consumer("workers", ["other", "work"]) as b,
    ):
        poll_until(lambda: len(a.positions) == len(b.positions) == 3, a, b)
        assert {topic for topic, _ in a.positions} == {"work"}


def test_new_partitions_of_a_topic_are_shared_too(store: Store) -> None:
    fill(store)
    with store.consumer("workers", ["work"]) as a, store.consumer("workers", ["work"]) as b:
        poll_until(lambda: len(a.positions) == len(b.positions) == 2, a, b)
        store["work"].alter(partitions=8)
        poll_until(lambda: len(a.positions) == len(b.positions) == 4, a, b)
        assert not set(a.positions) & set(b.positions)


def test_coroutines_share_a_group_too(tmp_path: Path) -> None:
    called: list[list[TopicPartition]] = []

    async def share() -> list[int]:
        async with await aio.open(tmp_path / "data") as store:
            work = await store.create_topic("work", partitions=4)
            await work.write_many([b"%d" % number for number in range(40)])
            found: list[int] = []
            async with (
                store.consumer("g", ["work"], on_assigned=called.append) as a,
                store.consumer("g", ["work"]) as b,
            ):
                for consumer in (a, b):
                    found += [int(message.value or b"") async for message in consumer]
                    assert len(await consumer.positions()) == 2
                    assert await consumer.errors() == {}
                    await consumer.commit()
                with pytest.raises(GroupNotEmptyError):
                    await store.delete_group("g")
            await store.delete_group("g")
            with pytest.raises(TypeError):
                store.consumer("g", ["work"], asign="all")  # type: ignore[call-arg]  # on purpose
            return found

    assert sorted(asyncio.run(share())) == list(range(40))
    assert called[0] == [("work", partition) for partition in range(4)]


def test_a_program_that_ends_without_closing_leaves_its_groups(tmp_path: Path) -> None:
    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, ports)) as server:
        address = f"127.0.0.1:{server.port}"
        code = (
            f"import penstock; store = penstock.connect({address!r}); "
            "store.create_topic('work').write(b'v'); "
            "consumer = store.consumer('g', ['work'], session_timeout=60); "
            "print(len(list(consumer)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=60, check=True, text=True
        )
        assert done.stdout.strip() == "1"
        with penstock.connect(address) as store, store.consumer("g", ["work"]) as next_one:
            assert len(list(next_one)) == 1
