"""The groups that this process commits for: epochs, sequence numbers and cached commits.

Every commit carries a pair (epoch, sequence). The epoch is granted by the meta service when this
process first commits for a group; sequence numbers are counted here, over all groups. A process
that starts again takes new epochs, so its commits are newer than those of the previous process.

One lock guards everything here, held for microseconds and never across a call of the meta service.
A group can be held (`hold`) for a change that excludes concurrent commits: commits of that group
then wait.

In a cluster another node may take a group over: `release` ends the use of this process's epoch, and
a table that takes an epoch has the previous node save its cached commits
(`flush_previous_holders`) before it commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.errors import BusyError, ClosedError, GroupMovedError, StaleWriteError
from penstock.meta import GroupName, OffsetClient, Takeover, check_text
from penstock.meta.storage import group_prefix
from penstock.record import ShardId

_GROUPS_MAX: Final = 100_000
"""Groups without cached commits that stay in the table; an evicted one takes a new epoch."""

_TAKE_ATTEMPTS_MAX: Final = 5
"""Attempts to take a group while other nodes take it, too."""

FlushPreviousHolders = Callable[[Sequence[tuple[GroupName, Takeover]]], bool]
"""Has the previous holders of groups save their cached commits; returns whether they did."""

Pending = tuple[bytes, bytes]
"""A row of the local cache, key and value: a commit that the meta service lacks. A later commit
replaces the object; what was saved is recognised by its identity."""


class LocalGroup:
    """What this process knows of one group."""

    __slots__ = (
        "epoch",
        "floor",
        "is_held",
        "is_recovered",
        "name",
        "pending",
        "prefix",
        "previous",
    )

    def __init__(self, name: GroupName) -> None:
        self.name: Final = name
        self.prefix: Final = group_prefix(name.namespace, name.group)
        self.epoch = 0  # 0: not taken
        self.previous = 0  # the node that had the group when this one took it; 0: none
        self.floor = 0  # another node took the group under this epoch: no lower one is used again
        self.is_held = False
        self.is_recovered = False  # an earlier process left commits that were not sent again yet
        self.pending: Final[dict[ShardId, Pending]] = {}


class GroupTable:
    def __init__(self, meta: OffsetClient, *, wait_seconds_max: float) -> None:
        """`wait_seconds_max` bounds the wait for a group that is held; then `BusyError`."""
        self._meta = meta
        self.node_id: int | None = None
        """This node, if other nodes may hold groups."""
        self.flush_previous_holders: FlushPreviousHolders = lambda _taken: True
        self._wait_seconds_max = wait_seconds_max
        self._is_closed = False
        self.lock: Final = threading.Lock()
        self._changed: Final = threading.Condition(self.lock)
        self._taking: Final = threading.Lock()
        self.groups: Final[dict[tuple[str, str], LocalGroup]] = {}
        self.sequence = 0

    def find(self, namespace: str, group: str) -> LocalGroup | None:
        with self.lock:
            return self.groups.get((namespace, group))

    def with_pending(self) -> list[LocalGroup]:
        with self.lock:
            return [group for group in self.groups.values() if group.pending]

    def with_epoch(self) -> list[LocalGroup]:
        with self.lock:
            return [group for group in self.groups.values() if group.epoch]

    def join(self, namespace: str, group: str) -> LocalGroup:
        """Return a group with an epoch, for a commit; take one if there is none. May call the meta
        service. Raises `GroupMovedError` when another node had the group until then: its consumers
        may have committed there after they gave up the commit that waits here."""
        with self.lock:
            known = self.groups.get((namespace, group))
            if known is not None and known.epoch:
                return known
        local = self.claim_epoch(namespace, group)
        if self.is_from_another(local.previous):
            raise GroupMovedError(group)
        return local

    def is_from_another(self, previous: int) -> bool:
        return self.node_id is not None and previous not in (0, self.node_id)

    def claim_epoch(self, namespace: str, group: str) -> LocalGroup:
        """Return a group with an epoch, whichever node had it."""
        with self._taking:
            for _ in range(_TAKE_ATTEMPTS_MAX):
                local = self.add(namespace, group)
                if self._is_closed:
                    raise ClosedError("the offset manager was stopped")
                if not local.epoch:
                    (taken,) = self._meta.claim_groups([local.name])
                    self.adopt([(local, taken)])
                if local.epoch:
                    return local
        raise BusyError(f"group {group!r} is being taken over by another node; try again")

    def adopt(self, taken: Sequence[tuple[LocalGroup, Takeover]]) -> None:
        """Commit groups under the epochs that were granted for them, after their previous holders
        have saved their cached commits."""
        self.flush_previous_holders([(local.name, takeover) for local, takeover in taken])
        for local, takeover in taken:
            local.previous = takeover.previous
            self.renew(local, takeover.epoch)

    def add(self, namespace: str, group: str) -> LocalGroup:
        """Return a group, with or without an epoch; a new one is checked and added."""
        check_text("a namespace", namespace)
        check_text("a group", group)
        with self.lock:
            local = self.groups.get((namespace, group))
            if local is None:
                local = self.groups[namespace, group] = LocalGroup(GroupName(namespace, group))
                self._evict_oldest()
            return local

    def next_pair(self, local: LocalGroup) -> tuple[int, int]:
        """Return the pair of the next commit of a group that has an epoch; `StaleWriteError` when
        it was taken away since."""
        with self.lock:
            if not local.epoch:
                raise StaleWriteError(f"group {local.name.group!r} was taken over or removed")
            self.sequence += 1
            return local.epoch, self.sequence

    def renew(self, local: LocalGroup, epoch: int) -> None:
        """Commit under `epoch` from now on (0: take one first); never under an older one."""
        with self.lock:
            is_over = epoch < max(1, local.floor) or self._is_closed
            local.epoch = 0 if is_over else max(local.epoch, epoch)

    def release(self, local: LocalGroup, epoch: int) -> None:
        """Commit no more under an epoch below `epoch`: another node has that one."""
        with self.lock:
            local.floor = max(local.floor, epoch)
            if local.epoch < local.floor:
                local.epoch = 0

    def lost_to(self, local: LocalGroup, epoch: int) -> None:
        """A commit met a higher epoch: drop the own one, unless it was renewed since."""
        with self.lock:
            if local.epoch < epoch:
                local.epoch = 0

    def wait_while_held(self, local: LocalGroup) -> None:
        with self._changed:
            self._wait_for(local)

    def close(self) -> None:
        """Grant no more commits: those that begin from now on raise `ClosedError`."""
        with self.lock:
            self._is_closed = True
            for group in self.groups.values():
                group.epoch = 0

    @contextmanager
    def hold(self, namespace: str, group: str) -> Iterator[LocalGroup]:
        """Let no commit of the group begin while the block runs."""
        local = self._hold(namespace, group)
        try:
            yield local
        finally:
            with self._changed:
                local.is_held = False
                self._changed.notify_all()

    def _hold(self, namespace: str, group: str) -> LocalGroup:
        while True:
            local = self.add(namespace, group)
            with self._changed:
                self._wait_for(local)
                # It may have been evicted and added again during the wait.
                if self.groups.get((namespace, group)) is local:
                    local.is_held = True
                    return local

    def _wait_for(self, local: LocalGroup) -> None:
        if not self._changed.wait_for(lambda: not local.is_held, self._wait_seconds_max):
            raise BusyError(
                f"group {local.name.group!r} is being reset, removed or handed over, which has "
                f"taken more than {self._wait_seconds_max:g} s; try again"
            )

    def _evict_oldest(self) -> None:
        if len(self.groups) <= _GROUPS_MAX:
            return
        for key, group in self.groups.items():
            if not group.pending and not group.is_held:
                del self.groups[key]
                return
