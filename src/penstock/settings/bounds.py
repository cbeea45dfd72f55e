"""Number types of the settings, with their upper bounds.

Larger values are mistakes that clocks, formats and libraries handle differently; infinity and NaN
exceed every bound.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

MIB: Final = 1 << 20

Percent = Annotated[int, Meta(ge=1, le=100)]
Milliseconds = Annotated[int, Meta(le=366 * 24 * 3_600_000)]
"""At most a year."""
Hours = Annotated[float, Meta(gt=0, le=1_000_000)]
"""At most a century."""
Large = Annotated[int, Meta(le=1 << 60)]
"""Bytes and counts, with headroom below 64 bits for arithmetic."""
