"""`Proposals`: sends changes of in-sync sets to the metadata group, from a thread of its own.

A call of the metadata group may take seconds. What is proposed meanwhile is sent with the next one;
of several proposals for a shard, the last. Without an answer nothing is reported: `ReplicaCore`
proposes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from penstock.engine.replication.effects import LeaveInSync, ProposeInSync
from penstock.engine.replication.runtime.batch_worker import BatchWorker
from penstock.engine.replication.runtime.peer_channel import PeerChannel
from penstock.errors import StoreError
from penstock.platform.log import get_logger

BATCH_MAX: Final = 1_000

_log: Final = get_logger(__name__)


@runtime_checkable
class ReplicaMetadata(Protocol):
    """The metadata service, as replication uses it."""

    @property
    def node_id(self) -> int: ...

    def on_registered(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the broker epoch of this node after every registration, and now if
        it is registered."""
        ...

    def channel(self, name: str) -> PeerChannel:
        """Return the connections to the other nodes for one purpose."""
        ...

    def lease_holds(self) -> bool:
        """Say whether the controller has promised not to replace this node yet."""
        ...

    def change_in_sync(self, proposals: Sequence[ProposeInSync]) -> Sequence[int | None]:
        """Propose changes of in-sync sets that this node leads. Returns for each None when it was
        accepted, or the partition epoch at which it was refused."""
        ...

    def leave_in_sync(self, shard: str, partition_epoch: int) -> bool:
        """Leave the sets of a shard because of damage; False: this is its last whole replica."""
        ...

    def report_unproven(self) -> None:
        """Leave the sets of all shards: this node replicates no more."""
        ...


Batch = tuple[list[ProposeInSync], list[LeaveInSync]]


class Proposals(BatchWorker[Batch]):
    def __init__(
        self,
        meta: ReplicaMetadata,
        on_refused: Callable[[ProposeInSync, int], None],
        on_last: Callable[[str], None],
    ) -> None:
        super().__init__("penstock-in-sync")
        self._meta: Final = meta
        self._on_refused: Final = on_refused
        self._on_last: Final = on_last
        self._proposed: dict[str, ProposeInSync] = {}
        self._leaving: dict[str, LeaveInSync] = {}

    def add(self, effect: ProposeInSync | LeaveInSync) -> None:
        with self._changed:
            if isinstance(effect, ProposeInSync):
                self._proposed[effect.shard] = effect
            else:
                self._leaving[effect.shard] = effect
            self._changed.notify()

    def _next_batch(self) -> Batch | None:
        if not (self._proposed or self._leaving):
            return None
        names = list(self._proposed)[:BATCH_MAX]
        proposed = [self._proposed.pop(name) for name in names]
        leaving, self._leaving = list(self._leaving.values()), {}
        return proposed, leaving

    def _run_batch(self, batch: Batch) -> None:
        try:
            self._send(*batch)
        except StoreError as error:
            _log.debug("in_sync_change_not_answered", reason=str(error))

    def _send(self, proposed: Sequence[ProposeInSync], leaving: Sequence[LeaveInSync]) -> None:
        for effect in leaving:
            if not self._meta.leave_in_sync(effect.shard, effect.partition_epoch):
                self._on_last(effect.shard)
        if not proposed:
            return
        outcomes = self._meta.change_in_sync(proposed)
        for proposal, refused_at in zip(proposed, outcomes, strict=True):
            if refused_at is not None:
                self._on_refused(proposal, refused_at)
