"""`ClusterOffsetManager`: an `OffsetManager` whose groups each have one coordinator node.

    any node ── commit, read, reset, delete ──▶ the coordinator ──▶ cache or meta service
                       one hop                        │ first commit of a group there
                                                      ▼
                                       takes an epoch; the last coordinator saves what waits

`GroupCoordinators` says which node coordinates a group. A request that reaches another node is
passed on once; the node that is asked serves it, also when it takes a third one for the
coordinator. So a client reads what it has committed, through any node.

When a group moves, the new coordinator takes a greater epoch first, and then has the last one save
what waits there and end the use of its own epoch. Only then the first commit is answered. So every
commit that the old coordinator has acknowledged is in the meta service before anything newer is:
two nodes that both take themselves for the coordinator slow each other down and lose nothing. If
the old coordinator does not answer within `HAND_OVER_S`, the new one goes on without it, and
cached commits that were not saved there are seen again when that node is back, unless the
group has committed since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from penstock.errors import DeadlineError, StaleWriteError, StoreError
from penstock.meta.client import (
    DEFAULT_NAMESPACE,
    CommittedOffset,
    GroupName,
    NewGroupOffsets,
    OffsetClient,
    Takeover,
)
from penstock.meta.group_coordinators import GroupCoordinators
from penstock.meta.rejections import check_text
from penstock.meta.storage.database import Database
from penstock.offsets import coordinator_rpc as steps
from penstock.offsets.config import OffsetConfig
from penstock.offsets.manager import OffsetManager, open_manager
from penstock.offsets.strategy import (
    NO_LEADER_EPOCH,
    GroupCommit,
    OffsetCommit,
    check_commit,
    check_shard,
)
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Offset, ShardId
from penstock.settings.tree import OffsetSettings

CALL_S: Final = 10.0
"""How long the coordinator may take for a step."""
ROUTE_S: Final = 6.0
"""How long commits and reads look for the coordinator of a group again when it does not answer: a
node that is lost is noticed within three seconds."""
HAND_OVER_S: Final = 2.0
SILENT_S: Final = 5.0
"""For so long a node that did not hand over is not asked again."""
_PAUSE_S: Final = 0.2
_SETTLED_MAX: Final = 100_000

_log: Final = get_logger(__name__)

T = TypeVar("T")


class OffsetPeers(Protocol):
    """The way to the offset managers of other nodes."""

    def take_offset_step(self, node_id: int, step: str, seconds: float) -> str:
        """Have another node take a step; raises what it raised, or `DeadlineError` when it does
        not answer in time."""
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
        self._peers: Final = peers
        self._table.settle = self._settle
        self._resets = coordinators.resets
        coordinators.on_change(self._give_up_moved)
        self._stopping: Final = threading.Event()
        self._silent: dict[int, float] = {}
        """Nodes that did not hand over, and until when they are not asked again."""
        self._settled: dict[tuple[str, str], int] = {}
        """Groups without an epoch here, and the epoch under which nothing waits anywhere."""

    def stop(self) -> None:
        self._stopping.set()
        super().stop()

    # -- commits ----------------------------------------------------------------------------------

    def commit_offset(
        self,
        group: str,
        shard: ShardId,
        offset: int,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: str = "",
        leader_epoch: int = NO_LEADER_EPOCH,
        enable_cache: bool | None = None,
    ) -> None:
        commit = OffsetCommit(Offset(offset), metadata, leader_epoch)
        self.commit_offsets(group, {shard: commit}, namespace=namespace, enable_cache=enable_cache)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        enable_cache: bool | None = None,
    ) -> None:
        is_cached = self._enable_cache if enable_cache is None else enable_cache

        def here() -> None:
            OffsetManager.commit_offsets(
                self, group, offsets, namespace=namespace, enable_cache=is_cached
            )

        if self._elsewhere(namespace, group) is None:
            self._again_if_taken_over(namespace, group, here)
            return
        step = steps.Commit(_group_commit(namespace, group, offsets), is_cached)
        self._insist(namespace, group, here, step)

    def commit_groups(self, commits: Sequence[GroupCommit]) -> list[StoreError | None]:
        outcomes: dict[int, StoreError | None] = {}
        by_node: dict[int | None, list[int]] = {}
        for number, commit in enumerate(commits):
            node = self._elsewhere(commit.namespace, commit.group)
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
            retried = super().commit_groups([commits[number] for number in again])
            for number, outcome in zip(again, retried, strict=True):
                outcomes[number] = outcome
            return outcomes
        try:
            answer = self._ask(node, steps.CommitMany(commits))
        except DeadlineError as error:
            # Once more, each where it belongs by now: storing them twice changes nothing.
            self._clock.wait(self._stopping, _PAUSE_S)
            return [self._commit_group_again(commit, error) for commit in commits]
        except StoreError as error:
            return [error] * len(commits)
        return [steps.error_of(outcome) for outcome in answer.outcomes]

    def _commit_group_again(self, commit: GroupCommit, first: StoreError) -> StoreError | None:
        if self._stopping.is_set():
            return first
        try:
            self._insist(
                commit.namespace,
                commit.group,
                lambda: _raise_any(OffsetManager.commit_groups(self, [commit])),
                steps.CommitMany([commit]),
            )
        except StoreError as error:
            return error
        return None

    def commit_new_offsets(self, groups: Sequence[NewGroupOffsets]) -> list[StoreError | None]:
        """Commit offsets of many groups, each coordinated anywhere, in one entry for each log. No
        node holds the groups after it; the coordinators take them again with their next commit.

        Their commits that are on the way are older by their epochs, and saved before this returns.
        """
        if not groups:
            return []
        _, taken = self._meta.commit_groups((), groups, node=0)
        self._settle(
            [
                (GroupName(one.namespace, one.group), takeover)
                for one, takeover in zip(groups, taken, strict=True)
            ]
        )
        return [None] * len(groups)

    def compare_and_set(
        self,
        group: str,
        shard: ShardId,
        offset: int,
        *,
        expected: int | None,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: str = "",
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> None:
        node = self._elsewhere(namespace, group)
        if node is None:
            super().compare_and_set(
                group,
                shard,
                offset,
                expected=expected,
                namespace=namespace,
                metadata=metadata,
                leader_epoch=leader_epoch,
            )
            return
        commit = check_commit(OffsetCommit(Offset(offset), metadata, leader_epoch))
        name = check_shard(shard).name
        self._ask(node, steps.CompareAndSet(namespace, group, name, expected, commit))

    def reset_offsets(
        self,
        group: str,
        offsets: Mapping[ShardId, OffsetCommit],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        request_id: str = "",
    ) -> None:
        node = self._elsewhere(namespace, group)
        if node is None:
            self._settle_holder(namespace, group)
            super().reset_offsets(group, offsets, namespace=namespace, request_id=request_id)
        else:
            self._ask(node, steps.Reset(_group_commit(namespace, group, offsets), request_id))

    # -- reads ------------------------------------------------------------------------------------

    def get_offset(
        self, group: str, shard: ShardId, *, namespace: str = DEFAULT_NAMESPACE
    ) -> CommittedOffset | None:
        check_shard(shard)
        return self.get_offsets(group, namespace=namespace).get(shard)

    def get_offsets(
        self, group: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[ShardId, CommittedOffset]:
        read: dict[ShardId, CommittedOffset] = {}

        def here() -> None:
            read.update(self._read_settled(namespace, group))

        answer = self._insist(namespace, group, here, steps.Read(namespace, group))
        if answer is not None:
            read.update((ShardId.parse(name), at) for name, at in answer.offsets.items())
        return read

    def _read_settled(self, namespace: str, group: str) -> dict[ShardId, CommittedOffset]:
        """Read a group that this node coordinates: what waits on the node that did so before is
        saved first."""
        self._settle_holder(namespace, group)
        return self.read_offsets(group, namespace=namespace)

    def _settle_holder(self, namespace: str, group: str) -> None:
        """Have another node that holds a group save what waits there, and give its epoch up."""
        local = self._table.find(namespace, group)
        if local is not None and local.epoch:
            return
        found = self._meta.get_group(namespace, group)
        key = namespace, group
        if found is not None and self._settled.get(key) != found.epoch:
            name = GroupName(namespace, group)
            if self._settle([(name, Takeover(found.epoch + 1, found.node))]):
                if len(self._settled) >= _SETTLED_MAX:
                    self._settled = {}
                self._settled[key] = found.epoch

    # -- removals ---------------------------------------------------------------------------------

    def delete_offsets(
        self, group: str, shards: Sequence[ShardId], *, namespace: str = DEFAULT_NAMESPACE
    ) -> int:
        node = self._elsewhere(namespace, group)
        if node is None:
            self._settle_holder(namespace, group)
            return super().delete_offsets(group, shards, namespace=namespace)
        names = [check_shard(shard).name for shard in shards]
        return self._ask(node, steps.DeleteOffsets(namespace, group, names)).count

    def delete_group(self, group: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        node = self._elsewhere(namespace, group)
        if node is None:
            self._settle_holder(namespace, group)
            super().delete_group(group, namespace=namespace)
        else:
            self._ask(node, steps.DeleteGroup(namespace, group))

    # -- what other nodes ask ---------------------------------------------------------------------

    def take_step(self, text: str) -> str:
        """Take a step that another node asks for, here and nowhere else."""
        return steps.encode(self._take(steps.decode_step(text)))

    def _take(self, step: steps.Step) -> steps.Answer:
        match step:
            case steps.Read():
                found = self._read_settled(step.namespace, step.group)
                return steps.Answer(offsets={shard.name: at for shard, at in found.items()})
            case steps.HandOver():
                for one in step.groups:
                    self.hand_over(one.group, namespace=one.namespace, epoch=one.epoch)
            case steps.CommitMany():
                outcomes = self._commit_groups_at(None, step.commits)
                return steps.Answer(outcomes=[steps.outcome_of(one) for one in outcomes])
            case steps.DeleteOffsets():
                shards = [ShardId.parse(name) for name in step.shards]
                self._settle_holder(step.namespace, step.group)
                count = super().delete_offsets(step.group, shards, namespace=step.namespace)
                return steps.Answer(count=count)
            case _:
                self._change(step)
        return steps.Answer()

    def _change(
        self, step: steps.Commit | steps.CompareAndSet | steps.Reset | steps.DeleteGroup
    ) -> None:
        match step:
            case steps.Commit(commit, is_cached):
                namespace, group, offsets = commit.namespace, commit.group, _by_shard(commit)

                def here() -> None:
                    OffsetManager.commit_offsets(
                        self, group, offsets, namespace=namespace, enable_cache=is_cached
                    )

                self._again_if_taken_over(namespace, group, here)
            case steps.CompareAndSet():
                super().compare_and_set(
                    step.group,
                    ShardId.parse(step.shard),
                    step.commit.offset,
                    expected=step.expected,
                    namespace=step.namespace,
                    metadata=step.commit.metadata,
                    leader_epoch=step.commit.leader_epoch,
                )
            case steps.Reset(commit, request_id):
                self._settle_holder(commit.namespace, commit.group)
                super().reset_offsets(
                    commit.group,
                    _by_shard(commit),
                    namespace=commit.namespace,
                    request_id=request_id,
                )
            case steps.DeleteGroup():
                self._settle_holder(step.namespace, step.group)
                super().delete_group(step.group, namespace=step.namespace)

    # -- ways to other nodes ----------------------------------------------------------------------

    def _elsewhere(self, namespace: str, group: str) -> int | None:
        """Return the node that coordinates a group; None: this one."""
        check_text("a namespace", namespace)
        check_text("a group", group)
        node = self._coordinators.coordinator_of(group, namespace)
        return None if node == self._coordinators.node_id else node

    def _ask(self, node: int, step: steps.Step) -> steps.Answer:
        return steps.decode_answer(self._peers.take_offset_step(node, steps.encode(step), CALL_S))

    def _insist(
        self, namespace: str, group: str, here: Callable[[], None], step: steps.Step
    ) -> steps.Answer | None:
        """Do what may be done twice where the group is coordinated. A coordinator that does not
        answer may be lost: another one is looked for, until `ROUTE_S` have passed."""
        give_up = self._clock.monotonic() + ROUTE_S
        while True:
            node = self._elsewhere(namespace, group)
            if node is None:
                self._again_if_taken_over(namespace, group, here)
                return None
            try:
                answer = self._ask(node, step)
            except DeadlineError:
                if self._clock.monotonic() >= give_up:
                    raise
                if self._clock.wait(self._stopping, _PAUSE_S):
                    raise
            else:
                _raise_any([steps.error_of(outcome) for outcome in answer.outcomes])
                return answer

    def _again_if_taken_over(self, namespace: str, group: str, here: Callable[[], None]) -> None:
        """Do it, and once more if another node took the group meanwhile: it was not stored."""
        try:
            here()
        except StaleWriteError:
            if not self._is_taken_over(namespace, group):
                raise
            here()

    def _is_taken_over(self, namespace: str, group: str) -> bool:
        """Return whether another node holds a group's epoch; else a reset of this one came before
        the commit, and stands."""
        found = self._meta.get_group(namespace, group)
        return found is not None and found.node != self._coordinators.node_id

    def _settle(self, taken: Sequence[tuple[GroupName, Takeover]]) -> bool:
        """Have the nodes that held groups before save what waits there; return whether all did
        that are there."""
        by_node: dict[int, list[steps.Release]] = {}
        for name, one in taken:
            if one.previous == self._coordinators.node_id:
                self._release(name, one.epoch)
            elif one.previous:
                release = steps.Release(name.namespace, name.group, one.epoch)
                by_node.setdefault(one.previous, []).append(release)
        is_done = True
        for node, groups in by_node.items():
            is_done &= self._hand_over_from(node, groups)
        return is_done

    def _give_up_moved(self) -> None:
        """Nodes came or went. Use the epochs of groups that other nodes coordinate now no more:
        those nodes may take greater ones without reaching this one, and the groups may come back.
        What waits is saved under its own epochs."""
        coordinators = self._coordinators
        is_unsure, self._resets = coordinators.resets != self._resets, coordinators.resets
        for local in self._table.with_epoch():
            if is_unsure or not coordinators.is_here(local.name.group, local.name.namespace):
                self._table.renew(local, 0)

    def _release(self, name: GroupName, epoch: int) -> None:
        """This node held a group itself: end the use of its lower epochs."""
        local = self._table.find(name.namespace, name.group)
        if local is not None and 0 < local.epoch < epoch:
            self._table.release(local, epoch)
            self.cache.flush_group(local)

    def _hand_over_from(self, node: int, groups: list[steps.Release]) -> bool:
        now = self._clock.monotonic()
        if not self._coordinators.is_online(node) or self._silent.get(node, now) > now:
            return False
        try:
            text = steps.encode(steps.HandOver(groups))
            self._peers.take_offset_step(node, text, HAND_OVER_S)
        except StoreError as error:
            self._silent[node] = self._clock.monotonic() + SILENT_S
            _log.warning(
                "offsets_not_handed_over", node=node, groups=len(groups), reason=str(error)
            )
            return False
        self._silent.pop(node, None)
        return True


def _group_commit(
    namespace: str, group: str, offsets: Mapping[ShardId, OffsetCommit]
) -> GroupCommit:
    for one in offsets.values():
        check_commit(one)
    return GroupCommit(
        namespace, group, {check_shard(shard).name: one for shard, one in offsets.items()}
    )


def _by_shard(commit: GroupCommit) -> dict[ShardId, OffsetCommit]:
    return {ShardId.parse(name): one for name, one in commit.offsets.items()}


def _raise_any(outcomes: Sequence[StoreError | None]) -> None:
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


def open_offsets(
    path: str,
    meta: OffsetClient,
    coordinators: GroupCoordinators,
    peers: OffsetPeers | None,
    settings: OffsetSettings,
    clock: Clock,
) -> OffsetManager:
    """Open or create the database of a node's offset cache in `path`, and start its manager;
    `peers` is None where there are no other nodes."""
    config = OffsetConfig(
        enable_cache=settings.enable_cache,
        flush_interval_ms=settings.flush_interval_ms,
        pending_max=settings.pending_max,
        commit_timeout_ms=settings.commit_timeout_ms,
    )
    if peers is None:
        return OffsetManager.open(path, meta, clock=clock, config=config)
    links = peers

    def make(database: Database) -> ClusterOffsetManager:
        return ClusterOffsetManager(
            meta, database, coordinators, links, clock=clock, config=config, owns_database=True
        )

    return open_manager(path, make, clock)
