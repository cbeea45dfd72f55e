"""Moments as programs give them, in milliseconds since 1970."""

from __future__ import annotations

from datetime import datetime

from penstock.errors import BadRequestError


def to_timestamp_ms(moment: object) -> int:
    """Return a moment in milliseconds; a datetime without a time zone is local time."""
    if isinstance(moment, datetime):
        try:
            return round(moment.timestamp() * 1000)
        except (ValueError, OverflowError, OSError) as error:
            raise BadRequestError(
                f"the moment {moment} is out of reach of this machine's local time; "
                "give it a time zone"
            ) from error
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    raise BadRequestError(
        f"a moment is a datetime or milliseconds since 1970, not {type(moment).__name__}"
    )
