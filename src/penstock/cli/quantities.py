"""Parses durations and sizes: `3d`, `1h30m`, `500ms`, `262144`, `10GiB`, `64MB`."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadRequestError

_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_BYTES: Final = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)},
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


def read_duration_ms(text: str) -> int:
    """Return the milliseconds of `3d`, `1h30m` or `500ms`."""
    return _read(text, _MS, f"{text!r} is not a duration; write 500ms, 30s, 15m, 12h, 3d or 2w")


def read_size(text: str) -> int:
    """Return the bytes of `262144`, `10GiB` (1024³) or `10GB` (1000³)."""
    plain = text.strip()
    if plain.isascii() and plain.isdecimal():
        return int(plain)
    problem = (
        f"{text!r} is not a size; write a number of bytes (262144), or one with a unit: 256KiB, "
        "64MiB, 10GiB, 500kB, 10MB or 10GB"
    )
    return _read(text, _BYTES, problem)


def _read(text: str, units: dict[str, int], problem: str) -> int:
    given = text.strip().lower()
    parts = _PART.findall(given)
    if not parts or "".join(n + u for n, u in parts) != "".join(given.split()):
        raise BadRequestError(problem)
    total = 0.0
    for number, unit in parts:
        if unit not in units:
            raise BadRequestError(problem)
        total += float(number) * units[unit]
    return round(total)
