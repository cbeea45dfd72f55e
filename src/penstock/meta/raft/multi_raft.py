"""All groups of a node, driven together: the step function of the meta service.

    tick, receive, propose, read ──▶ one batch of all groups ──▶ one sync ──▶ messages, answers

It reads no clock and opens no socket; who drives it decides when a tick is over and what becomes of
a message. A failed write or sync stops it for good: the node must leave its groups, the others go
on without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from penstock.errors import BadRequestError, ClosedError, StoreError
from penstock.meta.raft.group.load import RaftTiming
from penstock.meta.raft.group.raft_group import GroupOptions, RaftGroup, Send
from penstock.meta.raft.group.snapshots import CHUNK_SIZE
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.network.frames import Frame
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import GroupName, LogLimits, Machine
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

_SEED_STEP: Final = 0x9E3779B97F4A7C15

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class _Member(Protocol):
    """What `MultiRaft` needs of a group, whatever its requests are."""

    @property
    def name(self) -> GroupName: ...
    def tick(self, send: Send) -> None: ...
    def step(self, sender: int, frame: Frame, send: Send) -> None: ...
    def collect(self, batch: Batch, send: Send) -> bool: ...
    def finish(self, send: Send, *, is_synced: bool) -> None: ...
    def report_unreachable(self, node: int) -> None: ...
    def transfer(self, to: int) -> None: ...
    def succeed_leader(self, leader: int) -> None: ...
    def refuse(self, error: StoreError) -> None: ...
    def campaign(self) -> None: ...
    @property
    def is_alone(self) -> bool: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def status(self) -> RaftStatus: ...


class MultiRaft:
    """`add_group` for each, then `tick`, `receive` and `turn`, all from one thread."""

    def __init__(
        self,
        database: Database,
        *,
        node_id: int,
        seed: int,
        send: Send,
        timing: RaftTiming | None = None,
        limits: LogLimits | None = None,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        self._database = database
        self._node_id = node_id
        self._seed = seed
        self._send = send
        self._timing = timing if timing is not None else RaftTiming()
        self._limits = limits if limits is not None else LogLimits()
        self._chunk_size = chunk_size
        self._groups: dict[int, _Member] = {}
        self._failure: StoreError | None = None

    def add_group(
        self,
        name: GroupName,
        number: int,
        machine: Machine[RequestT, AnswerT],
        *,
        on_applied: Callable[[AnswerT], None] | None = None,
        on_reset: Callable[[], None] | None = None,
    ) -> RaftGroup[RequestT, AnswerT]:
        """Load a bootstrapped group; `number` is how nodes call it, the same on all of them."""
        group = RaftGroup(
            self._database,
            name,
            machine,
            GroupOptions(
                node_id=self._node_id,
                wire_number=number,
                seed=(self._seed + _SEED_STEP * (number + 1)) & 0xFFFFFFFFFFFFFFFF,
                timing=self._timing,
                limits=self._limits,
                chunk_size=self._chunk_size,
            ),
            on_applied=on_applied,
            on_reset=on_reset,
        )
        self._groups[number] = group
        return group

    def lead_alone(self) -> None:
        """Become the leader of the groups that have no other voter, without an election timeout."""
        for group in self._groups.values():
            if group.is_alone:
                self._guard(group.campaign)

    @property
    def failure(self) -> StoreError | None:
        """Why the node has stopped for good, or None."""
        return self._failure

    @property
    def status(self) -> list[RaftStatus]:
        return [group.status for group in self._groups.values()]

    def tick(self) -> None:
        if self._failure is None:
            self._guard(self._tick)

    def receive(self, sender: int, frame: Frame) -> None:
        """Take a frame of another node; what makes no sense is logged and dropped."""
        group = self._groups.get(frame.group)
        if group is None or self._failure is not None:
            return
        receiver = group

        def step() -> None:
            try:
                receiver.step(sender, frame, self._send)
            except BadRequestError as error:
                _log.warning("frame_refused", sender=sender, reason=str(error))

        self._guard(step)

    def succeed_leader(self, leader: int) -> None:
        """Campaign soon in the groups that `leader` leads, whose process has ended."""
        for group in self._groups.values():
            self._guard(partial(group.succeed_leader, leader))

    def report_unreachable(self, node: int) -> None:
        for group in self._groups.values():
            group.report_unreachable(node)

    @property
    def has_work(self) -> bool:
        return self._failure is None and any(group.has_work for group in self._groups.values())

    def turn(self) -> None:
        """Write what all groups have to write, sync it once if need be, then send and apply."""
        if self._failure is None:
            self._guard(self._turn)

    def stop(self, error: StoreError | None = None) -> None:
        """Refuse everything that waits; nothing is done any more."""
        if self._failure is None:
            self._failure = (
                error if error is not None else ClosedError("the meta service is closed")
            )
        for group in self._groups.values():
            group.refuse(self._failure)

    def _tick(self) -> None:
        for group in self._groups.values():
            group.tick(self._send)

    def _turn(self) -> None:
        batch = Batch()
        must_sync = False
        for group in self._groups.values():
            must_sync = group.collect(batch, self._send) or must_sync
        if batch.operations:
            self._database.write(batch)
        if must_sync:
            self._database.sync()
        for group in self._groups.values():
            group.finish(self._send, is_synced=must_sync)

    def _guard(self, work: Callable[[], object]) -> None:
        try:
            work()
        except StoreError as error:
            _log.error("meta_node_stopped", cause=error, path=self._database.path)
            self.stop(error)
        except RuntimeError as error:
            # The core itself refuses to go on: what it holds can no longer be trusted.
            _log.error("meta_node_stopped", cause=error, path=self._database.path)
            self.stop(ClosedError(f"the meta service has stopped: {error}"))
