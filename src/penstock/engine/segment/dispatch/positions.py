"""How far one dispatcher has come in every shard, kept in one small file.

    penstock/dispatch/<dispatcher>      checksummed, replaced as a whole

A position is the offset of the next record to hand over. It is saved after the records were handed
over, so an old one only means that some are handed over again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from penstock.engine.segment.recovery.checksummed_file import Kind, frame, read_whole, unframe
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk
from penstock.platform.layout import Field, Layout
from penstock.record import ShardId

POSITIONS: Final = Kind(b"PSTKDISP", 1)

POSITION_ENTRY: Final = Layout(
    "dispatch position entry",
    Field("name_size", "u16", "bytes of the shard's name, which follows"),
    Field("offset", "u64", "the next record that the dispatcher gets"),
    size=10,
)


class DispatchPositions:
    """One thread moves positions; any thread may look at them."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path: Final = path
        self._disk: Final = disk
        self._offsets: dict[ShardId, int] = {}
        self._entries: dict[ShardId, bytes] = {}
        """As they lie in the file: of thousands of shards few move from one save to the next."""
        self._moved: set[ShardId] = set()
        """Shards whose entry is to be made anew."""
        self._is_dirty = False
        self._saving: Final = threading.Lock()

    @property
    def is_dirty(self) -> bool:
        """Whether a position moved since the file was written."""
        return self._is_dirty

    def load(self) -> None:
        """Read the file; raise CorruptionError when it is damaged, and know no position then."""
        data = read_whole(self._disk, self.path)
        self._offsets = {} if data is None else _unpack(self.path, data)
        self._entries, self._moved = {}, set(self._offsets)

    def get(self, shard: ShardId) -> int | None:
        return self._offsets.get(shard)

    def move(self, shard: ShardId, offset: int) -> None:
        if self._offsets.get(shard) != offset:
            self._offsets[shard] = offset
            self._moved.add(shard)
            self._is_dirty = True

    def cut(self, shard: ShardId, offset: int) -> bool:
        """Go back to `offset`; return False when there is nothing to go back from."""
        position = self._offsets.get(shard)
        if position is None or position <= offset:
            return False
        self.move(shard, offset)
        return True

    def keep_only(self, shards: Iterable[ShardId]) -> None:
        """Remove the positions of deleted shards."""
        gone = self._offsets.keys() - shards
        for shard in gone:
            del self._offsets[shard]
        self._moved |= gone
        self._is_dirty = self._is_dirty or bool(gone)

    def save(self) -> None:
        """Write the file, durably: a torn one would hand everything over again."""
        with self._saving:
            self._is_dirty = False
            try:
                self._disk.replace(self.path, self._pack(), durable=True)
            except OSError:
                self._is_dirty = True
                raise

    def _pack(self) -> bytes:
        moved, self._moved = self._moved, set()
        for shard in moved:
            offset = self._offsets.get(shard)
            if offset is None:
                self._entries.pop(shard, None)
            else:
                self._entries[shard] = _pack_entry(shard, offset)
        return frame(POSITIONS, len(self._entries), b"".join(self._entries.values()))


def _pack_entry(shard: ShardId, offset: int) -> bytes:
    name = shard.name.encode("utf-8", "surrogateescape")
    return POSITION_ENTRY.pack(len(name), offset) + name


def _unpack(path: str, data: bytes) -> dict[ShardId, int]:
    count, body = unframe(POSITIONS, path, data)
    offsets: dict[ShardId, int] = {}
    position = 0
    for _ in range(count):
        name_at = position + POSITION_ENTRY.size
        if name_at > len(body):
            raise CorruptionError(path, position=position, reason="an entry is cut short")
        name_size, offset = POSITION_ENTRY.unpack_from(body, position)
        position = name_at + name_size
        name = bytes(body[name_at:position]).decode("utf-8", "surrogateescape")
        try:
            offsets[ShardId.parse(name)] = offset
        except ValueError as error:
            raise CorruptionError(path, position=name_at, reason=str(error)) from error
    if position != len(body):
        raise CorruptionError(path, position=position, reason="the entries do not add up")
    return offsets
