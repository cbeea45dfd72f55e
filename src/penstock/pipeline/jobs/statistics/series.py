"""Curves of what `stats` measured, and the axes that they are drawn on."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from penstock.pipeline.jobs.statistics.job import Interval, StatsResult

TICKS: Final = 6
_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400),
)
_DAY_S: Final = 86400
_SIZES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNTS: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


class Point(NamedTuple):
    at_ms: int
    value: float
    interval: Interval | None
    """None: nothing was written here."""


class Measure(NamedTuple):
    field: str
    title: str
    is_size: bool


MEASURES: Final = (
    Measure("rows_per_s", "Records per second", is_size=False),
    Measure("bytes_per_s", "Bytes per second (keys and values)", is_size=True),
)


def series(result: StatsResult, field: str) -> dict[str, list[Point]]:
    """Return the curve of each topic, by time. Where a topic was written nothing for longer than a
    step, its curve goes down to zero."""
    step_ms = result.every_s * 1000
    curves: dict[str, list[Point]] = {}
    for interval in sorted(result.intervals, key=lambda interval: interval.start_ms):
        points = curves.setdefault(interval.topic, [])
        if points and step_ms and interval.start_ms - points[-1].at_ms > step_ms:
            points.append(Point(points[-1].at_ms + step_ms, 0.0, None))
            if points[-1].at_ms < interval.start_ms - step_ms:
                points.append(Point(interval.start_ms - step_ms, 0.0, None))
        points.append(Point(interval.start_ms, float(getattr(interval, field)), interval))
    return dict(sorted(curves.items()))


def time_ticks(first_ms: int, last_ms: int) -> list[int]:
    """Return round moments, at most seven, between two."""
    span_s = max(1, (last_ms - first_ms) // 1000)
    step = next((step_s for step_s in _STEPS_S if span_s / step_s <= TICKS), 0)
    if not step:
        step = _DAY_S * max(1, math.ceil(span_s / _DAY_S / TICKS))
    start = -(-first_ms // (step * 1000)) * step * 1000
    return [*range(start, last_ms + 1, step * 1000)] or [first_ms]


def time_text(at_ms: int, span_ms: int) -> str:
    """Return a moment as far as it matters on an axis of this length, in UTC."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    if span_ms > 3 * _DAY_S * 1000:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%m-%d %H:%M}" if span_ms >= 600_000 else f"{moment:%H:%M:%S}"


def value_ticks(top: float) -> list[float]:
    """Return round values from zero to at least `top`."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def size_ticks(top: float) -> list[float]:
    """The same for bytes, in units of 1,024."""
    unit = next((size for size, _ in _SIZES if top >= size), 1)
    return [value * unit for value in value_ticks(top / unit)]


def value_text(value: float, *, is_size: bool) -> str:
    """Return a rate with its unit."""
    for size, unit in _SIZES if is_size else _COUNTS:
        if value >= size:
            number = f"{value / size:.3g}"
            return f"{number} {unit}/s" if is_size else f"{number}{unit}/s"
    return f"{value:.3g} {'B' if is_size else ''}/s".replace(" /s", "/s")
