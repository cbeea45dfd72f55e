"""`make test` runs its parts beside each other, shows each whole, and fails when one does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN_S = 120
STUB = """#!/bin/sh
case "$*" in
    *"spark and not"*) echo "Spark ran"; exit ${SPARK:-0} ;;
    *tests/codec*) echo "pure ran"; exit ${PURE:-0} ;;
    *"pytest -n"*) echo "all ran, bytecode in $PYTHONPYCACHEPREFIX"; exit ${ALL:-0} ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make_test(venv: Path, *arguments: str, **codes: str) -> tuple[int, list[str]]:
    """Run `make test` on programs that only say that they were called."""
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "ruff", "mypy", "lint-imports"):
        (venv / "bin" / name).write_text(STUB)
        (venv / "bin" / name).chmod(0o755)
    for stamp in (".serving", ".packages", ".native-pure"):
        (venv / stamp).touch()
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        ["make", "test", f"VENV={venv}", "BUILD=pure", "WORKERS=1", *arguments],
        cwd=ROOT,
        env={**inherited, "PYTHONDONTWRITEBYTECODE": "1", **codes},
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    return done.returncode, done.stdout.splitlines()


def test_everything_runs_once_and_the_run_on_spark_is_shown_last(tmp_path: Path) -> None:
    code, lines = make_test(tmp_path / "venv")
    assert code == 0, lines
    ran = [line for line in lines if " ran" in line]
    assert ran == [f"all ran, bytecode in {tmp_path}/venv/bytecode", "pure ran", "Spark ran"]


def test_all_parts_run_after_a_failure_and_those_that_failed_are_named(tmp_path: Path) -> None:
    code, lines = make_test(tmp_path / "venv", ALL="1", SPARK="1")
    assert code != 0
    assert sum(" ran" in line for line in lines) == 3
    assert lines[-1] == "failed: tests spark"


def test_a_part_without_tests_fails_unless_arguments_chose_the_tests(tmp_path: Path) -> None:
    assert make_test(tmp_path / "all", PURE="5")[0] != 0
    assert make_test(tmp_path / "some", "ARGS=-k recovery", PURE="5", SPARK="5")[0] == 0
