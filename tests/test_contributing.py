"""CONTRIBUTING.md names paths that exist, targets of make that exist, and every test helper."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
QUOTED = re.findall(r"`([^`]+)`", TEXT)
IN_TREE = re.compile(
    r"(?:src|tests|docs|native|bench|examples|\.ci)/[\w./-]*|[\w.-]+\.(?:toml|yaml|md)"
)


def test_every_path_in_contributing_exists() -> None:
    named = {text for text in QUOTED if IN_TREE.fullmatch(text)}
    assert len(named) > 50
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_target_of_make_in_contributing_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = {text.split()[1] for text in QUOTED if text.startswith("make ")}
    assert named <= targets


def test_the_map_of_test_helpers_is_complete() -> None:
    helpers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_")
    }
    mapped = set(re.findall(r"^\| `(tests/[^`]+\.py)` \| \S.* \|$", TEXT, re.MULTILINE))
    assert mapped == helpers
