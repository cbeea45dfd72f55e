"""Faults of a drill, planned from a seed: what happens when, for how long, to which node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from tests.cluster.nodes import FILE_KINDS, WAIT_S, Nodes, wait_until
from tests.cluster.workloads import API, PARTITIONS

HOURS: Final = 3_600.0


class Fault(NamedTuple):
    """`role`: leader or follower of `partition` of the topic `api`, or any node by number."""

    kind: str
    rest_s: float
    """Time before it in which nothing happens."""
    lasts_s: float
    role: str
    partition: int
    number: int
    """A random number for what remains to be chosen."""

    def __str__(self) -> str:
        return (
            f"{self.kind} ({self.role} of partition {self.partition}) for {self.lasts_s:.1f} s "
            f"after {self.rest_s:.1f} s, number {self.number}"
        )


class Kind(NamedTuple):
    """`copies`: how many copies of a record it takes to survive this fault."""

    run: Callable[[Nodes, Fault, int], str | None]
    """Returns what is worth a remark."""
    lasts_s: tuple[float, float]
    copies: int = 1
    needs: str = ""
    roles: tuple[str, ...] = ("leader", "follower")


def plan(
    seed: int, seconds: float, kinds: Sequence[str], rest_s: tuple[float, float], pause_max_s: float
) -> list[Fault]:
    """Return faults that take about so many seconds. Each kind occurs once before one repeats."""
    random, made, total = Random(seed), list[Fault](), 0.0
    bag: list[str] = []
    while total < seconds:
        if not bag:
            bag = random.sample(list(kinds), len(kinds))
        kind = bag.pop()
        least, most = KINDS[kind].lasts_s
        most = min(most, pause_max_s) if kind == "pause" else most
        fault = Fault(
            kind,
            random.uniform(*rest_s),
            random.uniform(least, most),
            random.choice(KINDS[kind].roles),
            random.randrange(PARTITIONS),
            random.randrange(1 << 30),
        )
        made.append(fault)
        total += fault.rest_s + fault.lasts_s + STARTS_S.get(kind, 2.0)
    return made


STARTS_S: Final = {
    "rolling": 15.0,
    "upgrade": 15.0,
    "churn": 20.0,
    "kill all": 6.0,
    "power cut of all": 6.0,
    "pause": 0.0,
    "clock step": 0.0,
}
"""About how long nodes take to start after a fault."""


FLIPS = frozenset({"bit flips", "bit flips anywhere"})


def strike(nodes: Nodes, fault: Fault) -> str:
    """Let a fault happen and end; return what happened to which node. All nodes run afterwards."""
    leader = nodes.leader(API, fault.partition) or nodes.numbers[0]
    others = [node for node in nodes.numbers if node != leader]
    chosen = leader if fault.role == "leader" or not others else others[fault.number % len(others)]
    if fault.kind in FLIPS:
        # A minority: damage that no reader has met yet stays in the files.
        chosen = nodes.damaged = nodes.damaged or chosen
    outcome = KINDS[fault.kind].run(nodes, fault, chosen)
    if KINDS[fault.kind].copies > 1:
        # The next fault may take another copy: this one must be there again.
        wait_until(nodes.are_in_sync, f"all copies are in sync after {fault.kind}")
    return f"{fault.kind}: node {chosen}, {fault.role} of {API}/{fault.partition}{outcome or ''}"


def _restart(nodes: Nodes, node: int) -> None:
    nodes.start(node)
    nodes.wait_ready()


def _kill(nodes: Nodes, fault: Fault, node: int) -> None:
    nodes.kill(node)
    time.sleep(fault.lasts_s)
    _restart(nodes, node)


def _kill_all(nodes: Nodes, fault: Fault, _node: int) -> None:
    for node in nodes.numbers:
        nodes.kill(node)
    time.sleep(fault.lasts_s)
    nodes.start_all()
    nodes.wait_ready()


def _stop(nodes: Nodes, fault: Fault, node: int) -> None:
    nodes.stop(node)
    time.sleep(fault.lasts_s)
    _restart(nodes, node)


def _rolling(nodes: Nodes, _fault: Fault, _node: int) -> None:
    for node in nodes.numbers:
        nodes.stop(node)
        _restart(nodes, node)


def _pause(nodes: Nodes, fault: Fault, node: int) -> None:
    nodes.pause(node)
    time.sleep(fault.lasts_s)
    nodes.resume(node)


def _wipe(nodes: Nodes, fault: Fault, node: int) -> None:
    nodes.kill(node)
    nodes.wipe(node)
    # As a disk that is replaced: the others have noticed that the old one is gone.
    time.sleep(max(3.0, fault.lasts_s))
    _restart(nodes, node)


def _flip(nodes: Nodes, fault: Fault, node: int) -> str:
    nodes.stop(node)
    nodes.flip_bits(node, Random(fault.number))
    time.sleep(fault.lasts_s)
    return _start_damaged(nodes, node)


def _flip_any(nodes: Nodes, fault: Fault, node: int) -> str:
    """Flip bits in files of any kind."""
    random = Random(fault.number)
    if random.random() < 0.5:
        nodes.stop(node)
    else:
        nodes.kill(node)
    flipped = nodes.flip_bits(node, random, tuple(FILE_KINDS))
    return f", files {', '.join(flipped)}{_start_damaged(nodes, node)}"


def _start_damaged(nodes: Nodes, node: int) -> str:
    """Start a node that cannot trust its files and may refuse to: then it starts with an empty
    directory, as after a change of its disk."""
    nodes.start(node)
    wait_until(
        lambda: nodes.is_ready(node) or node in nodes.dead(), f"node {node} is ready, or refuses"
    )
    refused = ""
    if node in nodes.dead():
        reason = nodes.log_tail(node, 500).strip().rpartition("\n")[2]
        refused = f", refused to start: {reason}"
        nodes.kill(node)
        nodes.wipe(node)
        time.sleep(3.0)
        nodes.start(node)
    nodes.wait_ready()
    return refused


def _cut_power(nodes: Nodes, fault: Fault, node: int) -> None:
    nodes.cut_power(node)
    time.sleep(fault.lasts_s)
    _restart(nodes, node)


def _cut_power_of_all(nodes: Nodes, fault: Fault, _node: int) -> None:
    for node in nodes.numbers:
        nodes.kill(node)  # at about the same time: to stop a file system takes a while
    for node in nodes.numbers:
        nodes.lose_unsynced(node)
    time.sleep(fault.lasts_s)
    nodes.start_all()
    nodes.wait_ready()


def _drain(nodes: Nodes, node: int) -> None:
    nodes.run_command("cluster", "drain", str(node))

    def is_empty() -> bool:
        if not nodes.holds_replicas(node):
            return True
        if nodes.runs_old_release(node):  # its next registration ended the drain
            nodes.run_command("cluster", "drain", str(node))
        return False

    wait_until(is_empty, f"node {node} has given its replicas to others")


def _churn(nodes: Nodes, _fault: Fault, node: int) -> str:
    """A new node joins, takes the place of another one, and leaves again."""
    spare = nodes.spare
    nodes.start(spare)
    seconds = f"{WAIT_S:g}"
    nodes.run_command("cluster", "add", str(spare), nodes.internal[spare], "--wait", seconds)
    nodes.wait_ready()
    _drain(nodes, node)
    nodes.run_command("cluster", "drain", str(node), "--undo")
    _drain(nodes, spare)
    nodes.stop(spare)
    nodes.run_command("cluster", "remove", str(spare))
    nodes.wipe(spare)
    return f", node {spare} joined and left"


def _upgrade(nodes: Nodes, _fault: Fault, _node: int) -> None:
    """Stop the nodes one by one, and start them with the current sources."""
    for node in nodes.numbers:
        nodes.stop(node)
        nodes.upgraded.add(node)
        _restart(nodes, node)
    nodes.upgraded.add(nodes.spare)


def _step_clock(nodes: Nodes, fault: Fault, node: int) -> None:
    hours = (-240, -1, 1, 240)[fault.number % 4]
    nodes.step_clock(node, hours * HOURS)
    time.sleep(fault.lasts_s)
    nodes.step_clock(node, 0)


def _fill(nodes: Nodes, fault: Fault, _node: int) -> None:
    node = sorted(nodes.mounted)[fault.number % len(nodes.mounted)]
    nodes.fill_disk(node)
    time.sleep(fault.lasts_s)
    nodes.free_disk(node)
    # The node's part in the metadata ends with a failed write, until it is restarted.
    if not nodes.is_ready(node):
        nodes.kill(node)
        _restart(nodes, node)


def _cut_off(nodes: Nodes, fault: Fault, node: int) -> None:
    assert nodes.network is not None
    for other in nodes.numbers:
        if other != node:
            nodes.network.cut(node, other)
            nodes.network.cut(other, node)
    time.sleep(fault.lasts_s)
    nodes.network.heal()


def _cut_one_way(nodes: Nodes, fault: Fault, node: int) -> None:
    assert nodes.network is not None
    others = [other for other in nodes.numbers if other != node]
    target = others[fault.number % len(others)]
    nodes.network.cut(node, target)
    time.sleep(fault.lasts_s)
    nodes.network.heal()


def _cut_ring(nodes: Nodes, fault: Fault, node: int) -> None:
    """Each node reaches its neighbours only: with three nodes, two cannot reach each other."""
    assert nodes.network is not None
    count = len(nodes.numbers)
    away = nodes.numbers[(nodes.numbers.index(node) + count // 2) % count]
    nodes.network.cut(node, away)
    nodes.network.cut(away, node)
    time.sleep(fault.lasts_s)
    nodes.network.heal()


def _lose(nodes: Nodes, fault: Fault, node: int) -> None:
    assert nodes.network is not None
    if nodes.network.lose(node, 5):
        time.sleep(fault.lasts_s)
        nodes.network.heal()
    else:
        nodes.network.lose_bursts(node, 5, fault.lasts_s)


KINDS: Final = {
    "kill": Kind(_kill, (0.0, 3.0)),
    "kill all": Kind(_kill_all, (0.0, 1.0)),
    "stop": Kind(_stop, (0.0, 2.0)),
    "rolling": Kind(_rolling, (0.0, 0.0)),
    "pause": Kind(_pause, (1.0, 30.0)),
    "clock step": Kind(_step_clock, (2.0, 6.0)),
    "disk full": Kind(_fill, (2.0, 5.0), needs="disk"),
    "wipe": Kind(_wipe, (3.0, 5.0), copies=2),
    "bit flips": Kind(_flip, (0.0, 1.0), copies=2),
    "cut off": Kind(_cut_off, (2.0, 10.0), needs="network"),
    "one way": Kind(_cut_one_way, (2.0, 10.0), needs="network"),
    "ring": Kind(_cut_ring, (2.0, 10.0), needs="network"),
    "loss": Kind(_lose, (3.0, 10.0), needs="network"),
    "bit flips anywhere": Kind(_flip_any, (0.0, 0.0), copies=2),
    "power cut": Kind(_cut_power, (0.0, 2.0), copies=2, needs="device"),
    "power cut of all": Kind(_cut_power_of_all, (0.0, 1.0), needs="sync device"),
    "churn": Kind(_churn, (0.0, 0.0), copies=2),
    "upgrade": Kind(_upgrade, (0.0, 0.0), needs="old sources"),
}
