"""Groups and their rows, at other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from msgspec.msgpack import Decoder

from penstock.errors import DeadlineError, StoreError
from penstock.meta.client_api.call_batcher import CallBatcher
from penstock.meta.client_api.local_reads import LocalRows
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.remote.connection import MetaConnection, error_named
from penstock.meta.state.answers import Rejected
from penstock.meta.state.view import Row
from penstock.meta.storage.groups import GroupName

AnswerT = TypeVar("AnswerT")

_rejected_decoder: Final = Decoder(Rejected)


class RemoteRows:
    """Rows of a group, read over the connection; with `staleness_ms`, local reads of the node that
    answers."""

    def __init__(
        self, connection: MetaConnection, number: int, staleness_ms: int | None = None
    ) -> None:
        self._connection = connection
        self._number = number
        self._staleness_ms = staleness_ms
        self._age_ms: int | None = 0

    def within(self, staleness_ms: int) -> LocalRows:
        rows = RemoteRows(self._connection, self._number, staleness_ms)
        return LocalRows(rows, lambda: rows.age_ms)

    @property
    def age_ms(self) -> int | None:
        """The greatest age of all answers so far; None: the age of one is unknown."""
        return self._age_ms

    def get(self, key: bytes) -> bytes | None:
        request = pb.GetRequest(
            group=self._number,
            key=key,
            is_local=self._staleness_ms is not None,
            max_staleness_ms=self._staleness_ms,
        )
        reply = self._connection.call("Get", request, pb.GetReply)
        self._update_age(reply)
        return reply.row if reply.is_there else None

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        while True:
            request = pb.ScanRequest(
                group=self._number,
                start=start,
                end=end,
                is_local=self._staleness_ms is not None,
                max_staleness_ms=self._staleness_ms,
            )
            reply = self._connection.call("Scan", request, pb.ScanReply)
            self._update_age(reply)
            for row in reply.rows:
                yield row.key, row.row
            if not reply.has_more:
                return
            start = reply.rows[-1].key + b"\x00"

    def _update_age(self, reply: pb.GetReply | pb.ScanReply) -> None:
        if not reply.HasField("age_ms"):
            self._age_ms = None
        elif self._age_ms is not None:
            self._age_ms = max(self._age_ms, reply.age_ms)


class RemoteGroup(Generic[AnswerT]):
    """A group that other nodes hold."""

    def __init__(
        self,
        connection: MetaConnection,
        name: GroupName,
        number: int,
        decode: Callable[[bytes], AnswerT],
    ) -> None:
        self.name: Final = name
        self.reader: Final = RemoteRows(connection, number)
        self._connection = connection
        self._number = number
        self._decode = decode
        self._batcher: CallBatcher[pb.ProposeOutcome] = CallBatcher(self._send)

    def propose(self, data: bytes) -> AnswerT | Rejected:
        outcome = self._connection.retry(lambda _address: self._outcome(data))
        if outcome.is_rejected:
            return _rejected_decoder.decode(outcome.answer)
        return self._decode(outcome.answer)

    def propose_many(self, requests: Sequence[bytes]) -> list[AnswerT | Rejected | StoreError]:
        answers: list[AnswerT | Rejected | StoreError] = []
        for data in requests:
            try:
                answers.append(self.propose(data))
            except StoreError as error:
                answers.append(error)
        return answers

    def _outcome(self, data: bytes) -> pb.ProposeOutcome:
        outcome = self._batcher.call(data)
        if outcome.error:
            error = error_named(outcome.error, outcome.reason)
            raise error if error is not None else DeadlineError(outcome.reason)
        return outcome

    def _send(self, requests: list[bytes]) -> list[pb.ProposeOutcome]:
        request = pb.ProposeManyRequest(group=self._number, requests=requests)
        reply = self._connection.call("ProposeMany", request, pb.ProposeManyReply)
        return list(reply.outcomes)
