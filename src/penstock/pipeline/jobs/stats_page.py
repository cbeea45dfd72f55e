"""Shows what `stats` measured as a page of HTML, or as a PNG: throughput over time, by topic.

The page stands alone: its curves are SVG inside of it, and nothing is loaded from elsewhere. A PNG
needs matplotlib (the extra `plot`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequestError, SetupError

if TYPE_CHECKING:
    from penstock.pipeline.jobs.measuring import Interval, StatsResult

_WIDTH: Final = 900
_HEIGHT: Final = 220
_COLOURS: Final = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d")
_STYLE: Final = (
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:60em}"
    "td,th{padding:.2em 1em .2em 0;text-align:right}td:first-child,th:first-child{text-align:left}"
)


def save_stats(result: StatsResult, path: str) -> None:
    """Write the page or the picture, by the ending of `path`: .html or .png."""
    target = Path(path)
    if target.suffix == ".html":
        target.write_text(_page(result), encoding="utf-8")
    elif target.suffix == ".png":
        _picture(result, target)
    else:
        raise BadRequestError(f"{path!r}: the plot is a file that ends with .html or .png")


def _by_topic(result: StatsResult) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for each in result.intervals:
        found.setdefault(each.topic, []).append(each)
    return found


def _page(result: StatsResult) -> str:
    rows = "".join(
        f"<tr><td>{escape(each.topic)}</td><td>{each.rows:,}</td><td>{each.bytes:,}</td>"
        f"<td>{each.size_max:,}</td></tr>"
        for each in result.topics
    )
    keys = "".join(
        f"<tr><td>{escape(each.topic)}</td><td>{escape(each.key)}</td><td>{each.rows:,}</td></tr>"
        for each in result.top_keys
    )
    topics = _by_topic(result)
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(result.path)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(result.path)}</h1>"
        f"<p>{result.rows:,} records, {result.bytes:,} bytes of keys and values</p>"
        f"<h2>Records a second</h2>{_curves(topics, 'rows_per_s')}"
        f"<h2>Bytes a second</h2>{_curves(topics, 'bytes_per_s')}"
        f"<h2>Topics</h2><table><tr><th>topic<th>records<th>bytes<th>largest</tr>{rows}</table>"
        f"<h2>Keys with the most records</h2>"
        f"<table><tr><th>topic<th>key<th>records</tr>{keys}</table>\n"
    )


def _curves(topics: dict[str, list[Interval]], field: str) -> str:
    every = [each for intervals in topics.values() for each in intervals]
    if not every:
        return "<p>nothing was written</p>"
    first = min(each.start_ms for each in every)
    span = max(1, max(each.start_ms for each in every) - first)
    top = max(float(getattr(each, field)) for each in every) or 1.0
    lines, legend = [], []
    for number, (topic, intervals) in enumerate(sorted(topics.items())):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{(each.start_ms - first) * _WIDTH / span:.1f},"
            f"{_HEIGHT - getattr(each, field) * _HEIGHT / top:.1f}"
            for each in intervals
        )
        shape = "polyline" if len(intervals) > 1 else "polygon"
        lines.append(f'<{shape} points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        legend.append(f'<span style="color:{colour}">■ {escape(topic)}</span>')
    return (
        f'<svg viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 8}" width="{_WIDTH}">{"".join(lines)}</svg>'
        f"<p>{_moment(first)} to {_moment(first + span)}, at most {top:,.1f}; "
        f"{' '.join(legend)}</p>"
    )


def _moment(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def _picture(result: StatsResult, target: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupError("a PNG needs matplotlib: pip install 'penstock[plot]'") from error
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (field, label) in enumerate((("rows_per_s", "records/s"), ("bytes_per_s", "B/s"))):
        axes = figure.add_subplot(2, 1, number + 1)
        axes.set_ylabel(label)
        for topic, intervals in sorted(_by_topic(result).items()):
            axes.plot(
                _seconds(intervals), [getattr(each, field) for each in intervals], label=topic
            )
        if number == 0 and result.intervals:
            axes.legend()
    figure.savefig(target, dpi=120)


def _seconds(intervals: Sequence[Interval]) -> list[float]:
    return [each.start_ms / 1000 for each in intervals]
