"""`Quarantine`: shards on this node that the metadata of its cluster do not name.

Metadata that were restored from an old copy, or damaged, lack topics whose records are still here.
Such shards are kept, served to no client, and listed in a file of the node's directory; an operator
marks those that may go, and the next start deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.platform.disk import Disk
from penstock.record import ShardId

QUARANTINE: Final = "quarantine"
_DELETE: Final = "delete"
_SIZE_MAX: Final = 16 << 20


class QuarantinedShard(Struct, frozen=True, order=True):
    storage_type: str
    shard: str
    is_doomed: bool = False
    """An operator has said that it may be deleted."""

    @property
    def id(self) -> ShardId:
        return ShardId.parse(self.shard)


class Quarantine:
    def __init__(self, disk: Disk, path: str) -> None:
        """`path` is the node's directory."""
        self._disk: Final = disk
        self._path: Final = f"{path}/{QUARANTINE}"

    def read(self) -> list[QuarantinedShard]:
        if not self._disk.exists(self._path):
            return []
        file = self._disk.open(self._path, writable=False)
        try:
            text = file.read_at(0, _SIZE_MAX).decode("utf-8", "replace")
        finally:
            file.close()
        listed: list[QuarantinedShard] = []
        for line in text.splitlines():
            words = line.split()
            if len(words) in {2, 3}:
                is_doomed = words[2:] == [_DELETE]
                listed.append(QuarantinedShard(words[0], words[1], is_doomed))
        return listed

    def write(self, shards: Iterable[QuarantinedShard]) -> None:
        """Replace the list; a list without shards removes the file."""
        lines = [
            f"{shard.storage_type} {shard.shard}{f' {_DELETE}' if shard.is_doomed else ''}\n"
            for shard in sorted(shards)
        ]
        if lines:
            self._disk.replace(self._path, "".join(lines).encode())
        elif self._disk.exists(self._path):
            self._disk.remove(self._path)

    def doom(self, names: Iterable[str]) -> int:
        """Mark shards, all without a name, for deletion at the next start; return how many."""
        chosen = set(names)
        listed = self.read()
        unknown = sorted(chosen - {entry.shard for entry in listed})
        if unknown:
            raise BadRequestError(f"shard {unknown[0]} is not in quarantine")
        marked = [
            QuarantinedShard(
                entry.storage_type,
                entry.shard,
                entry.is_doomed or not chosen or entry.shard in chosen,
            )
            for entry in listed
        ]
        self.write(marked)
        return sum(entry.is_doomed for entry in marked)
