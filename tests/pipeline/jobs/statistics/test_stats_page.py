"""What was measured, as a page and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.errors import BadRequestError
from penstock.pipeline import jobs
from penstock.pipeline.jobs import Interval, StatsResult, TopicStats, TopKey
from penstock.pipeline.jobs.statistics.series import series, time_ticks, value_ticks


@pytest.fixture
def result() -> StatsResult:
    return StatsResult(
        path="data",
        rows=30,
        bytes=300,
        topics=[TopicStats("<orders>", 1, 30, 30, 300, 10, 0, 7_200_000)],
        intervals=[
            Interval("<orders>", 0, 10, 100, 1.0, 10.0),
            Interval("<orders>", 3_600_000, 20, 200, 2.0, 20.0),
        ],
        top_keys=[TopKey("<orders>", "<b>", 9, 90)],
        seconds=0.1,
    )


def test_a_page_has_a_curve_for_each_topic_and_escapes_names(
    result: StatsResult, tmp_path: Path
) -> None:
    jobs.save_stats(result, str(tmp_path / "stats.html"))
    text = (tmp_path / "stats.html").read_text()
    assert "<orders>" not in text
    assert "<b>" not in text
    picture = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    (curve,) = picture.findall("polyline")
    assert curve.get("points") == "80.0,125.0 940.0,10.0"
    labels = [each.text for each in picture.findall("text")]
    assert {"0/s", "2/s", "01-01 00:00", "time of the records (UTC)"} <= {*labels}
    hints = [each.findtext("title") or "" for each in picture.findall("circle")]
    assert hints[1] == "<orders>, 1970-01-01 01:00:00: 2/s, 20 records, 200 bytes"
    assert "<td>1970-01-01 01:00:00</td><td>20</td>" in text


def test_a_topic_with_one_interval_is_a_point_and_a_gap_is_drawn_as_zero(
    result: StatsResult, tmp_path: Path
) -> None:
    late = Interval("late", 36_000_000, 5, 50, 0.5, 5.0)
    again = Interval("<orders>", 36_000_000, 5, 50, 0.5, 5.0)
    result = replace(result, intervals=[*result.intervals, late, again])
    curves = series(result, "rows_per_s")
    assert [(point.at_ms // 3_600_000, point.value) for point in curves["<orders>"]] == [
        *((0, 1.0), (1, 2.0), (2, 0.0), (9, 0.0), (10, 0.5)),
    ]
    jobs.save_stats(result, str(tmp_path / "stats.html"))
    text = (tmp_path / "stats.html").read_text()
    picture = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert len(picture.findall("circle")) == 4  # one of them is all there is of its topic


@pytest.mark.parametrize(
    ("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_picture_is_what_its_name_says(
    result: StatsResult, tmp_path: Path, suffix: str, begin: bytes
) -> None:
    pytest.importorskip("matplotlib")
    jobs.save_stats(result, str(tmp_path / f"stats.{suffix}"))
    assert (tmp_path / f"stats.{suffix}").read_bytes().startswith(begin)


def test_a_plot_that_cannot_be_made_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"ending in \.html, \.png, \.svg or \.pdf"):
        jobs.check_plot(str(tmp_path / "stats.jpeg"))
    with pytest.raises(BadRequestError, match="does not exist"):
        jobs.check_plot(str(tmp_path / "no" / "stats.html"))


@pytest.mark.parametrize("hours", [0, 1, 5, 40, 400, 40_000])
def test_axes_have_a_few_round_moments(hours: int) -> None:
    ticks = time_ticks(1_700_000_000_000, 1_700_000_000_000 + hours * 3_600_000)
    assert 1 <= len(ticks) <= 7


@pytest.mark.parametrize("top", [0.0, 0.03, 1.0, 9.99, 1234.5, 5e9])
def test_axes_of_values_reach_the_top(top: float) -> None:
    ticks = value_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top
    assert 2 <= len(ticks) <= 6
