"""`memory://name`: objects in this process, shared by all providers of one name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

from penstock.errors import AlreadyExistsError, StaleWriteError
from penstock.tiered.providers.contract import ObjectBytes, ObjectInfo, ObjectMissingError


class _Bucket:
    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.objects: dict[str, tuple[bytes, int, int]] = {}
        """Data, version, time of writing."""
        self.versions = 0


_BUCKETS: dict[str, _Bucket] = {}
_BUCKETS_LOCK: Final = threading.Lock()


class MemoryProvider:
    def __init__(self, name: str) -> None:
        self._name: Final = name
        with _BUCKETS_LOCK:
            self._bucket: Final = _BUCKETS.setdefault(name, _Bucket())

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def put_if_absent(self, key: str, data: bytes) -> None:
        with self._bucket.lock:
            if key in self._bucket.objects:
                raise AlreadyExistsError(f"{self.url}: object {key!r} exists already")
            self._store(key, data)

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        with self._bucket.lock:
            stored = self._bucket.objects.get(key)
            version = None if stored is None else str(stored[1])
            if version != expected:
                raise StaleWriteError(f"{self.url}: {key!r} has version {version}, not {expected}")
            return self._store(key, data)

    def _store(self, key: str, data: bytes) -> str:
        self._bucket.versions += 1
        version = self._bucket.versions
        self._bucket.objects[key] = (bytes(data), version, time.time_ns() // 1_000_000)
        return str(version)

    def get(self, key: str) -> ObjectBytes:
        stored = self._bucket.objects.get(key)
        if stored is None:
            raise ObjectMissingError(self.url, key)
        return ObjectBytes(stored[0], str(stored[1]))

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return exactly(self.get(key).data[start : start + size], size, self.url, key)

    def head(self, key: str) -> ObjectInfo | None:
        stored = self._bucket.objects.get(key)
        return None if stored is None else ObjectInfo(key, len(stored[0]), stored[2])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._bucket.lock:
            keys = sorted(key for key in self._bucket.objects if key.startswith(prefix))
        for key in keys:
            info = self.head(key)
            if info is not None:
                yield info

    def delete(self, key: str) -> None:
        with self._bucket.lock:
            self._bucket.objects.pop(key, None)

    def close(self) -> None:
        """The objects stay: another handle may use them."""


def drop_bucket(name: str) -> None:
    """Drop all objects of `memory://name`."""
    with _BUCKETS_LOCK:
        _BUCKETS.pop(name, None)


def exactly(data: bytes, size: int, url: str, key: str) -> bytes:
    """Return `data` if it has the size that was asked for. A range past the end of an immutable
    object means that the object is not the one spoken of."""
    if len(data) != size:
        raise ObjectMissingError(url, f"{key} ({size} bytes wanted, {len(data)} there)")
    return data
