"""`Backend`: what `Store`, `Topic` and `Consumer` call, in process or over the network.

Every call is synchronous and thread-safe; errors are those of `penstock.errors`. `execute` runs an
operation that `penstock.adapter.requests` or `penstock.api.requests` defines; the frequent ones are
methods, with the signatures of `StorageDriverManager`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.api.requests.node import Request
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ, Acks
from penstock.meta import DEFAULT_NAMESPACE
from penstock.record import Location, Offset, Producer, Record, StoredRecord

TopicPartition = tuple[str, int]
R = TypeVar("R")


class TryWrite(Protocol):
    def __call__(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location | None: ...


class Backend(Protocol):
    @property
    def place(self) -> str:
        """The directory, or the address, of the store."""
        ...

    def execute(self, request: Request[R]) -> R: ...

    def write(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location: ...

    @property
    def try_write(self) -> TryWrite | None:
        """Append a record if that takes microseconds; return None if nothing was written. None for
        a backend over the network."""
        ...

    def batch_write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Sequence[Location]: ...

    def batch_write_topics(
        self, batch: Sequence[tuple[str, Record]], *, namespace: str = DEFAULT_NAMESPACE
    ) -> Sequence[Location]: ...

    def read_by_offset(
        self,
        topic: str,
        partition: int,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[StoredRecord]: ...

    def wait_for_records(
        self,
        positions: Mapping[TopicPartition, Offset],
        seconds: float,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> bool:
        """Wait for a record at or after one of the positions; return whether there is one."""
        ...

    def close(self) -> None: ...
