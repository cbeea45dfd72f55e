"""Proposes commands of the metadata log, and reads its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.meta.client_api.proposer import Proposer
from penstock.meta.rejections import encode_checked, error_of
from penstock.meta.state.answers import Rejected, read_head
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.view import Reader
from penstock.meta.storage.groups import GroupLog
from penstock.meta.watch import Update, Watch, Watchers
from penstock.platform.clock import Clock

MetadataGroup = GroupLog[cmd.Answer]
ResultT = TypeVar("ResultT", bound=cmd.Result)


class MetadataProposer(Proposer):
    def __init__(
        self,
        group: MetadataGroup,
        watchers: Watchers,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        Proposer.__init__(self, node_id=node_id, clock=clock)
        self._group = group
        self._watchers = watchers
        self._entropy = entropy
        self._cluster_id: Final = cluster_id

    @property
    def _reader(self) -> Reader:
        return self._group.reader

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def revision(self) -> int:
        return read_head(self._reader).revision

    def watch(self, after: int, callback: Callable[[Update], None]) -> Watch:
        return self._watchers.watch(self._reader, after, callback)

    def _propose(self, command: cmd.Command, request_id: str = "") -> cmd.Answer:
        answer = self._group.propose(self._encoded(command, request_id))
        self._watchers.deliver()
        return answer

    def _encoded(self, command: cmd.Command, request_id: str = "") -> bytes:
        request = cmd.Request(self._clock.now_ms(), command, self._request_id(request_id))
        return encode_checked(request)

    def _done(self, command: cmd.Command, kind: type[ResultT], request_id: str = "") -> ResultT:
        return expect_result(self._propose(command, request_id), kind)


def expect_result(answer: cmd.Answer, kind: type[ResultT]) -> ResultT:
    if isinstance(answer, Rejected):
        raise error_of(answer)
    assert isinstance(answer.result, kind), f"expected {kind.__name__}, got {answer.result!r}"
    return answer.result
