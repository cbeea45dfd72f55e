"""Draws what `stats` measured as a PNG, an SVG or a PDF, with matplotlib (the extra `plot`)."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.errors import SetupError
from penstock.pipeline.jobs.statistics.series import MEASURES, series, size_ticks, value_text

if TYPE_CHECKING:
    from penstock.pipeline.jobs.statistics.job import StatsResult

TOPICS_MAX: Final = 20
"""A legend with more names than this would hide the curves."""
_MARKED_MAX: Final = 60
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_000


def check_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401 - whether it can be loaded
    except ImportError as error:
        raise SetupError(
            "a plot as .png, .svg or .pdf needs matplotlib: pip install 'penstock[plot]'"
        ) from error


def save_picture(result: StatsResult, target: Path) -> None:
    check_matplotlib()
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(f"{result.path}: {result.rows:,} records, {result.bytes:,} bytes")
    upper = None
    for number, measure in enumerate(MEASURES):
        axes = figure.add_subplot(2, 1, number + 1, sharex=upper)
        upper = upper or axes
        axes.set_title(measure.title, fontsize="medium")
        axes.grid(visible=True, alpha=0.3)
        curves = series(result, measure.field)
        for topic, points in [*curves.items()][:TOPICS_MAX]:
            marker = "o" if len(points) <= _MARKED_MAX else ""
            values = [point.value for point in points]
            moments = np.array([_shown(point.at_ms) for point in points], "datetime64[ms]")
            axes.plot(moments, values, label=topic, marker=marker, markersize=4)
        top = max((point.value for points in curves.values() for point in points), default=0.0)
        if measure.is_size:
            axes.set_yticks(size_ticks(top))
        axes.set_ylim(bottom=0, top=top * 1.08 or 1.0)
        text = FuncFormatter(lambda value, _, size=measure.is_size: value_text(value, is_size=size))
        axes.yaxis.set_major_formatter(text)
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]  # no types
        axes.xaxis.set_major_locator(locator)
        dates = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]  # no types
        axes.xaxis.set_major_formatter(dates)
        if not curves:
            axes.text(0.5, 0.5, "nothing was written", ha="center", transform=axes.transAxes)
    figure.supxlabel(f"time of the records (UTC), steps of {result.every_s:,} s", fontsize="medium")
    if upper is not None and result.intervals:
        left_out = len({interval.topic for interval in result.intervals}) - TOPICS_MAX
        title = f"{left_out} more topics are not shown" if left_out > 0 else "topics"
        handles, names = upper.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", title=title, fontsize="small")
    figure.savefig(target, dpi=120)


def _shown(at_ms: int) -> int:
    """Return a moment that an axis can have."""
    return min(max(at_ms, _FIRST_MS), _LAST_MS)
