"""The states of all shards, in 64 small files.

    penstock/shards/00 … 63            a shard is in the file that the CRC-32 of its name chooses
    penstock/copies/00 …               the same bytes again, read when a file is missing or damaged
    penstock/shards/00.published …     newer copies for readers in other processes, not synced

A file holds many shards, because thousands of shards must not be thousands of files to sync; there
are many files, because one busy shard must not rewrite the states of all others. Each file is
replaced as a whole: a reader sees an old state or a new one. States of different files may be of
different moments; each says by `folded_until` of which.

Why there are two copies: readers in other processes want fresh bounds twice a second, and a sync
for each would cost the log dearly; but what was replaced without a sync may be torn by a power
cut, or be ahead of a log that lost its tail. So recovery reads only what was saved durably, and a
published copy never touches that.

A state that is missing, or whose file is damaged, is folded again from the log by the caller.
But the log does not hold all of it (where a shard was cut, what a removed file said), so one bad
sector must not be the end of it: everything durable is there twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.recovery.checksummed_file import Kind, frame, read_whole, unframe
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk
from penstock.platform.layout import Field, Layout
from penstock.record import ShardId

BUCKETS: Final = 64
PUBLISHED_SUFFIX: Final = ".published"

SHARD_STATES: Final = Kind(b"PSTKSHRD", 1)

STATE_ENTRY: Final = Layout(
    "shard state entry",
    Field("name_size", "u16", "bytes of the shard's name, which follows"),
    Field("state_size", "u32", "bytes of its state, a MessagePack array, which follows the name"),
    size=6,
)


class PackableState(Protocol):
    """Something that is a `ShardState` once it is in a file."""

    def to_bytes(self) -> bytes: ...


class StateFiles:
    """The caller serialises calls of `save`; `load` and `load_all` may run beside it."""

    def __init__(self, disk: Disk, directory: str, copies: str | None = None) -> None:
        """Keep the states in `directory`, and everything durable once more in `copies`."""
        self._disk: Final = disk
        self._directory: Final = directory
        self._copies: Final = copies
        # Who is in which bucket, so that saving one of 100,000 shards does not hash all names.
        self._members: list[dict[ShardId, None]] = [{} for _ in range(BUCKETS)]
        self.mended: set[int] = set()
        """Buckets whose file was missing or damaged, so that the copy was read."""

    @property
    def buckets(self) -> list[int]:
        """The buckets that hold a shard, and so have a file."""
        return [bucket for bucket, members in enumerate(self._members) if members]

    def load_all(
        self, *, published: bool = False, expected: Iterable[int] = ()
    ) -> tuple[dict[ShardId, ShardState], list[str]]:
        """Return every state that can be believed, and the paths of the files that cannot.

        Recovery takes what was saved durably; with `published`, a reader in another process takes
        the newer copies where there are any. `expected` buckets are damaged when they are missing.
        """
        states: dict[ShardId, ShardState] = {}
        damaged: list[str] = []
        needed = set(expected)
        for bucket in sorted(needed | self._present()):
            try:
                bucket_states = self._newest(bucket) if published else self._durable(bucket)
                if bucket_states is None and bucket in needed:
                    damaged.append(self._path(bucket))
                states.update(bucket_states or ())
            except CorruptionError as error:
                damaged.append(error.path)
        self._rebuild_members(states)
        return states, damaged

    def _present(self) -> set[int]:
        """Return the buckets that have a file of any kind: most have none in a small store."""
        directories = [self._directory, *([] if self._copies is None else [self._copies])]
        names = (name for directory in directories for name in self._disk.list(directory))
        return {int(name[:2]) for name in names if name[:2].isdigit()}

    def load(self, shard: ShardId) -> ShardState | None:
        """Return the newest state of one shard that is on disk now, for a reader in another
        process; raise CorruptionError when its file is damaged."""
        for _, state in self._newest(bucket_of(shard), only=shard) or ():
            return state
        return None

    def save(
        self, dirty: Iterable[ShardId], states: Mapping[ShardId, PackableState], *, durable: bool
    ) -> None:
        """Write the states of `dirty`, and of all shards that share a file with one of them.

        `states` holds every shard there is; a dirty shard that is not in it was removed. When
        `durable`, recovery will find these states; otherwise only other processes will.
        """
        self.write(self.pack(dirty, states), durable=durable)

    def pack(
        self, dirty: Iterable[ShardId], states: Mapping[ShardId, PackableState]
    ) -> dict[int, bytes]:
        """Return what `write` is to put into the files, by bucket."""
        return {
            bucket: _pack(bucket, [(shard, states[shard]) for shard in self._members[bucket]])
            for bucket in sorted(self._update_members(dirty, states))
        }

    def write(self, packed: Mapping[int, bytes], *, durable: bool) -> None:
        if not durable:
            for bucket, data in packed.items():
                self._disk.replace(self._path(bucket) + PUBLISHED_SUFFIX, data, durable=False)
        elif packed:
            copies = (
                [] if self._copies is None else [(self._copy_path(n), packed[n]) for n in packed]
            )
            # The copies first: a copy is then never older than its file.
            self._disk.replace_together([*copies, *((self._path(n), packed[n]) for n in packed)])
            for bucket in packed:
                # Older than what was saved just now.
                self._disk.remove(self._path(bucket) + PUBLISHED_SUFFIX)

    def _update_members(
        self, dirty: Iterable[ShardId], states: Mapping[ShardId, PackableState]
    ) -> set[int]:
        """Learn of shards that came or went; return the buckets to write."""
        buckets: set[int] = set()
        for shard in dirty:
            bucket = bucket_of(shard)
            buckets.add(bucket)
            if shard in states:
                self._members[bucket][shard] = None
            else:
                self._members[bucket].pop(shard, None)
        if sum(map(len, self._members)) != len(states):
            self._rebuild_members(states)
        return buckets

    def _rebuild_members(self, states: Iterable[ShardId]) -> None:
        self._members = [{} for _ in range(BUCKETS)]
        for shard in states:
            self._members[bucket_of(shard)][shard] = None

    def _newest(
        self, bucket: int, only: ShardId | None = None
    ) -> list[tuple[ShardId, ShardState]] | None:
        path = self._path(bucket) + PUBLISHED_SUFFIX
        data = read_whole(self._disk, path)
        if data is not None:
            try:
                return _unpack(path, bucket, data, only)
            except CorruptionError:
                # Torn by a power cut, which is allowed: what was saved durably still holds.
                pass
        return self._durable(bucket, only)

    def _durable(
        self, bucket: int, only: ShardId | None = None
    ) -> list[tuple[ShardId, ShardState]] | None:
        """Return what was saved, or None when nothing was."""
        path = self._path(bucket)
        try:
            data = read_whole(self._disk, path)
            if data is not None:
                return _unpack(path, bucket, data, only)
        except CorruptionError:
            copy = self._copy(bucket, only)
            if copy is None:
                raise
            return copy
        return self._copy(bucket, only)

    def _copy(self, bucket: int, only: ShardId | None) -> list[tuple[ShardId, ShardState]] | None:
        """Return what the second copy holds, or None when it is of no use either."""
        if self._copies is None:
            return None
        path = self._copy_path(bucket)
        data = read_whole(self._disk, path)
        if data is None:
            return None
        try:
            states = _unpack(path, bucket, data, only)
        except CorruptionError:
            return None
        self.mended.add(bucket)
        return states

    def _path(self, bucket: int) -> str:
        return f"{self._directory}/{bucket:02d}"

    def _copy_path(self, bucket: int) -> str:
        return f"{self._copies}/{bucket:02d}"


def bucket_of(shard: ShardId) -> int:
    return zlib.crc32(_encode_name(shard)) % BUCKETS


def _encode_name(shard: ShardId) -> bytes:
    return f"{shard.topic}_{shard.partition}".encode("utf-8", "surrogateescape")


def _pack(bucket: int, members: list[tuple[ShardId, PackableState]]) -> bytes:
    # The bucket's number is in the body: a file under another file's name is damage, too.
    parts = [bytes((bucket,))]
    for shard, state in members:
        name = _encode_name(shard)
        data = state.to_bytes()
        parts += (STATE_ENTRY.pack(len(name), len(data)), name, data)
    return frame(SHARD_STATES, len(members), b"".join(parts))


def _unpack(
    path: str, bucket: int, data: bytes, only: ShardId | None
) -> list[tuple[ShardId, ShardState]]:
    count, body = unframe(SHARD_STATES, path, data)
    encoded_name = None if only is None else _encode_name(only)
    try:
        return [
            (ShardId.parse(name.decode("utf-8", "surrogateescape")), ShardState.from_bytes(state))
            for name, state in _split(body, bucket, count)
            if encoded_name is None or name == encoded_name
        ]
    except ValueError as error:
        # The checksum matched, so these bytes were written so: by another program, or a fault.
        raise CorruptionError(path, position=0, reason=str(error)) from error


def _split(body: memoryview, bucket: int, count: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the name and the packed state of each entry; raise ValueError if they do not add up."""
    if bytes(body[:1]) != bytes((bucket,)):
        raise ValueError(f"this is not bucket {bucket}")
    position = 1
    for _ in range(count):
        name_at = position + STATE_ENTRY.size
        if name_at > len(body):
            raise ValueError("an entry is cut short")
        name_size, state_size = STATE_ENTRY.unpack_from(body, position)
        state_at = name_at + name_size
        position = state_at + state_size
        if position > len(body):
            raise ValueError("an entry is cut short")
        yield bytes(body[name_at:state_at]), body[state_at:position]
    if position != len(body):
        raise ValueError("there are bytes after the last entry")
