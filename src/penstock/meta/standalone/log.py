"""The log of a single node: what a Raft group of one writes, without Raft.

    proposers ──▶ queues ──▶ one batch: entries ──▶ sync ──▶ applied index + rows ──▶ answers
                              all groups together             one batch per group

One thread does the turns. Proposals that arrive during a sync wait for the next turn and share its
sync, so that many callers cost one device round-trip. An answer means that the entry is on the
device and its effect can be read.

What a crash can leave, and what the next start does:

  * before the batch of entries: nothing; the proposers got no answer
  * after it, before or after the sync: entries that are not applied; the start applies them. A
    proposer without an answer does not know the outcome, and repeats the same request id
  * after the applied batch: everything

A failed write or sync stops the log for good: after a failed sync the kernel may have dropped the
pages and report success the next time. Reads continue. The exception is a turn that was rejected
before it began (`BusyError`, or `DiskFullError` while little room is left): its proposers fail, and
the log continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from penstock.errors import BusyError, ClosedError, DiskFullError, NotAStoreError, StoreError
from penstock.meta.standalone.group import GroupStatus, StandaloneGroup
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import BATCH_SIZE_MAX, Batch, Database
from penstock.meta.storage.groups import GroupName, LogLimits, Machine
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

_IDLE_SECONDS: Final = 0.2
"""The state is written when nothing was asked of the log for so long."""

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

METADATA: Final = GroupName(
    name="metadata", number=0, log_family=fmt.META_LOG, state_family=fmt.META_STATE
)


def offset_group_name(number: int) -> GroupName:
    return GroupName(
        name=f"offset-{number}",
        number=number,
        log_family=fmt.OFFSET_LOG,
        state_family=fmt.OFFSET_STATE,
    )


class _Turns(Protocol):
    """What a turn needs of a group, whatever its requests are."""

    @property
    def has_work(self) -> bool: ...
    def begin_turn(self, batch: Batch, share: int) -> None: ...
    def abandon_turn(self, error: StoreError) -> None: ...
    def finish_turn(self) -> None: ...
    def write_state(self) -> None: ...
    @property
    def is_written(self) -> bool: ...
    def refuse(self, error: StoreError) -> None: ...
    @property
    def status(self) -> GroupStatus: ...


class StandaloneLog:
    """The logs of all groups of one node. `add_group` for each, then `start`; `close` at the end.

    The database belongs to the caller, who closes it after this.
    """

    def __init__(
        self, database: Database, *, node_id: int, limits: LogLimits | None = None
    ) -> None:
        self._database = database
        self._node_id = node_id
        self._limits = limits if limits is not None else LogLimits()
        self._groups: list[_Turns] = []
        self._work = threading.Event()
        self._is_closing = False
        self._failure: StoreError | None = None
        self._thread: threading.Thread | None = None

    def add_group(
        self,
        name: GroupName,
        machine: Machine[RequestT, AnswerT],
        *,
        on_applied: Callable[[AnswerT], None] | None = None,
    ) -> StandaloneGroup[RequestT, AnswerT]:
        """Load a group and apply what a crash left unapplied.

        `on_applied` is called with each answer, in the order of the log, on the log's own thread:
        it must be quick and must not propose.
        """
        assert self._thread is None, "groups are added before the start"
        group = StandaloneGroup(
            self._database,
            name,
            machine,
            node_id=self._node_id,
            limits=self._limits,
            on_applied=on_applied,
        )
        group.wake_by(self._work.set)
        self._groups.append(group)
        return group

    def start(self) -> None:
        assert self._thread is None, "a log is started once"
        self._thread = threading.Thread(target=self._run, name="penstock-meta-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is queued, then stop. Later proposals raise `ClosedError`."""
        self._is_closing = True
        self._work.set()
        if self._thread is not None:
            self._thread.join()
        for group in self._groups:
            group.refuse(self._failure or ClosedError("the meta log is closed"))

    @property
    def failure(self) -> StoreError | None:
        """Why the log has stopped for good, or None."""
        return self._failure

    @property
    def status(self) -> list[GroupStatus]:
        return sorted((group.status for group in self._groups), key=lambda status: status.name)

    def _run(self) -> None:
        try:
            while not self._is_done():
                is_woken = self._work.wait(None if self._is_written() else _IDLE_SECONDS)
                self._work.clear()
                if not is_woken:
                    self._write_states()
                while self._has_work():
                    self.turn()
            self._write_states()
        except BaseException as error:
            # A fault of this program: callers must not wait for a thread that has ended.
            self._fail(ClosedError(f"the meta log has stopped: {error!r}"))
            raise

    def _is_written(self) -> bool:
        return self._failure is not None or all(group.is_written for group in self._groups)

    def _write_states(self) -> None:
        """Write what is applied, so that the next start has nothing to apply again."""
        if self._failure is not None:
            return
        try:
            for group in self._groups:
                if not group.is_written:
                    group.write_state()
        except BusyError:
            return  # the log has it all
        except StoreError as error:
            self._fail(error)

    def _has_work(self) -> bool:
        return self._failure is None and any(group.has_work for group in self._groups)

    def _is_done(self) -> bool:
        return self._failure is not None or (self._is_closing and not self._has_work())

    def turn(self) -> None:
        """Log, sync and apply what is queued, up to one batch. The thread's work; tests that
        never `start` call it."""
        batch = Batch()
        # Each group has its share of a turn, and another one begins each time: a flood of offsets
        # holds up the metadata by one turn at most.
        self._groups.append(self._groups.pop(0))
        for group in self._groups:
            group.begin_turn(batch, BATCH_SIZE_MAX // len(self._groups))
        try:
            self._database.check_room(2 * batch.size)
        except DiskFullError as error:
            self._abandon(error)
            return
        try:
            self._database.write(batch)
        except BusyError as error:
            self._abandon(error)
            return
        except StoreError as error:
            self._fail(error)
            return
        try:
            self._database.sync()
            for group in self._groups:
                group.finish_turn()
        except StoreError as error:
            self._fail(error)

    def _abandon(self, error: StoreError) -> None:
        for group in self._groups:
            group.abandon_turn(error)

    def _fail(self, error: StoreError) -> None:
        self._failure = error
        _log.error("meta_log_stopped", cause=error, path=self._database.path)
        for group in self._groups:
            group.refuse(error)


def open_identity(
    database: Database, *, node_id: int, offset_groups: int, make_cluster_id: Callable[[], str]
) -> fmt.Identity:
    """Return whose directory this is; a new one becomes this node's, under a new cluster id."""
    row = database.get(fmt.META_LOG, fmt.IDENTITY_KEY)
    if row is None:
        identity = fmt.Identity(
            version=fmt.VERSION,
            cluster_id=make_cluster_id(),
            node_id=node_id,
            offset_groups=offset_groups,
        )
        batch = Batch()
        batch.put(fmt.META_LOG, fmt.IDENTITY_KEY, fmt.encode_identity(identity))
        database.write(batch)
        database.sync()
        return identity
    identity = fmt.decode_identity(row)
    if identity.version != fmt.VERSION:
        raise NotAStoreError(
            f"{database.path} has version {identity.version} of the log; this release reads "
            f"{fmt.VERSION}"
        )
    if not identity.cluster_id:
        raise NotAStoreError(
            f"{database.path} was made for a cluster that it has not joined yet; start it with "
            "`node.peers`"
        )
    if identity.node_id != node_id:
        raise NotAStoreError(
            f"{database.path} belongs to node {identity.node_id}; this is node {node_id}"
        )
    return identity
