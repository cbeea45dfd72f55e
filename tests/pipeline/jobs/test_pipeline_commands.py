"""`penstock pipeline …`: what the jobs return, printed; exit codes; sentences instead of traces."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.conftest import Run, run
from tests.engine.segment.readonly.sample_store import EVENTS_COUNT, ORDERS, ORDERS_COUNT, flip

from penstock.cli.commands.pipeline import jobs as pipeline_commands
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.pipeline.spark_session import sessions

__all__ = ["run"]

LIVE_COUNT = ORDERS_COUNT - 3
INTO_TOPIC = ("--to", "made", "--to-topic", "made")
NAMES = ("export", "stats", "import", "verify", "rebuild", "compact", "expire", "offload")


@pytest.mark.parametrize("name", NAMES)
def test_every_job_has_help_with_an_example(run: Run, name: str) -> None:
    shown = run("pipeline", name, "--help")
    assert shown.code == 0
    assert f"penstock pipeline {name} data" in shown.out


def test_the_command_does_not_load_spark_for_its_help() -> None:
    code = "import sys, penstock.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_spark_one_sentence_says_what_to_install(
    run: Run, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == "pyspark" else ModuleSpec(name, None)

    monkeypatch.setattr(sessions, "find_spec", find)
    shown = run("pipeline", "export", sample, tmp_path / "parquet")
    assert shown.code == 2
    assert shown.err == "penstock: the pipeline needs pyspark: pip install 'penstock[spark]'\n"


def test_no_command_begins_without_the_extra(
    run: Run, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name in ("pyspark", "pandas") else ModuleSpec(name, None)

    monkeypatch.setattr(pipeline_commands, "find_spec", find)
    shown = run("pipeline", "rebuild", sample)
    assert shown.code == 2
    assert "needs pyspark, pandas: pip install 'penstock[spark]'" in shown.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("stats", "{sample}", "--plot", "out.jpeg"), "ending in .html, .png, .svg or .pdf"),
        (
            ("stats", "{sample}", "--plot", "no/out.html"),
            "the directory of the plot does not exist",
        ),
        (("offload", "{sample}"), "has no tier: give one"),
        (("offload", "{sample}", "--tier", "tape:/x"), "'tape:/x' is not the address of a tier"),
        (("offload", "nowhere", "--tier", "file:///x"), "nowhere is not a store"),
        (("stats", "{sample}", "-t", "order"), "did you mean 'orders'?"),
        (("export", "nowhere", "out"), "nowhere is not a store"),
        (("export", "{sample}", "s3://bucket"), "is not a local directory"),
        (("export", "{sample}", "out", "--format", "orc"), "orc"),
        (("import", "out", "nowhere.csv", "t"), "nowhere.csv is neither a file"),
        (("run", "nowhere", "--checkpoint", "c", "--export", "out"), "nowhere is not a store"),
        (("run", "{sample}", "--checkpoint", "c"), "nothing to run"),
        (("run", "nowhere", "--checkpoint", "c", *INTO_TOPIC), "nowhere is not a store"),
        (
            ("run", "{sample}", "--checkpoint", "c", "--stage", "no_such:f", *INTO_TOPIC),
            "stage 'no_such:f': No module named 'no_such'",
        ),
        (
            ("run", "{sample}", "--checkpoint", "c", "--offload", "tape:/x"),
            "not the address of a tier",
        ),
    ],
)
def test_wrong_arguments_are_told_before_spark_starts_or_anything_is_made(
    run: Run,
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    reason: str,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.pipeline.session", start)
    shown = run("pipeline", *(word.format(sample=sample) for word in words))
    assert shown.code == 2
    assert reason in shown.err
    assert list(here.iterdir()) == []


def test_what_was_exported_goes_into_another_store(
    spark: SparkSession, run: Run, sample: Path, tmp_path: Path
) -> None:
    target, other = tmp_path / "parquet", tmp_path / "other"
    shown = run("pipeline", "export", sample, target, "--topic", "orders", "--json")
    assert (shown.code, shown.lines[0]["rows"]) == (0, LIVE_COUNT)
    shown = run("pipeline", "export", sample, target, "--topic", "orders")
    assert shown.code == 0
    shown = run("pipeline", "import", other, target, "--json")
    assert (shown.code, shown.lines[0]["rows_added"]) == (0, LIVE_COUNT)
    shown = run("pipeline", "import", other, target)
    assert (shown.code, "yes" in shown.out) == (0, True)
    shown = run("pipeline", "stats", other, "--json")
    assert (shown.code, shown.lines[0]["rows"]) == (0, LIVE_COUNT)
    for name in ("compact", "expire", "rebuild"):
        assert run("pipeline", name, other).code == 0


def test_measures_are_printed_as_tables(spark: SparkSession, run: Run, sample: Path) -> None:
    shown = run("pipeline", "stats", sample, "--top-keys", 2)
    assert shown.code == 0
    assert "1970-01-01 00:00:00.000" in shown.out
    assert str(EVENTS_COUNT) in shown.out
    shown = run("pipeline", "stats", sample, "-t", "order")
    assert (shown.code, "did you mean 'orders'?" in shown.err) == (2, True)


def test_damage_is_told_by_the_exit_code(
    spark: SparkSession, run: Run, sample: Path, tmp_path: Path
) -> None:
    assert run("pipeline", "verify", sample).code == 0
    path = Path(shutil.copytree(sample, tmp_path / "store"))
    with ReadOnlyStore.open(str(path)) as view:
        position = view.snapshot().get(ORDERS).position_of(2)
    assert position is not None
    flip(path / "commitlog" / f"{0:020d}", position + 100)
    shown = run("pipeline", "verify", path)
    assert shown.code == 1
    assert str(LIVE_COUNT - 1) in shown.out
    shown = run("pipeline", "verify", path, "--json")
    assert (shown.code, shown.lines[0]["rows"]) == (1, LIVE_COUNT - 1 + EVENTS_COUNT)
    shown = run("pipeline", "export", path, tmp_path / "parquet")
    assert (shown.code, f"damaged at byte {position}" in shown.err) == (2, True)
    assert "Traceback" not in shown.err
    assert "java" not in shown.err
