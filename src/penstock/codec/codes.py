"""Status codes and flags that both codec backends share."""

from __future__ import annotations

NO_LOG_ROOM = -1
"""An append returns this when the record does not fit in the rest of the log file."""
NO_INDEX_ROOM = -2
"""… when its keys do not fit in the attached index files."""
UNKNOWN_SHARD = -3
"""An append path returns this when it has no queue for the shard."""
NOT_ADMITTED = -4
"""… when the log or the shard admits no records, or only after further checks."""
BUSY = -5
"""… when other writers held the log all the time."""
TOO_LARGE = -6
"""… when a record has more bytes than the caller allows."""

REPLAY_DONE = 0
REPLAY_DAMAGE = 1
REPLAY_NO_INDEX_ROOM = 2
REPLAY_TRUNCATE_BATCH_QUEUE = 3
REPLAY_LEAP = 4
"""A record is more than `GAP_MAX` offsets ahead of its queue: the queue begins anew there, or the
record is damaged."""

FIELD_VALUE = 1
FIELD_KEY = 2
FIELD_TAGS = 4
FIELD_HEADERS = 8
FIELD_TIMESTAMP = 16
FIELD_STORED = 32
FIELD_NARROW = 64
"""32-bit offsets and microseconds, as Spark takes them."""
