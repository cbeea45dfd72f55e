"""Reads the rows of `__mqtt_sessions`: the last one of each key."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import Final

import msgspec

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.sessions import rows
from penstock.brokers.mqtt.sessions.row_writer import TOPIC
from penstock.errors import StoreError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.record import Offset, StoredRecord

RECORDS_PER_READ: Final = 2_000


class SavedRows:
    """Rows by client id; marks by topic id; groups by name."""

    def __init__(self) -> None:
        self.sessions: Final[dict[str, rows.SessionRow]] = {}
        self.positions: Final[dict[str, rows.PositionRow]] = {}
        self.out: Final[dict[str, rows.OutRow]] = {}
        self.receipts: Final[dict[str, rows.ReceiptRow]] = {}
        self.marks: Final[dict[str, rows.MarkRow]] = {}
        self.groups: Final[dict[str, rows.GroupRow]] = {}

    @property
    def marked_ms(self) -> int:
        """When the last mark was written."""
        return max((mark.time_ms for mark in self.marks.values()), default=0)

    def drop_stale(self) -> None:
        """Drop the rows of earlier sessions of the same clients."""
        for kind in (self.positions, self.out, self.receipts):
            for name in [name for name, row in kind.items() if not self._is_current(name, row)]:
                del kind[name]

    def _is_current(self, name: str, row: rows.PositionRow | rows.OutRow | rows.ReceiptRow) -> bool:
        session = self.sessions.get(name)
        return session is not None and session.number == row.session

    def add(self, key: bytes, value: bytes) -> None:
        """Add one row; raise `StoreError` if it cannot be decoded."""
        client, separator, kind = key.partition(b"\0")
        try:
            name = client.decode()
            match separator + kind:
                case b"":
                    self.sessions[name] = rows.decode_session(value)
                case rows.POSITION:
                    self.positions[name] = rows.decode_position(value)
                case rows.OUT:
                    self.out[name] = rows.decode_out(value)
                case rows.RECEIPTS:
                    self.receipts[name] = rows.decode_receipts(value)
                case _ if key.startswith(rows.GROUP):
                    self.groups[key.removeprefix(rows.GROUP).decode()] = rows.decode_group(value)
                case _ if key.startswith(rows.MARK):
                    self._add_mark(key.removeprefix(rows.MARK).decode(), rows.decode_mark(value))
                case _:
                    pass  # of a later release
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(
                f"the row {key!r} of topic {TOPIC!r} cannot be decoded: {error}; delete the row, "
                "or the topic with all sessions"
            ) from error

    def _add_mark(self, topic_id: str, mark: rows.MarkRow) -> None:
        """Of the marks of several partitions the lowest ends hold."""
        known = self.marks.get(topic_id)
        if known is None:
            self.marks[topic_id] = mark
            return
        ends = [
            min(one, other) if min(one, other) >= 0 else max(one, other)
            for one, other in zip_longest(known.ends, mark.ends, fillvalue=-1)
        ]
        self.marks[topic_id] = rows.MarkRow(max(known.time_ms, mark.time_ms), ends)


async def read_rows(drivers: StorageDriverManager, namespace: str = DEFAULT_NAMESPACE) -> SavedRows:
    """Read the rows of all partitions, a page at a time."""
    saved = SavedRows()
    if (namespace, TOPIC) not in drivers.broker_cache.topics:
        return saved  # there were no sessions to be kept
    for partition in range(drivers.routes.find(TOPIC, namespace).partitions):
        await read_partition(drivers, partition, saved, namespace)
    return saved


async def read_partition(
    drivers: StorageDriverManager,
    partition: int,
    saved: SavedRows,
    namespace: str = DEFAULT_NAMESPACE,
) -> None:
    """Add the rows of one partition."""
    last: dict[bytes, bytes] = {}
    offset = 0
    while True:
        page = await drivers.run_blocking(
            partial(
                drivers.read_by_offset,
                TOPIC,
                partition,
                Offset(offset),
                max_records=RECORDS_PER_READ,
                namespace=namespace,
            )
        )
        if not page:
            break
        _keep_last(last, page)
        offset = page[-1].offset + 1
    for key, value in last.items():
        saved.add(key, value)
    saved.drop_stale()


def _keep_last(last: dict[bytes, bytes], page: list[StoredRecord]) -> None:
    for record in page:
        if record.key is None:
            continue
        if record.value is None:
            last.pop(record.key, None)
        else:
            last[record.key] = record.value
