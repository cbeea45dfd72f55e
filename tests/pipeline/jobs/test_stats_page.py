"""What was measured, as a page and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from penstock.errors import BadRequestError
from penstock.pipeline import jobs
from penstock.pipeline.jobs import Interval, StatsResult, TopicStats, TopKey


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
    points = [line.get("points") for line in picture]
    assert points == ["0.0,110.0 900.0,0.0"]


def test_a_picture_is_a_png(result: StatsResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    jobs.save_stats(result, str(tmp_path / "stats.png"))
    assert (tmp_path / "stats.png").read_bytes().startswith(b"\x89PNG")


def test_another_ending_is_refused(result: StatsResult, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"\.html or \.png"):
        jobs.save_stats(result, str(tmp_path / "stats.pdf"))
