"""Converts timestamps to milliseconds since 1970."""

from __future__ import annotations

from datetime import datetime

from penstock.errors import BadRequestError


def to_timestamp_ms(timestamp: object) -> int:
    """Return milliseconds since 1970; a datetime without a time zone is local time."""
    if isinstance(timestamp, datetime):
        try:
            return round(timestamp.timestamp() * 1000)
        except (ValueError, OverflowError, OSError) as error:
            raise BadRequestError(
                f"the timestamp {timestamp} cannot be converted from local time; "
                "give it a time zone"
            ) from error
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        return timestamp
    raise BadRequestError(
        f"a timestamp must be a datetime or milliseconds since 1970, got {type(timestamp).__name__}"
    )
