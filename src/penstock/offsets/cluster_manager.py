"""`ClusterOffsetManager`: an `OffsetManager` whose groups each have one coordinator node.

    any node ── commit, read, reset, delete ──▶ the coordinator ──▶ cache or meta service
                       one hop                        │ first commit of a group there
                                                      ▼
                                takes an epoch; the previous coordinator saves its cached commits

`GroupCoordinators` says which node coordinates a group. A request that reaches another node is
forwarded once; the node that receives it serves it, also when that node takes a third one for the
coordinator. So a client reads what it has committed, through any node.

When a group moves, the new coordinator takes a greater epoch first, and then has the previous one
save its cached commits and end the use of its own epoch. Only then is the first commit answered. So
every commit that the previous coordinator acknowledged is in the meta service before a newer one:
two nodes that both take themselves for the coordinator slow each other down and lose nothing. If
the previous coordinator does not answer within `HAND_OVER_S`, the new one continues without it, and
commits that are still cached there are saved when that node is back, unless the group has
committed since.

A commit is sent once, and never stored late on behalf of a consumer that may have given it up: when
the coordinator does not answer, or has just taken the group from another node, it ends with
`GroupMovedError`, and the consumer that still waits sends it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from penstock.errors import DeadlineError, GroupMovedError, StaleWriteError, StoreError
from penstock.meta import (
    CommittedOffset,
    GroupCoordinators,
    GroupName,
    NewGroupOffsets,
    OffsetClient,
    Takeover,
    check_text,
)
from penstock.meta.storage import Database
from penstock.offsets import coordinator_rpc as rpc
from penstock.offsets.config import OffsetConfig
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import (
    GroupCommit,
    OffsetCommit,
    check_shard,
)
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Offset, ShardId

CALL_S: Final = 10.0
"""Timeout of a request to the coordinator."""
ROUTE_S: Final = 6.0
"""How long reads are retried, at the coordinator that the group has by then, when one does not
answer: the loss of a node is noticed within three seconds."""
HAND_OVER_S: Final = 2.0
UNRESPONSIVE_S: Final = 5.0
"""Pause before a node that did not hand over groups gets another request to do so."""
_PAUSE_S: Final = 0.2
_FLUSHED_EPOCHS_MAX: Final = 100_000

_log: Final = get_logger(__name__)


class OffsetPeers(Protocol):
    """Sends requests to the offset managers of other nodes."""

    def send_offset_request(self, node_id: int, request: str, seconds: float) -> str:
        """Return the reply of another node; raise the error that it raised, or `DeadlineError`
        without a reply in time."""
        ...


class ClusterOffsetManager(OffsetManager):
    """Methods may be called from any thread, and at any node."""

    def __init__(
        self,
        meta: OffsetClient,
        database: Database,
        coordinators: GroupCoordinators,
        peers: OffsetPeers,
        *,
        clock: Clock | None = None,
        config: OffsetConfig | None = None,
        owns_database: bool = False,
    ) -> None:
        super().__init__(meta, database, clock=clock, config=config, owns_database=owns_database)
        self._coordinators: Final = coordinators
        self._table.node_id = coordinators.node_id
        self._peers: Final = peers
        self._table.flush_previous_holders = self._flush_previous_holders
        self._commit_one = self._commit_one_at_coordinator
        self._resets = coordinators.resets
        coordinators.on_change(self._release_moved_groups)
        self._stopping: Final = threading.Event()
        self._unresponsive_until: dict[int, float] = {}
        """Nodes that did not hand over groups, and the time of the next request to them."""
        self._flushed_epochs: dict[tuple[str, str], int] = {}
        """Groups without an epoch here, and the last epoch whose cached commits are all saved."""

    def stop(self) -> None:
        self._stopping.set()
        super().stop()

    # -- commits ----------------------------------------------------------------------------------

    def _commit_one_at_coordinator(
        self,
        namespace: str,
        group: str,
        shard: ShardId,
        offset: int,
        metadata: str,
        leader_epoch: int,
    ) -> None:
        commit = OffsetCommit(Offset(offset), metadata, leader_epoch)
        self._commit(namespace, group, {shard: commit}, is_cached=True)

    def _commit(
        self,
        namespace: str,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        is_cached: bool,
    ) -> None:
        node = self._remote_coordinator(namespace, group)
        if node is None:
            self._commit_here(namespace, group, offsets, is_cached=is_cached)
            return
        request = rpc.Commit(rpc.group_commit(namespace, group, offsets), is_cached)
        try:
            self._send(node, request)
        except DeadlineError as error:
            # To find the next coordinator takes seconds, in which the consumer may give this commit
            # up and send a later one to another node.
            raise GroupMovedError(group, str(error)) from error

    def _commit_here(
        self,
        namespace: str,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        is_cached: bool,
    ) -> None:
        try:
            super()._commit(namespace, group, offsets, is_cached=is_cached)
        except StaleWriteError:
            if not self._is_taken_over(namespace, group):
                raise
            # The consumer finds the group here when it sends the commit again.
            self._table.claim_epoch(namespace, group)
            raise GroupMovedError(group) from None

    def commit_groups(self, commits: Sequence[GroupCommit]) -> list[StoreError | None]:
        outcomes: dict[int, StoreError | None] = {}
        by_node: dict[int | None, list[int]] = {}
        for number, commit in enumerate(commits):
            node = self._remote_coordinator(commit.namespace, commit.group)
            by_node.setdefault(node, []).append(number)
        for node, numbers in by_node.items():
            part = [commits[number] for number in numbers]
            outcomes.update(zip(numbers, self._commit_groups_at(node, part), strict=True))
        return [outcomes[number] for number in range(len(commits))]

    def _commit_groups_at(
        self, node: int | None, commits: list[GroupCommit]
    ) -> list[StoreError | None]:
        if node is None:
            outcomes = super().commit_groups(commits)
            again = [
                number
                for number, (commit, outcome) in enumerate(zip(commits, outcomes, strict=True))
                if isinstance(outcome, StaleWriteError)
                and self._is_taken_over(commit.namespace, commit.group)
            ]
            # The consumers may have sent newer commits to the other node since. This one holds the
            # groups again when they send these once more.
            self.storage.claim([commits[number] for number in again])
            for number in again:
                outcomes[number] = GroupMovedError(commits[number].group)
            return outcomes
        try:
            reply = self._send(node, rpc.CommitMany(commits))
        except DeadlineError as error:
            return [GroupMovedError(commit.group, str(error)) for commit in commits]
        except StoreError as error:
            return [error] * len(commits)
        return [rpc.error_of(outcome) for outcome in reply.outcomes]

    def commit_new_offsets(self, groups: Sequence[NewGroupOffsets]) -> list[StoreError | None]:
        """Commit offsets of many groups, whatever their coordinators, in one entry for each log. No
        node holds the groups after that; the coordinators take them again with their next commit.

        Commits that the coordinators have cached are older by their epochs, and saved before this
        returns.
        """
        if not groups:
            return []
        _, taken = self._meta.commit_groups((), groups, node=0)
        self._flush_previous_holders(
            [
                (GroupName(group.namespace, group.group), takeover)
                for group, takeover in zip(groups, taken, strict=True)
            ]
        )
        return [None] * len(groups)

    def _execute(self, change: rpc.GroupChange) -> rpc.Reply:
        node = self._remote_coordinator(*rpc.group_of(change))
        return self._apply(change) if node is None else self._send(node, change)

    def _apply(self, change: rpc.GroupChange) -> rpc.Reply:
        if not isinstance(change, rpc.CompareAndSet):  # that one takes an epoch, which does it
            self._flush_holder(*rpc.group_of(change))
        return super()._apply(change)

    # -- reads ------------------------------------------------------------------------------------

    def _read_one(self, namespace: str, group: str, shard: ShardId) -> CommittedOffset | None:
        check_shard(shard)
        return self._read(namespace, group).get(shard)

    def _read(self, namespace: str, group: str) -> dict[ShardId, CommittedOffset]:
        offsets: dict[ShardId, CommittedOffset] = {}

        def read_here() -> None:
            offsets.update(self._read_flushed(namespace, group))

        reply = self._read_at_coordinator(namespace, group, read_here)
        if reply is not None:
            offsets.update((ShardId.parse(name), offset) for name, offset in reply.offsets.items())
        return offsets

    def _read_flushed(self, namespace: str, group: str) -> dict[ShardId, CommittedOffset]:
        """Read a group that this node coordinates, after the previous coordinator has saved its
        cached commits."""
        self._flush_holder(namespace, group)
        return self.read_offsets(group, namespace=namespace)

    def _flush_holder(self, namespace: str, group: str) -> None:
        """Have another node that holds a group save its cached commits and release its epoch."""
        local = self._table.find(namespace, group)
        if local is not None and local.epoch:
            return
        info = self._meta.get_group(namespace, group)
        key = namespace, group
        if info is not None and self._flushed_epochs.get(key) != info.epoch:
            name = GroupName(namespace, group)
            if self._flush_previous_holders([(name, Takeover(info.epoch + 1, info.node))]):
                if len(self._flushed_epochs) >= _FLUSHED_EPOCHS_MAX:
                    self._flushed_epochs = {}
                self._flushed_epochs[key] = info.epoch

    # -- requests of other nodes ------------------------------------------------------------------

    def handle_request(self, text: str) -> str:
        """Serve a request of another node here, also when this one takes a third node for the
        coordinator."""
        return rpc.encode(self._handle(rpc.decode_request(text)))

    def _handle(self, request: rpc.Request) -> rpc.Reply:
        match request:
            case rpc.Read():
                offsets = self._read_flushed(request.namespace, request.group)
                return rpc.Reply(offsets={shard.name: item for shard, item in offsets.items()})
            case rpc.HandOver():
                for item in request.groups:
                    self.hand_over(item.group, namespace=item.namespace, epoch=item.epoch)
                return rpc.Reply()
            case rpc.CommitMany():
                outcomes = self._commit_groups_at(None, request.commits)
                return rpc.Reply(outcomes=[rpc.outcome_of(item) for item in outcomes])
            case rpc.Commit(commit, is_cached):
                self._commit_here(
                    commit.namespace,
                    commit.group,
                    rpc.offsets_by_shard(commit),
                    is_cached=is_cached,
                )
                return rpc.Reply()
            case _:
                return self._apply(request)

    # -- requests to other nodes ------------------------------------------------------------------

    def _remote_coordinator(self, namespace: str, group: str) -> int | None:
        """Return the node that coordinates a group; None: this one."""
        check_text("a namespace", namespace)
        check_text("a group", group)
        node = self._coordinators.coordinator_of(group, namespace)
        return None if node == self._coordinators.node_id else node

    def _send(self, node: int, request: rpc.Request) -> rpc.Reply:
        return rpc.decode_reply(self._peers.send_offset_request(node, rpc.encode(request), CALL_S))

    def _read_at_coordinator(
        self, namespace: str, group: str, read_here: Callable[[], None]
    ) -> rpc.Reply | None:
        """Read where the group is coordinated: by `read_here` (then None is returned) or at another
        node. When a coordinator does not answer, it may be lost: ask again, at the one that the
        group has by then, until `ROUTE_S` have passed."""
        deadline = self._clock.monotonic() + ROUTE_S
        while True:
            node = self._remote_coordinator(namespace, group)
            if node is None:
                read_here()
                return None
            try:
                return self._send(node, rpc.Read(namespace, group))
            except DeadlineError:
                if self._clock.monotonic() >= deadline:
                    raise
                if self._clock.wait(self._stopping, _PAUSE_S):
                    raise

    def _is_taken_over(self, namespace: str, group: str) -> bool:
        """Return whether another node holds the group's epoch. If not, a reset through this node
        overtook the commit, and stands."""
        info = self._meta.get_group(namespace, group)
        return info is not None and info.node != self._coordinators.node_id

    def _flush_previous_holders(self, taken: Sequence[tuple[GroupName, Takeover]]) -> bool:
        """Have the previous holders of groups save their cached commits; return whether all that
        are online did."""
        by_node: dict[int, list[rpc.Release]] = {}
        for name, takeover in taken:
            if takeover.previous == self._coordinators.node_id:
                self._release(name, takeover.epoch)
            elif takeover.previous:
                release = rpc.Release(name.namespace, name.group, takeover.epoch)
                by_node.setdefault(takeover.previous, []).append(release)
        is_done = True
        for node, groups in by_node.items():
            is_done &= self._request_hand_over(node, groups)
        return is_done

    def _release_moved_groups(self) -> None:
        """After nodes joined or left: stop the use of the epochs of groups that other nodes
        coordinate now. Those nodes may take greater epochs without reaching this one, and the
        groups may come back. Cached commits are saved under the epochs that they have."""
        coordinators = self._coordinators
        is_unsure, self._resets = coordinators.resets != self._resets, coordinators.resets
        for local in self._table.with_epoch():
            if is_unsure or not coordinators.is_here(local.name.group, local.name.namespace):
                self._table.renew(local, 0)

    def _release(self, name: GroupName, epoch: int) -> None:
        """Stop the use of this node's own lower epochs of a group, and save its cached commits."""
        local = self._table.find(name.namespace, name.group)
        if local is not None and 0 < local.epoch < epoch:
            self._table.release(local, epoch)
            self.cache.flush_group(local)

    def _request_hand_over(self, node: int, groups: list[rpc.Release]) -> bool:
        now = self._clock.monotonic()
        if not self._coordinators.is_online(node) or self._unresponsive_until.get(node, now) > now:
            return False
        try:
            text = rpc.encode(rpc.HandOver(groups))
            self._peers.send_offset_request(node, text, HAND_OVER_S)
        except StoreError as error:
            self._unresponsive_until[node] = self._clock.monotonic() + UNRESPONSIVE_S
            self._report_no_hand_over(node, len(groups), error)
            return False
        self._unresponsive_until.pop(node, None)
        return True

    def _report_no_hand_over(self, node: int, groups: int, error: StoreError) -> None:
        if self._coordinators.is_stopping(node):
            # Its ports are closed by now. It saved its cached commits before it announced its
            # stop, and once more afterwards.
            _log.debug("offsets_holder_stopped", node=node, groups=groups, reason=str(error))
            return
        _log.warning(
            "offsets_not_handed_over",
            node=node,
            groups=groups,
            reason=str(error),
            advice=f"commits that node {node} acknowledged from its cache are saved when it is "
            "back, unless their groups have committed since: start it, or have it reach this node; "
            "with kafka.offsets_cached = false and no cached commits there is nothing to do",
        )
