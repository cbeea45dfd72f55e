"""The workflow of continuous integration calls what exists, on the versions that are declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TypedDict

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
ACTION = re.compile(r"[\w-]+/[\w-]+@v\d+")

Step = TypedDict("Step", {"name": str, "uses": str, "run": str, "if": str}, total=False)


class Matrix(TypedDict):
    os: list[str]
    python: list[str]
    build: list[str]


class Strategy(TypedDict):
    matrix: Matrix


Job = TypedDict(
    "Job", {"runs-on": str, "timeout-minutes": int, "strategy": Strategy, "steps": list[Step]}
)


def jobs() -> dict[str, Job]:
    found: dict[str, Job] = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    return found


def commands() -> list[str]:
    steps = [step for job in jobs().values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_each_command_of_a_job_is_a_target_of_make_or_a_script_that_exists() -> None:
    called = [line.split() for line in commands()]
    targets = {word for words in called if words[0] == "make" for word in words[1:]}
    assert targets
    assert targets <= MAKE_TARGETS
    scripts = {words[0] for words in called if words[0].startswith(".")}
    assert scripts == {".ci/run"}
    assert all((ROOT / script).stat().st_mode & 0o100 for script in scripts)
    assert "exec make test" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_each_action_has_a_name_and_a_version_and_each_job_a_time_limit() -> None:
    for job in jobs().values():
        assert 0 < job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "uses" not in step or ACTION.fullmatch(step["uses"]), step


def test_every_declared_version_of_python_is_tested_on_linux_and_macos_native_and_pure() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    classified = [
        found[1] for line in project["project"]["classifiers"] if (found := pattern.fullmatch(line))
    ]
    matrix = jobs()["test"]["strategy"]["matrix"]
    assert matrix["python"] == classified
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    assert set(matrix["build"]) == {"native", "pure"}

    oldest = classified[0]
    assert project["project"]["requires-python"] == f">={oldest}"
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    crate = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text("utf-8"))
    assert f"abi3-py{oldest.replace('.', '')}" in crate["dependencies"]["pyo3"]["features"]
