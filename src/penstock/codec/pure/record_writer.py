"""Puts drafts into their final form: head, hosts, body, topic, properties, checksum."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from penstock.codec.format import (
    CHECKSUM_MASK,
    CHECKSUM_SIZE,
    HOST_SIZE_IPV4,
    RECORD_HEAD,
    RECORD_IPV4,
    RECORD_TAIL,
)
from penstock.codec.pure.encoding import Draft
from penstock.codec.pure.queue_table import Queue
from penstock.codec.pure.read.codec import checksum_trailer, host_flags

_U16: Final = struct.Struct(">H")
_I64: Final = struct.Struct(">q")


class RecordWriter:
    """Encodes records that come from one pair of hosts."""

    def __init__(self, store_host: bytes, born_host: bytes) -> None:
        self._host_flags = host_flags(born_host, store_host)
        self._store_host = store_host
        self._born_host = born_host
        self._fixed_size = (
            RECORD_IPV4.size - 2 * HOST_SIZE_IPV4 + len(store_host) + len(born_host) + _U16.size
        )

    def size_of(self, queue: Queue, draft: Draft) -> int:
        return (
            self._fixed_size
            + len(draft.body)
            + len(queue.sized_topic)
            + len(draft.properties)
            + CHECKSUM_SIZE
        )

    def encode(
        self,
        queue: Queue,
        draft: Draft,
        size: int,
        position: int,
        stamps: tuple[int, int],
        epoch: int,
        sys_flag: int,
    ) -> bytes:
        """Return the record as it reads at `position`, with the next offset of `queue`. `size` is
        what `size_of` says; `stamps` are the store and born timestamps."""
        body = draft.body
        store_ms, born_ms = stamps
        head = (
            size,
            queue.magic,
            zlib.crc32(body) & CHECKSUM_MASK,
            queue.queue_id,
            0,
            queue.next_offset,
            position,
            sys_flag | self._host_flags,
            born_ms,
        )
        data = b"".join(
            (
                self._encode_fixed(head, store_ms, (0, epoch, len(body))),
                body,
                queue.sized_topic,
                _U16.pack(len(draft.properties) + CHECKSUM_SIZE),
                draft.properties,
            )
        )
        return data + checksum_trailer(zlib.crc32(data))

    def _encode_fixed(
        self, head: tuple[int, ...], store_ms: int, tail: tuple[int, int, int]
    ) -> bytes:
        if self._host_flags == 0:
            return RECORD_IPV4.pack(*head, self._born_host, store_ms, self._store_host, *tail)
        hosts = self._born_host + _I64.pack(store_ms) + self._store_host
        return RECORD_HEAD.pack(*head) + hosts + RECORD_TAIL.pack(*tail)
