"""What a tier is made of: named objects with one narrow interface.

Everything above it (chunks, manifests, garbage collection) uses these seven calls and nothing else,
so that memory, a directory and an object store behave alike. `penstock.testing.tier_conformance`
checks each sentence below against any provider, also a third party's.

General promises:

  * Methods may be called from any thread, and take no longer than the provider's timeouts allow.
  * Keys are parts joined by "/"; each part holds ASCII letters, digits and `._-%=+~`.
  * An object is there whole or not at all, and durable when the call that wrote it returns.
  * `TierUnavailableError`: try again later; whether a write took place is not known.
  * `TierSetupError`: wrong bucket, no permission, a bad URL; trying again does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast, runtime_checkable

from penstock.codec.select import core
from penstock.errors import StoreError, TierUnavailableError


class ObjectMissingError(StoreError, LookupError):
    def __init__(self, url: str, key: str) -> None:
        super().__init__(f"{url}: object {key!r} does not exist")
        self.key = key


class UnsyncedWriteError(TierUnavailableError):
    """The write is visible and a power cut may undo it: repeat it. Reading it back proves
    nothing."""


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_ms: int


class ObjectBytes(NamedTuple):
    """A whole object, and the version to name in a compare-and-set."""

    data: bytes
    version: str


class TierProvider(Protocol):
    @property
    def url(self) -> str:
        """Where the objects are, without credentials; for messages."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create an object; raise `AlreadyExistsError`, and change nothing, when there is one."""
        ...

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        """Replace the object if it still has version `expected` (None: if there is none); return
        the new version. Raise `StaleWriteError` otherwise. Of several callers that expect the same
        version, exactly one succeeds."""
        ...

    def get(self, key: str) -> ObjectBytes:
        """Return a whole object; raise `ObjectMissingError` when there is none."""
        ...

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return exactly `size` bytes from `start` on; raise `ObjectMissingError` when there is no
        such object, `TierUnavailableError` when fewer came."""
        ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; do nothing when there is none."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class FillsBuffers(Protocol):
    """What a provider may have besides: ranges that need no memory of their own."""

    def get_range_into(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview]
    ) -> None:
        """Fill the buffer of `size` bytes that `get_buffer` returns with what `get_range` would
        return. Call `get_buffer` when the answer begins, since it may wait for memory; called again
        it returns the same buffer. When this raises, what the buffer holds is not known."""
        ...


def get_range_into(
    provider: TierProvider, key: str, start: int, size: int, get_buffer: Callable[[], memoryview]
) -> None:
    """Fill a buffer, whatever the provider has."""
    if isinstance(provider, FillsBuffers):
        provider.get_range_into(key, start, size, get_buffer)
    else:
        get_buffer()[:] = provider.get_range(key, start, size)


class Blocks(NamedTuple):
    """Which checksums are wanted: of each block of the first `size` bytes of a range."""

    size: int
    block_size: int


class SumsBlocks(Protocol):
    """What a provider may have besides: checksums while bytes are in the processor's cache."""

    def get_range_summed(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview], blocks: Blocks
    ) -> bytes:
        """Do as `get_range_into`; return the CRC-32 of every block, as `Core.block_checksums`."""
        ...


def get_range_summed(
    provider: TierProvider,
    key: str,
    start: int,
    size: int,
    get_buffer: Callable[[], memoryview],
    blocks: Blocks,
) -> bytes:
    """Fill a buffer and return the checksums of what it holds then, whatever the provider has."""
    if hasattr(provider, "get_range_summed"):  # a tenth of what `isinstance` takes
        return cast("SumsBlocks", provider).get_range_summed(key, start, size, get_buffer, blocks)
    get_range_into(provider, key, start, size, get_buffer)
    return core.block_checksums(get_buffer()[: blocks.size], blocks.block_size)


class HasFiles(Protocol):
    """What a provider may have besides: objects that are files of this machine, byte for byte."""

    def path_of(self, key: str) -> str | None:
        """Return the path at which an object is stored if it exists; None when objects are not
        files of this machine."""
        ...


def path_of(provider: TierProvider, key: str) -> str | None:
    return cast("HasFiles", provider).path_of(key) if hasattr(provider, "path_of") else None


@runtime_checkable
class LeavesParts(Protocol):
    """What a provider may have besides: a way to remove what killed writers left half-done."""

    def remove_leftovers(self, before_ms: int) -> int:
        """Remove parts of objects that were never finished and are older; return how many."""
        ...


def remove_leftovers(provider: TierProvider, before_ms: int) -> int:
    return provider.remove_leftovers(before_ms) if isinstance(provider, LeavesParts) else 0
