"""Batches lines or files for `penstock produce`: up to `BATCH` values, or what arrived within
`LINGER_S`."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from penstock.cli.signals import Stopping

BATCH: Final = 500
BATCH_SIZE: Final = 4 << 20
"""Maximum bytes of values in a batch: gRPC messages have a size limit."""
LINGER_S: Final = 0.1
"""How long a line waits for more lines."""
_CHUNK_SIZE: Final = 1 << 16


class _Batch:
    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._size = 0
        self._due = 0.0

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, value: bytes) -> list[bytes] | None:
        """Add a value; return the previous values if the batch was full."""
        full = None
        if len(self._values) == BATCH or self._size + len(value) > BATCH_SIZE:
            full = self.drain() or None
        if not self._values:
            self._due = time.monotonic() + LINGER_S
        self._values.append(value)
        self._size += len(value)
        return full

    def drain(self) -> list[bytes]:
        values, self._values, self._size = self._values, [], 0
        return values

    def wait_s(self) -> float | None:
        """Return how long the batch may wait for more; None without a limit."""
        return self._due - time.monotonic() if self._values else None


class _Source:
    """Reads a stream as data arrives."""

    def __init__(self, stream: BinaryIO, stopping: Stopping) -> None:
        self._stream: Final = stream
        self._stopping: Final = stopping
        try:
            self._descriptor = stream.fileno()
        except io.UnsupportedOperation:  # an in-memory stream, always readable
            self._descriptor = -1

    def read(self, wait_s: float | None) -> bytes | None:
        """Return the next bytes, empty at the end; None if nothing arrived in time or the command
        is asked to stop."""
        if wait_s is not None and wait_s <= 0:
            return None
        if self._descriptor < 0:
            return self._stream.read(_CHUNK_SIZE)
        if not self._stopping.wait_readable(self._descriptor, wait_s):
            return None
        return os.read(self._descriptor, _CHUNK_SIZE)


def batches_of_lines(stream: BinaryIO, stopping: Stopping) -> Iterator[list[bytes]]:
    """Yield the lines of a stream; on a stop, the lines read so far."""
    source, batch = _Source(stream, stopping), _Batch()
    begun: list[bytes] = []  # an incomplete line
    while not stopping.is_asked:
        chunk = source.read(batch.wait_s())
        if chunk is None:
            if batch:
                yield batch.drain()
            continue
        if not chunk:
            if any(begun) and (full := batch.add(b"".join(begun).removesuffix(b"\r"))):
                yield full
            break
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*begun, lines[0]))
            begun.clear()
        begun.append(rest)
        for line in lines:
            if full := batch.add(line.removesuffix(b"\r")):
                yield full
    if batch:
        yield batch.drain()


def batches_of_files(paths: Iterable[str], stopping: Stopping) -> Iterator[list[bytes]]:
    """Yield the contents of files; on a stop, of the files read so far."""
    batch = _Batch()
    for path in paths:
        if stopping.is_asked:
            break
        with open(path, "rb") as file:
            content = file.read()
        if full := batch.add(content):
            yield full
    if batch:
        yield batch.drain()
