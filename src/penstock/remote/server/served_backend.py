"""`ServedBackend`: what a server needs of a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.adapter import RecordWatch
from penstock.api import Backend, TopicPartition
from penstock.groups.routing import PendingReply, Question
from penstock.meta import DEFAULT_NAMESPACE
from penstock.record import Offset


class ServedBackend(Backend, Protocol):
    """A backend that also calls back in place of waiting."""

    def watch_records(
        self,
        positions: Mapping[TopicPartition, Offset],
        wake: Callable[[], None],
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> RecordWatch: ...

    @property
    def begin_group_question(self) -> Callable[[Question, Callable[[], None]], PendingReply]: ...
