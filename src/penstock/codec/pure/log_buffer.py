"""The log file that is being written, as a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.format import BLANK, MAGIC_BLANK
from penstock.codec.pure.read.codec import view_of
from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LogBuffer:
    """Bytes below `end` are records. Room for a blank record always follows them."""

    def __init__(self, log: Buffer, base: int, start: int) -> None:
        self._view = view_of(log)
        if self._view.readonly:
            raise BadRequestError("the log buffer must be writable")
        if not base <= start <= base + len(self._view):
            raise BadRequestError(f"position {start} is outside the file at {base}")
        self._base = base
        self.end = start
        self.size_max = len(self._view) - BLANK.size
        """The most that one append may take in a file of this size."""

    @property
    def room(self) -> int:
        return self._base + self.size_max - self.end

    def write(self, data: bytes) -> None:
        index = self.end - self._base
        self._view[index : index + len(data)] = data
        self.end += len(data)

    def finish(self) -> None:
        file_end = self._base + len(self._view)
        left = file_end - self.end
        if left >= BLANK.size:
            BLANK.pack_into(self._view, self.end - self._base, left, MAGIC_BLANK)
        self.end = file_end
