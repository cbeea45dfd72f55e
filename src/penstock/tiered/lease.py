"""The upload lease of a shard, as the meta service grants it."""

from __future__ import annotations

import threading
import uuid
from typing import Final, NamedTuple

from penstock.errors import StaleWriteError
from penstock.meta import Lease, MetadataClient
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.record import ShardId

DURATION_MS: Final = 60_000
_DURATION_S: Final = DURATION_MS / 1000
_EXPIRY_MARGIN_S: Final = 5.0
"""How much longer than a lease lasts another uploader waits for it: its holder may have renewed it
a little after the observation."""
_log: Final = get_logger(__name__)


class _Granted(NamedTuple):
    lease: Lease
    since: float
    """Monotonic time before it was requested: it lasts from then on."""


class MetaLease:
    """Implements `UploadLease`. A lease is renewed in its second half only, so that uploads cost
    the meta service next to nothing.

    `holder` is an id of the data directory, which one process has at a time: after a kill the next
    process takes over the leases of the one before, under new epochs, without waiting for them to
    run out. Without it, the lease is this object's own.

    The meta service compares wall clocks of the nodes that ask it, and one of them may be set
    wrong. So a holder counts the duration of its lease by its monotonic clock, and a lease of
    another holder that has not changed for longer than that by the observer's monotonic clock has
    expired, whatever its deadline: it is removed, under its epoch."""

    def __init__(
        self, meta: MetadataClient, clock: Clock | None = None, *, holder: str = ""
    ) -> None:
        self._meta: Final = meta
        self._clock: Final = clock or SystemClock()
        self._holder: Final = f"uploader-{holder or uuid.uuid4().hex}"
        self._lock: Final = threading.Lock()
        self._granted: dict[ShardId, _Granted] = {}
        self._observed: dict[ShardId, _Granted] = {}
        """Leases of other holders, and since when each is unchanged."""

    def hold(self, shard: ShardId) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            granted = self._granted.get(shard)
        if granted is not None and now - granted.since < _DURATION_S / 2:
            return True
        try:
            lease = self._request(shard, granted, now)
        except StaleWriteError:
            lease = None
        with self._lock:
            if lease is None:
                self._granted.pop(shard, None)
            else:
                self._granted[shard] = _Granted(lease, now)
                self._observed.pop(shard, None)
        return lease is not None

    def _request(self, shard: ShardId, granted: _Granted | None, now: float) -> Lease | None:
        if granted is not None and now - granted.since < _DURATION_S:
            return self._meta.renew_lease(granted.lease, DURATION_MS)
        lease = self._meta.acquire_lease(shard, self._holder, DURATION_MS)
        if lease is None and self._remove_expired(shard, now):
            lease = self._meta.acquire_lease(shard, self._holder, DURATION_MS)
        return lease

    def _remove_expired(self, shard: ShardId, now: float) -> bool:
        """Remove another holder's lease that it has not renewed in time; return whether."""
        lease = self._meta.get_lease(shard)
        if lease is None:
            return True
        with self._lock:
            known = self._observed.get(shard)
            if known is None or known.lease != lease:
                self._observed[shard] = _Granted(lease, now)
                return False
            if now - known.since < _DURATION_S + _EXPIRY_MARGIN_S:
                return False
            del self._observed[shard]
        _log.warning(
            "upload_lease_overdue", shard=shard.name, holder=lease.holder, until_ms=lease.until_ms
        )
        self._meta.release_lease(lease)
        return True
