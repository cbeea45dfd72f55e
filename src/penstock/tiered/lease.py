"""The upload lease of a shard, as the meta service gives it."""

from __future__ import annotations

import threading
import uuid
from typing import Final

from penstock.errors import StaleWriteError
from penstock.meta import Lease, MetadataClient
from penstock.platform.clock import Clock, SystemClock
from penstock.record import ShardId

DURATION_MS: Final = 60_000


class MetaLease:
    """Implements `UploadLease`. A lease is renewed in its second half only, so that uploads cost
    the meta service next to nothing.

    `holder` is an id of the data directory, which one process has at a time: after a kill the next
    process takes over the leases of the one before, under new epochs, without waiting for them to
    run out. Without it, the lease is this object's own."""

    def __init__(
        self, meta: MetadataClient, clock: Clock | None = None, *, holder: str = ""
    ) -> None:
        self._meta: Final = meta
        self._clock: Final = clock or SystemClock()
        self._holder: Final = f"uploader-{holder or uuid.uuid4().hex}"
        self._lock: Final = threading.Lock()
        self._held: dict[ShardId, Lease] = {}

    def hold(self, shard: ShardId) -> bool:
        with self._lock:
            lease = self._held.get(shard)
        now_ms = self._clock.now_ms()
        if lease is not None and lease.until_ms - now_ms > DURATION_MS // 2:
            return True
        try:
            if lease is not None and lease.until_ms > now_ms:
                lease = self._meta.renew_lease(lease, DURATION_MS)
            else:
                lease = self._meta.acquire_lease(shard, self._holder, DURATION_MS)
        except StaleWriteError:
            lease = None
        with self._lock:
            if lease is None:
                self._held.pop(shard, None)
            else:
                self._held[shard] = lease
        return lease is not None
