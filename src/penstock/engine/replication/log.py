"""`ReplicaLog`: the log of one shard on this node, as replication uses it.

A shard has one log or several (records; control commands), each with its own offsets, epochs and
commit offset; they have the same leader and the same in-sync set.
"""

from __future__ import annotations

from typing import Protocol


class ReplicaLog(Protocol):
    """Calls come from one thread. Only `append` by clients moves `end` from outside."""

    @property
    def start(self) -> int:
        """The first offset that this node's log can give to a follower."""
        ...

    @property
    def end(self) -> int:
        """The offset after the last record, committed or not."""
        ...

    @property
    def safe(self) -> int:
        """The end of what is as safe as the topic asks for: synced records where it syncs before
        it acknowledges, all records elsewhere. That some of them are damaged does not count."""
        ...

    @property
    def commit(self) -> int:
        """The commit offset as this node knows it. It survives a restart, perhaps as an older
        value, and never goes back otherwise."""
        ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; -1 in an empty log."""
        ...

    @property
    def damaged_at(self) -> int | None:
        """The first offset whose record fails its checksum, if one is known."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether nothing is written to the log any more, until its node is started again: the
        device failed."""
        ...

    def find_damage(self, offset: int) -> None:
        """Look at the records from `offset` on, of which a client could not read one: `damaged_at`
        names the damaged one from then on. Other threads call this, too."""
        ...

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the greatest epoch that is not above `epoch`, and the offset at which it ends. An
        empty log does not know who wrote before it began: it returns `epoch` and its end."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Accept appends of clients, and write `epoch` into their records."""
        ...

    def follow(self) -> None:
        """Accept no appends of clients: another node leads. None is under way when this
        returns."""
        ...

    def read_range(self, offset: int, max_size: int) -> tuple[bytes, int]:
        """Return whole records from `offset` on as the log holds them, committed or not, at least
        one where there is one, and the offset after them. Raises `CorruptionError` when the first
        one fails its checksum; `damaged_at` names it from then on."""
        ...

    def append_range(self, data: bytes) -> None:
        """Append what `read_range` of another replica returned from this log's end on. Raises
        `CorruptionError` when a checksum is wrong; then nothing was appended."""
        ...

    def cut(self, offset: int) -> None:
        """Remove the records from `offset` on; a commit offset after it goes back to it. What is
        appended later never becomes durable before the cut does."""
        ...

    def give_up_damaged(self, offset: int) -> None:
        """Accept that the damaged records from `offset` on are lost: a hole takes their place, here
        and in what `read_range` returns. Only for the last replica that has the committed
        records, and for records that no other one has."""
        ...

    def restart_at(self, offset: int) -> None:
        """Drop all records; the log begins at `offset`."""
        ...

    def set_commit(self, offset: int) -> None: ...


def is_unfit(log: ReplicaLog) -> bool:
    """Say whether a replica with this log may neither count nor lead."""
    return log.damaged_at is not None or log.has_failed


def countable(log: ReplicaLog) -> int:
    """Return the end of what a replica may be counted for: damaged records are not there."""
    damaged_at = log.damaged_at
    return log.safe if damaged_at is None else min(log.safe, damaged_at)
