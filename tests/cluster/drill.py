"""A drill: a cluster of real processes under load and faults, and the check of what clients saw.

usage: python -m tests.cluster.drill --seconds 60 --seed 1 [--nodes 3] [--replication 1]
       [--storage segment] [--faults kill,pause] [--network] [--flush sync] [--no-transactions]
       [--upgrade-from SRC] [--data DIR]

The plan of faults follows from the seed; which node is the leader then, and how the threads of the
clients alternate, does not. A failed drill prints seed, plan and anomalies.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.cluster import faults
from tests.cluster.checker import Anomaly, check
from tests.cluster.history import Client, FinalLog, History
from tests.cluster.network import missing_for_namespaces, network
from tests.cluster.nodes import Nodes, nodes, wait_until
from tests.cluster.workloads import (
    COPIES,
    KAFKA,
    PARTITIONS,
    TOPICS,
    ApiReader,
    ApiWriter,
    Copier,
    GroupMember,
    KafkaReader,
    KafkaWriter,
    Worker,
    decode,
    shard_of,
)

import penstock
from penstock.errors import (
    AlreadyExistsError,
    CorruptionError,
    NotSupportedError,
    RetryableError,
    StoreError,
)

REST_S: Final = 5.0
"""Time after the last fault in which clients go on at least."""
REST_MAX_S: Final = 60.0
"""Time after the last fault in which every client must succeed."""
JOIN_S: Final = 180.0
EVIDENCE_WAIT_S: Final = 5.0
QUICK: Final = ("kill", "kill all", "stop", "pause", "clock step")
ONE_COPY: Final = (*QUICK, "rolling", "disk full", "cut off", "one way", "ring", "loss")


@dataclass
class Options:
    """What a drill does."""

    seconds: float = 60.0
    seed: int = 1
    nodes: int = 3
    replication: int = 1
    storage: str = "segment"
    kinds: tuple[str, ...] = QUICK
    rest_s: tuple[float, float] = (1.0, 3.0)
    pause_max_s: float = 6.0
    has_network: bool = False
    has_transactions: bool = True
    flush: str = "async"
    old_tree: Path | None = None
    """The sources with which the nodes start; the fault `upgrade` changes them."""


@dataclass
class Report:
    """What a drill did and found."""

    options: Options
    plan: list[faults.Fault]
    trials: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    struck: list[str] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    counts: str = ""
    evidence: list[str] = field(default_factory=list)
    """What was found after anomalies."""

    def lines(self) -> list[str]:
        trials = ", ".join(f"{kind} {count}" for kind, count in sorted(self.trials.items()))
        given = self.options
        setup = f"{given.nodes} nodes, replication {given.replication}, {given.storage}"
        return [
            f"seed {given.seed}, {setup}: {self.counts}",
            f"trials: {trials or 'none'}",
            *(f"left out: {kind}: {reason}" for kind, reason in sorted(self.skipped.items())),
        ]

    def failure(self) -> str:
        return "\n".join(
            [
                *self.lines(),
                "plan:",
                *(f"  {fault}" for fault in self.plan),
                "what happened:",
                *(f"  {line}" for line in self.struck),
                "anomalies:",
                *(f"  {one}" for one in self.anomalies),
                "evidence:",
                *(f"  {line}" for line in self.evidence),
            ]
        )


class ReplicationMissingError(Exception):
    """Topics with several copies cannot be created."""


def run(options: Options, directory: Path, say: Callable[[str], None]) -> Report:
    """Run a drill; `say` gets a line for each fault."""
    with ExitStack() as stack:
        # One more than the nodes: another one may join.
        net = stack.enter_context(network(options.nodes + 1)) if options.has_network else None
        cluster = stack.enter_context(nodes(directory, options.nodes, net, options.old_tree))
        skipped = _missing(options, cluster)
        kinds = [kind for kind in options.kinds if kind not in skipped]
        report = Report(
            options,
            faults.plan(options.seed, options.seconds, kinds, options.rest_s, options.pause_max_s),
            skipped=skipped,
        )
        cluster.start_all()
        cluster.wait_ready()
        _create_topics(cluster, options)
        workers = _workers(cluster, options)
        with _working(workers) as stopping:
            _strike_all(cluster, report, say)
            healed_at = time.monotonic()
            _rest(workers)
            stopping.set()
        clients = [client for worker in workers for client in worker.histories()]
        history = _final_history(cluster, clients)
        history.healed_at, history.ended_at = healed_at, time.monotonic()
        report.anomalies = [*check(history), *_shorter(history)]
        report.counts = _counts(history, workers)
        if report.anomalies:
            report.evidence = _collect_evidence(cluster, history)
        return report


def _missing(options: Options, cluster: Nodes) -> dict[str, str]:
    """Return the faults that cannot be tried, and why."""
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    wanted = {faults.KINDS[kind].needs for kind in options.kinds}
    if wanted & {"device", "sync device"}:
        reasons["device"] = reasons["sync device"] = cluster.mount_devices()
    if "disk" in wanted and not cluster.mounted:
        reasons["disk"] = cluster.mount_small_disk(options.nodes)
    if options.flush != "sync":
        reasons["sync device"] = "needs topics that sync before they acknowledge: --flush sync"
    if options.storage == "memory":
        why = "records in memory do not survive it"
        reasons |= {"device": why, "sync device": why}
        found |= {"kill all": why} if "kill all" in options.kinds else {}
    if options.old_tree is None:
        reasons["old sources"] = "needs the sources of an earlier release: --upgrade-from"
    if cluster.network is None:
        reasons["network"] = missing_for_namespaces() or "this drill has no network of its own"
    for kind in options.kinds:
        needed = faults.KINDS[kind]
        if reasons.get(needed.needs):
            found[kind] = reasons[needed.needs]
        elif needed.copies > options.replication:
            found[kind] = f"needs {needed.copies} copies of a record"
    return found


def _create_topics(cluster: Nodes, options: Options) -> None:
    def creates(name: str) -> bool:
        try:
            with penstock.connect(list(cluster.storage.values())) as store:
                store.create_topic(
                    name,
                    partitions=PARTITIONS,
                    storage=options.storage,
                    replication=options.replication,
                    flush=options.flush,
                )
        except NotSupportedError as error:
            raise ReplicationMissingError(str(error)) from error
        except AlreadyExistsError:
            return True
        except RetryableError:
            return False
        return True

    for name in TOPICS:
        wait_until(partial(creates, name), f"topic {name} is created")

    def are_led() -> bool:
        return all(cluster.leader(name, one) for name in TOPICS for one in range(PARTITIONS))

    wait_until(are_led, "all shards have leaders")


def _workers(cluster: Nodes, options: Options) -> list[Worker]:
    stop, seed = threading.Event(), options.seed
    storage = list(cluster.storage.values())
    bootstrap = cluster.bootstrap
    return [
        ApiWriter("writer-1", 1, storage, seed, stop),
        ApiWriter("writer-2", 2, storage[1:] + storage[:1], seed, stop),
        *(
            ApiReader(f"reader-at-{node}", 0, [address], seed, stop)
            for node, address in cluster.storage.items()
        ),
        KafkaWriter("producer-1", 11, bootstrap, seed, stop),
        KafkaWriter("producer-2", 12, bootstrap, seed, stop),
        KafkaReader("consumer", KAFKA, bootstrap, seed, stop),
        GroupMember("member-1", "group", bootstrap, seed, stop),
        *(
            [
                KafkaReader("consumer-of-copies", COPIES, bootstrap, seed, stop),
                Copier("copier", bootstrap, seed, stop),
            ]
            if options.has_transactions
            else []
        ),
    ]


@contextmanager
def _working(workers: list[Worker]) -> Iterator[threading.Event]:
    """Run the clients; yield the event that stops them."""
    stopping = workers[0].stopping
    for worker in workers:
        worker.start()
    try:
        yield stopping
    finally:
        stopping.set()
        deadline = time.monotonic() + JOIN_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    _check_workers(workers)


def _check_workers(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.failure is not None:
            raise AssertionError(f"{worker.name} failed: {worker.failure!r}") from worker.failure


def _strike_all(cluster: Nodes, report: Report, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    for fault in report.plan:
        time.sleep(fault.rest_s)
        at = time.monotonic() - began
        line = f"{at:6.1f} s  {faults.strike(cluster, fault)}"
        report.struck.append(line)
        report.trials[fault.kind] += 1
        say(line)
        dead = cluster.dead()
        assert not dead, f"node {dead} ended by itself after {line}: {cluster.log_tail(dead[0])}"
    cluster.wait_ready()


def _rest(workers: list[Worker]) -> None:
    """Wait until every client has succeeded once more, at most `REST_MAX_S`."""
    began = time.monotonic()

    def all_succeed() -> bool:
        clients = [client for worker in workers for client in worker.histories()]
        return all(client.last_ok > began for client in clients)

    deadline = began + REST_MAX_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if time.monotonic() > began + REST_S and all_succeed():
            return


def _final_history(cluster: Nodes, clients: list[Client]) -> History:
    """Read everything through every node: what the first one shows is the end, and what the others
    show must be the same."""
    final: dict[int, FinalLog] = {}
    for node, address in cluster.storage.items():
        reader = Client(f"last-reader-at-{node}")
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                found = _read_all(address, topic, partition)
                shard = shard_of(topic, partition)
                if shard not in final:
                    final[shard] = FinalLog()
                    for offset, value in found:
                        final[shard].put(offset, value)
                now = time.monotonic()
                offsets = [offset for offset, _ in found]
                reader.polled(shard, 0, (now, now), offsets, [value for _, value in found])
        reader.last_ok = float("inf")
        clients.append(reader)
    return History(clients, final)


def _shorter(history: History) -> list[Anomaly]:
    """Return the shards of which a node shows fewer records than another at the end."""
    return [
        Anomaly("lost", poll.shard, f"{client.name} got {len(poll.offsets)} records of {count}")
        for client in history.clients
        if client.name.startswith("last-reader")
        for poll in client.polls()
        if len(poll.offsets) < (count := sum(1 for _ in history.final[poll.shard].items()))
    ]


def _collect_evidence(cluster: Nodes, history: History) -> list[str]:
    """Return what each node showed of the shards with anomalies at the end, and shows now: records
    that were hidden may be there again."""
    lines: list[str] = []
    for client in history.clients:
        if client.name.startswith("last-reader"):
            counts = {one.shard: (len(one.offsets), one.offsets[-1:]) for one in client.polls()}
            lines.append(f"{client.name}: records and last offset by shard: {counts}")
    time.sleep(EVIDENCE_WAIT_S)
    for node, address in cluster.storage.items():
        now = {}
        for shard in history.final:
            topic, partition = TOPICS[shard // PARTITIONS], shard % PARTITIONS
            found = _read_all(address, topic, partition)
            now[shard] = (len(found), [offset for offset, _ in found[-1:]])
        lines.append(f"node {node}, {EVIDENCE_WAIT_S:g} s later: {now}")
    return lines


def _read_all(address: str, topic: str, partition: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    last: list[StoreError] = []

    def reads() -> bool:
        try:
            with penstock.connect(address) as store:
                records = store.topic(topic).records(partition)
                found[:] = [(one.offset, decode(one.value)) for one in records]
        except (RetryableError, CorruptionError) as error:
            last[:] = [error]
            return False
        return True

    try:
        wait_until(reads, f"{topic}/{partition} can be read at {address}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from error
    return found


def _counts(history: History, workers: list[Worker]) -> str:
    writes = sum(client.write_count for client in history.clients)
    reads = sum(client.read_count for client in history.clients)
    copiers = [worker for worker in workers if isinstance(worker, Copier)]
    commits = sum(len(client.commits) for client in history.clients)
    return (
        f"{writes} writes, {reads} records read, {commits} group commits and fetches, "
        f"{sum(one.committed for one in copiers)} transactions committed and "
        f"{sum(one.aborted for one in copiers)} aborted, "
        f"{sum(one.hung for one in copiers)} calls of librdkafka without end"
    )


def _parse() -> tuple[Options, str | None]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--replication", type=int, default=1)
    parser.add_argument("--storage", default="segment", choices=["segment", "rocksdb", "memory"])
    parser.add_argument("--faults", default=",".join(QUICK), help=f"of {', '.join(faults.KINDS)}")
    parser.add_argument("--flush", default="async", choices=["async", "sync"])
    parser.add_argument("--upgrade-from", type=Path, help="sources of the nodes at the start")
    parser.add_argument("--network", action="store_true", help="give each node a namespace")
    parser.add_argument("--no-transactions", action="store_true", help="leave the copier out")
    parser.add_argument("--data", help="keep the data directories and logs here")
    given = parser.parse_args()
    kinds = tuple(faults.KINDS) if given.faults == "all" else tuple(given.faults.split(","))
    options = Options(
        seconds=given.seconds,
        seed=given.seed,
        nodes=given.nodes,
        replication=given.replication,
        storage=given.storage,
        kinds=kinds,
        has_network=given.network,
        has_transactions=not given.no_transactions,
        flush=given.flush,
        old_tree=given.upgrade_from,
    )
    return options, given.data


def main() -> None:
    options, data = _parse()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    with ExitStack() as stack:
        if data is None:
            data = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-drill-"))
        try:
            report = run(options, Path(data), say)
        except (AssertionError, StoreError):
            say(f"failed with seed {options.seed}")
            raise
    for line in report.lines():
        say(line)
    if report.anomalies:
        say(report.failure())
        sys.exit(1)


if __name__ == "__main__":
    main()
