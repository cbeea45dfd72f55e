"""The hooks that run before a commit are local, and their commands exist."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TypedDict

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / ".pre-commit-config.yaml"


class Hook(TypedDict):
    id: str
    language: str
    entry: str


class Repository(TypedDict):
    repo: str
    hooks: list[Hook]


def repositories() -> list[Repository]:
    found: list[Repository] = yaml.safe_load(CONFIGURATION.read_text("utf-8"))["repos"]
    return found


HOOKS = [hook for repository in repositories() for hook in repository["hooks"]]


def test_hooks_download_nothing() -> None:
    assert {repository["repo"] for repository in repositories()} == {"local"}
    assert {hook["language"] for hook in HOOKS} == {"system"}


def test_the_checks_of_make_lint_run_before_a_commit() -> None:
    ids = {hook["id"] for hook in HOOKS}
    assert ids == {"ruff-check", "ruff-format", "mypy", "lint-imports", "cargo-fmt"}


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_the_command_of_a_hook_exists(hook: Hook) -> None:
    program, *arguments = shlex.split(hook["entry"])
    if program == "cargo" and shutil.which("cargo") is None:
        pytest.skip("cargo is not installed; the hook runs for Rust files alone")
    if program.startswith(".venv/bin/"):  # where the tests may run in another environment
        program = str(Path(sys.executable).with_name(Path(program).name))
    assert shutil.which(program), program
    for argument in arguments:
        assert "/" not in argument or (ROOT / argument).exists(), argument
