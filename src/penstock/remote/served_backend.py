"""`ServedBackend`: what a server needs of a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.adapter.record_watch import RecordWatch
from penstock.api.backend import Backend, TopicPartition
from penstock.groups.model import Join, Sync
from penstock.groups.routing import PendingReply
from penstock.record import Offset


class ServedBackend(Backend, Protocol):
    """A backend that also calls back in place of waiting."""

    def watch_records(
        self,
        namespace: str,
        positions: Mapping[TopicPartition, Offset],
        wake: Callable[[], None],
    ) -> RecordWatch: ...

    def begin_join(
        self, namespace: str, group: str, request: Join, seconds: float, wake: Callable[[], None]
    ) -> PendingReply: ...

    def begin_sync(
        self, namespace: str, group: str, request: Sync, seconds: float, wake: Callable[[], None]
    ) -> PendingReply: ...
