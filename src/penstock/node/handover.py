"""What a node does before it stops in order, so that clients with retries see no error.

    1  no further records where another replica in sync can lead; those that were accepted are
       copied and acknowledged
    2  one entry of the metadata: the node is `stopping`, others lead its shards and coordinate its
       groups
    3  the node waits until it acts on that, and gives up the Raft groups that it leads

Its ports stay open meanwhile: clients with old addresses learn who leads, and calls of the storage
API are passed on. A node that no majority hears, or whose cluster has nodes of older releases,
stops as if it had not tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.engine.replication.runtime.replicator import Replicator
from penstock.errors import StoreError
from penstock.meta import LeadingNode
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

COMMIT_S: Final = 1.0
"""How long records may take to reach the other replicas before these lead without them."""

LINGER_S: Final = 0.3
"""How long the ports stay open afterwards."""

_log: Final = get_logger(__name__)


class Handover:
    def __init__(
        self,
        meta: LeadingNode,
        replicator: Replicator | None,
        save_offsets: Callable[[], object],
        clock: Clock,
    ) -> None:
        self._meta: Final = meta
        self._replicator: Final = replicator
        self._save_offsets: Final = save_offsets
        self._clock: Final = clock

    def run(self, seconds: float) -> None:
        """Return when other nodes lead what they can, after `seconds` at the latest."""
        if seconds <= 0 or not self._meta.can_announce_stop():
            return
        until = self._clock.monotonic() + seconds
        # A call of the metadata service may last longer than there is time for.
        thread = threading.Thread(
            target=self._run, args=(until,), name="penstock-handover", daemon=True
        )
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            _log.warning("handover_not_finished", seconds=seconds)

    def _run(self, until: float) -> None:
        began = self._clock.monotonic()
        try:
            self._save_offsets()
            uncommitted = 0
            if self._replicator is not None:
                uncommitted = self._replicator.stop_appends(min(COMMIT_S, self._left_s(until)))
            staying = self._meta.announce_stop()
            still_led = 0
            if self._replicator is not None:
                still_led = self._replicator.await_handover(staying, self._left_s(until))
            self._save_offsets()  # what was committed here until the others knew
            groups = self._meta.give_up_groups(self._left_s(until))
            # Clients whose requests are refused now learn who leads before connections end.
            self._clock.wait(threading.Event(), min(LINGER_S, self._left_s(until)))
        except StoreError as error:
            _log.warning("handover_failed", reason=str(error))
            return
        _log.info(
            "handed_over",
            milliseconds=round((self._clock.monotonic() - began) * 1_000),
            shards_still_led=still_led,
            shards_not_committed=uncommitted,
            groups_still_led=", ".join(groups),
        )

    def _left_s(self, until: float) -> float:
        return max(0.0, until - self._clock.monotonic())
