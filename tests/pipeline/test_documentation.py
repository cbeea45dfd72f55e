"""The walk-through of docs/pipeline.md runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_walk_through_runs_as_written(spark: SparkSession) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    exec("\n".join(blocks), {})  # in this process: it gets the session that is there


def test_every_option_is_described() -> None:
    from penstock.pipeline.options import sink_options, source_options

    text = PAGE.read_text(encoding="utf-8")
    for name in (*source_options.OPTIONS, *sink_options.OPTIONS):
        assert f"`{name}`" in text
