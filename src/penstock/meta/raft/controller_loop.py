"""The controller's rounds: who is gone, and what follows from it.

Every node runs the loop; only the one that leads the group `metadata` decides. A member that Raft
has not heard of for `SILENT_ROUNDS` rounds is lost, and so is another node whose heartbeats stay
out for `BEATLESS_ROUNDS`. What is decided is a command like any other, and
is refused when the world has moved on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.errors import StoreError
from penstock.log import get_logger
from penstock.meta.controller import ONLINE, failovers, lost_nodes
from penstock.meta.raft.status import RaftStatus
from penstock.meta.state import metadata_commands as cmd
from penstock.meta.state.metadata_rows import NODES, SHARDS, read_beats
from penstock.meta.state.model import Node
from penstock.meta.state.view import Reader

_log: Final = get_logger(__name__)

ROUND_SECONDS: Final = 0.5
SILENT_ROUNDS: Final = 4
BEATLESS_ROUNDS: Final = 5


class Liveness:
    """Counts for how many rounds each member was silent."""

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}

    def alive(self, node_id: int, status: RaftStatus) -> set[int]:
        """Return who counts as alive after one more round."""
        for node, _, _, _, is_active in status.progress:
            heard = is_active or node == node_id
            self._silent[node] = 0 if heard else self._silent.get(node, 0) + 1
        return {node for node, rounds in self._silent.items() if rounds < SILENT_ROUNDS}

    def forget(self) -> None:
        self._silent.clear()


class Beats:
    """Counts for how many rounds each node that is no member has sent no heartbeat."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    def alive(self, marks: Mapping[int, int]) -> set[int]:
        """Return who counts as alive after one more round; a mark grows with every heartbeat."""
        last, self._last = self._last, {}
        for node, mark in marks.items():
            known, rounds = last.get(node, (mark, -1))
            self._last[node] = (mark, rounds + 1 if mark == known else 0)
        return {node for node, (_, rounds) in self._last.items() if rounds < BEATLESS_ROUNDS}

    def forget(self) -> None:
        self._last.clear()


class Registration(Protocol):
    def __call__(self) -> object: ...


class ControllerLoop:
    """`start`, `close`; works on a thread of its own."""

    def __init__(
        self,
        node_id: int,
        *,
        clock: Clock,
        rows: Reader,
        status: Callable[[], RaftStatus],
        decide: Callable[[cmd.Command], object],
        register: Registration,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._rows = rows
        self._status = status
        self._decide = decide
        self._register = register
        self._is_registered = False
        self._liveness = Liveness()
        self._beats = Beats()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._clock.wait(self._stopping, ROUND_SECONDS):
            try:
                self._round()
            except StoreError as error:
                # Without a majority nothing can be decided; the next round tries again.
                _log.debug("controller_round_failed", reason=str(error))

    def _round(self) -> None:
        mine = NODES.get(self._rows, self._node_id)
        if not self._is_registered or mine is None or mine.status != ONLINE:
            self._register()
            self._is_registered = True
        status = self._status()
        if status.role != "leader":
            self._liveness.forget()
            self._beats.forget()
            return
        nodes = list(NODES.scan(self._rows))
        for command in lost_nodes(nodes, self._alive(status, nodes)):
            _log.warning("node_lost", node=getattr(command, "node_id", 0))
            self._decide(command)
        online = {node.node_id for node in NODES.scan(self._rows) if node.status == ONLINE}
        for command in failovers(list(SHARDS.scan(self._rows)), online):
            self._decide(command)

    def _alive(self, status: RaftStatus, nodes: Sequence[Node]) -> set[int]:
        members = {*status.configuration.voters, *status.configuration.learners}
        beats = read_beats(self._rows)
        marks = {
            node.node_id: max(node.epoch, beats.get(node.node_id, 0))
            for node in nodes
            if node.node_id not in members
        }
        return self._liveness.alive(self._node_id, status) | self._beats.alive(marks)
