"""What an append to a flat file can answer, and how a search by time rounds."""

from __future__ import annotations

from enum import Enum


class AppendResult(Enum):
    """Every answer but `SUCCESS` means that nothing was appended."""

    SUCCESS = "success"
    """The bytes are in the buffer; they are in the tier after the next commit."""
    OFFSET_INCORRECT = "offset_incorrect"
    """The message is not the one that follows on the last appended: earlier ones come first."""
    WRONG_QUEUE = "wrong_queue"
    """The message is one of another topic or queue: it belongs in another file."""
    BUFFER_FULL = "buffer_full"
    """The buffer has reached its bound: commit, then append again."""
    FILE_FULL = "file_full"
    """The segment is full or sealed: the flat file goes on in the next one."""
    FILE_CLOSED = "file_closed"
    """The flat file was shut down or destroyed: open it anew."""
    IO_ERROR = "io_error"
    """The tier did not take what had to be committed first: try again later."""


class BoundaryType(Enum):
    """Which of several records of the searched time is meant."""

    LOWER = "lower"  # the first record that is not older
    UPPER = "upper"  # the last record that is not younger
