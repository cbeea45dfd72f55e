"""Shows what `stats` measured as a page of HTML: throughput over time, by topic, and tables.

The page stands alone: its curves are SVG inside of it, points tell their numbers under the pointer,
and nothing is loaded from elsewhere. Pictures are drawn by `stats_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequestError
from penstock.pipeline.jobs.statistics.picture import check_matplotlib, save_picture
from penstock.pipeline.jobs.statistics.series import (
    MEASURES,
    Measure,
    Point,
    series,
    size_ticks,
    time_text,
    time_ticks,
    value_text,
    value_ticks,
)

if TYPE_CHECKING:
    from penstock.pipeline.jobs.statistics.job import StatsResult

PICTURES: Final = (".png", ".svg", ".pdf")
_WIDTH: Final = 860
_HEIGHT: Final = 240
_LEFT: Final = 80
_BELOW: Final = 46
_ROWS_MAX: Final = 2_000
_COLOURS: Final = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d")
_STYLE: Final = (
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:66em}"
    "td,th{padding:.2em 1em .2em 0;text-align:right}td:first-child,th:first-child{text-align:left}"
    "svg text{font-size:11px;fill:#444}.grid{stroke:#ddd}.axis{stroke:#888}"
    "circle{opacity:.75}circle:hover{opacity:1;stroke:#000}"
)


def check_plot(path: str) -> None:
    """Refuse a plot that cannot be made, before anything is measured."""
    suffix = Path(path).suffix.lower()
    if suffix in PICTURES:
        check_matplotlib()
    elif suffix != ".html":
        raise BadRequestError(
            f"{path!r}: the plot must be a file ending in .html, {', '.join(PICTURES[:-1])} or "
            f"{PICTURES[-1]}"
        )
    if not Path(path).absolute().parent.is_dir():
        raise BadRequestError(f"{path!r}: the directory of the plot does not exist")


def save_stats(result: StatsResult, path: str) -> None:
    """Write the page or the picture, by the ending of `path`: .html, .png, .svg or .pdf."""
    check_plot(path)
    target = Path(path)
    if target.suffix.lower() == ".html":
        target.write_text(_page(result), encoding="utf-8")
    else:
        save_picture(result, target)


def _page(result: StatsResult) -> str:
    curves = "".join(
        f"<h2>{measure.title}</h2>{_curves(series(result, measure.field), measure)}"
        for measure in MEASURES
    )
    topics = _table(
        ("topic", "records", "bytes", "largest", "first", "last"),
        [
            (
                topic.topic,
                f"{topic.rows:,}",
                f"{topic.bytes:,}",
                f"{topic.size_max:,}",
                _moment(topic.first_ms),
                _moment(topic.last_ms),
            )
            for topic in result.topics
        ],
    )
    keys = _table(
        ("topic", "key", "records"),
        [(top_key.topic, top_key.key, f"{top_key.rows:,}") for top_key in result.top_keys],
    )
    steps = _table(
        ("topic", "from (UTC)", "records", "bytes", "records/s", "bytes/s"),
        [
            (
                interval.topic,
                _moment(interval.start_ms),
                f"{interval.rows:,}",
                f"{interval.bytes:,}",
                f"{interval.rows_per_s:,.1f}",
                f"{interval.bytes_per_s:,.1f}",
            )
            for interval in result.intervals[:_ROWS_MAX]
        ],
    )
    left_out = len(result.intervals) - _ROWS_MAX
    more = f"<p>{left_out:,} more are left out; --json has all</p>" if left_out > 0 else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(result.path)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(result.path)}</h1>"
        f"<p>{result.rows:,} records, {result.bytes:,} bytes of keys and values; times are those "
        f"of the records, in UTC, in steps of {result.every_s:,} s</p>{curves}"
        f"<h2>Topics</h2>{topics}<h2>Keys with the most records</h2>{keys}"
        f"<details><summary>Throughput as a table</summary>{steps}{more}</details></html>\n"
    )


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _curves(topics: Mapping[str, list[Point]], measure: Measure) -> str:
    every = [point for points in topics.values() for point in points]
    if not every:
        return "<p>nothing was written</p>"
    first, last = min(point.at_ms for point in every), max(point.at_ms for point in every)
    top = max(point.value for point in every)
    ticks = size_ticks(top) if measure.is_size else value_ticks(top)
    scale = _Scale(first, last, ticks[-1])
    lines, legend = [], []
    for number, (topic, points) in enumerate(topics.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        shown = " ".join(
            f"{scale.x(point.at_ms):.1f},{scale.y(point.value):.1f}" for point in points
        )
        lines.append(f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += (_dot(topic, point, scale, colour, measure) for point in points if point.interval)
        legend.append(f'<span style="color:{colour}">■</span> {escape(topic)}')
    return (
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20} {_HEIGHT + _BELOW}" width="100%">'
        f"{_axes(scale, ticks, measure)}{''.join(lines)}</svg>"
        f"<p>{' &nbsp; '.join(legend)}</p>"
    )


class _Scale:
    """Where a moment and a value are on the picture."""

    def __init__(self, first: int, last: int, top: float) -> None:
        # One moment alone stands in the middle.
        self.first: Final = first if last > first else first - 1
        self.last: Final = last if last > first else last + 1
        self._top: Final = top

    def x(self, at_ms: int) -> float:
        return _LEFT + (at_ms - self.first) * _WIDTH / (self.last - self.first)

    def y(self, value: float) -> float:
        return 10 + (_HEIGHT - 10) * (1 - value / self._top)


def _dot(topic: str, point: Point, scale: _Scale, colour: str, measure: Measure) -> str:
    assert point.interval is not None
    text = (
        f"{topic}, {_moment(point.at_ms)}: {value_text(point.value, is_size=measure.is_size)}, "
        f"{point.interval.rows:,} records, {point.interval.bytes:,} bytes"
    )
    return (
        f'<circle cx="{scale.x(point.at_ms):.1f}" cy="{scale.y(point.value):.1f}" r="3.5" '
        f'fill="{colour}"><title>{escape(text)}</title></circle>'
    )


def _axes(scale: _Scale, ticks: list[float], measure: Measure) -> str:
    right, low = _LEFT + _WIDTH, scale.y(0)
    parts = []
    for value in ticks:
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = value_text(value, is_size=measure.is_size)
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    span = scale.last - scale.first
    moments = time_ticks(scale.first, scale.last) if span > 2 else [scale.first + 1]
    for at_ms in moments:
        x = scale.x(at_ms)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{low}" y2="{low + 5}"/>')
        text = time_text(at_ms, span) if span > 2 else _moment(at_ms)
        parts.append(f'<text x="{x:.1f}" y="{low + 18}" text-anchor="middle">{text}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{low}" y2="{low}"/>')
    middle = _LEFT + _WIDTH / 2
    parts.append(
        f'<text x="{middle}" y="{low + 36}" text-anchor="middle">time of the records (UTC)</text>'
    )
    return "".join(parts)


def _moment(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
