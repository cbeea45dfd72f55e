"""A log in memory that loses what a disk may lose: records after the last sync, at a power cut."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from penstock.errors import CorruptionError, DiskFailedError

Entry = tuple[int, int]
"""The epoch and the value of a record."""

OnGivenUp = Callable[[int, Entry], None]
"""Called with a record that a log is about to give up."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int]])


def ignore_given_up(_offset: int, _entry: Entry) -> None:
    """Without a simulation: not checked."""


class SimulatedLog:
    """Implements `ReplicaLog`."""

    def __init__(self, *, is_sync: bool) -> None:
        self.is_sync = is_sync
        self.is_tail_cut = False
        self.start = 0
        self.records: list[Entry] = []
        self.synced = 0
        self.saved_commit = 0
        self.epoch = -1
        self._commit = 0
        self.damaged_at: int | None = None
        self.has_failed = False
        self._was_flipped = False
        self.on_given_up: OnGivenUp = ignore_given_up
        self.cut_tail: tuple[int, list[Entry]] | None = None
        """What the last cut removed: a cut that is not durable brings it back."""

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def safe(self) -> int:
        return self.synced if self.is_sync else self.end

    @property
    def commit(self) -> int:
        return self._commit

    @property
    def last_epoch(self) -> int:
        return self.records[-1][0] if self.records else -1

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        records = self.records
        if not records:
            return epoch, self.end
        position = len(records)
        while position and records[position - 1][0] > epoch:
            position -= 1
        if not position:
            return epoch, self.start
        return records[position - 1][0], self.start + position

    def begin_epoch(self, epoch: int) -> None:
        assert epoch >= self.epoch, "an epoch never goes back"
        self.epoch = epoch

    def follow(self) -> None:
        """Clients write only where the core leads: see `Simulator`."""

    def read_range(self, offset: int, max_size: int) -> tuple[bytes, int]:
        count = max(1, max_size // 20)
        first = offset - self.start
        page: list[tuple[int, int, int]] = []
        for number, (epoch, value) in enumerate(self.records[first : first + count], offset):
            if value < 0:  # its checksum is wrong
                self.find_damage(number)
                break
            page.append((number, epoch, value))
        if not page:
            raise CorruptionError("simulated", position=offset, reason="a flipped bit")
        return _encoder.encode(page), offset + len(page)

    def find_damage(self, offset: int) -> None:
        if self.damaged_at is None or offset < self.damaged_at:
            self.damaged_at = offset

    def flip(self, offset: int) -> None:
        self._was_flipped = True
        epoch, value = self.records[offset - self.start]
        self.records[offset - self.start] = (epoch, -abs(value))

    @property
    def is_flipped(self) -> bool:
        return self._was_flipped and any(value < 0 for _, value in self.records)

    def append_range(self, data: bytes) -> None:
        self._check_device()
        page = _decoder.decode(data)
        if page[0][0] != self.end:
            raise CorruptionError("simulated", position=page[0][0], reason="a gap")
        self.records += [(epoch, value) for _, epoch, value in page]

    def append(self, value: int) -> int:
        self.records.append((self.epoch, value))
        return self.end

    def fail_device(self) -> None:
        """Write nothing more until the next start."""
        self.has_failed = True

    def _check_device(self) -> None:
        if self.has_failed:
            raise DiskFailedError("simulated", "the device failed")

    def cut(self, offset: int) -> None:
        self._check_device()
        self.cut_tail = (offset, self.records[offset - self.start :])
        del self.records[offset - self.start :]
        self.synced = min(self.synced, offset)
        self._commit = min(self._commit, offset)
        self.saved_commit = min(self.saved_commit, offset)
        if self.damaged_at is not None and self.damaged_at >= offset:
            self.damaged_at = None

    def give_up_damaged(self, offset: int) -> None:
        first = max(0, offset - self.start)
        for number, (epoch, value) in enumerate(self.records[first:], first):
            if value < 0:
                self.on_given_up(self.start + number, (epoch, -value))
                self.records[number] = (epoch, 0)
        if self.damaged_at is not None and self.damaged_at >= offset:
            self.damaged_at = None

    def restart_at(self, offset: int) -> None:
        self._check_device()
        self.start, self.records = offset, []
        self.synced, self._commit, self.saved_commit = offset, offset, offset
        self.damaged_at = None

    def set_commit(self, offset: int) -> None:
        assert self._commit <= offset <= self.end, "a commit offset never goes back"
        self._commit = offset

    # What a disk and an operating system do

    def sync(self) -> None:
        self.synced = self.end
        self.saved_commit = self._commit
        self.cut_tail = None

    def restart(self) -> None:
        """The process ended; what it wrote is there."""
        self.has_failed = False
        self._commit = self.saved_commit

    def trim(self, chance: random.Random) -> None:
        """Drop some of the committed records, as retention does where a tier has them."""
        first = chance.randint(self.start, self._commit)
        self.start, self.records = first, self.records[first - self.start :]
        self.synced = max(self.synced, first)
        self.saved_commit = max(self.saved_commit, first)
        self.cut_tail = None
        if self.damaged_at is not None and self.damaged_at < first:
            self.damaged_at = None

    def jump_clock(self, milliseconds: int) -> None:
        """Records have no times here."""

    def found_by_key(self) -> list[tuple[int, Entry]]:
        return []

    def lose_power(self, chance: random.Random) -> None:
        self.has_failed = False
        kept = chance.randint(self.synced, self.end)
        del self.records[kept - self.start :]
        self.saved_commit = min(self.saved_commit, kept)
        self._commit = self.saved_commit
