"""The backend of a store in this process: calls run in the caller's thread."""

from __future__ import annotations

from typing import Final, TypeVar

from penstock.api.fork_guard import disown_in_children
from penstock.api.requests.node import NodeRequest, Request, RunningNode

R = TypeVar("R")


class EmbeddedBackend:
    """Implements `Backend`; closing it stops the node.

    The frequent operations are the bound methods of `StorageDriverManager`, so that the backend
    adds no call to a write or a read.
    """

    def __init__(self, node: RunningNode) -> None:
        self._node: Final = node
        drivers = self._drivers = node.driver_manager
        self.place: Final = node.path
        self.write: Final = drivers.write
        self.try_write: Final = drivers.try_write
        self.batch_write: Final = drivers.batch_write
        self.batch_write_topics: Final = drivers.batch_write_topics
        self.read_by_offset: Final = drivers.read_by_offset
        self.wait_for_records: Final = drivers.wait_for_records
        self.watch_records: Final = drivers.watch_records
        self.begin_group_question: Final = drivers.group_router.begin
        self.close: Final = node.close
        disown_in_children(self)

    def execute(self, request: Request[R]) -> R:
        if isinstance(request, NodeRequest):
            return request.run(self._node)
        return request.run(self._drivers)
