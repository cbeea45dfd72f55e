"""docs/architecture.md names modules, classes and functions that exist.

The page writes each of them in full, in code marks: `penstock.api.topic.Topic.write`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "penstock"
NAMES = sorted(set(re.findall(r"`(penstock(?:\.\w+)+)`", PAGE)))
NATIVE = "penstock._native"


def import_longest(name: str) -> tuple[ModuleType, list[str]]:
    """Import as much of a dotted name as is a module; return what is left of the name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ".".join(parts[:count])
        if importlib.util.find_spec(parts[0]) and _is_module(path):
            return importlib.import_module(path), parts[count:]
    raise AssertionError(f"{name}: no such module")


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_every_name_on_the_page_exists(name: str) -> None:
    if name.startswith(NATIVE):
        pytest.importorskip(NATIVE, reason="the native extension is not built")
    if name.startswith("penstock.pipeline"):
        pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    found: object
    found, rest = import_longest(name)
    for attribute in rest:
        near = get_close_matches(attribute, dir(found), n=3)
        assert hasattr(found, attribute), f"{name}: no {attribute!r}; near: {near}"
        found = getattr(found, attribute)


def test_the_tour_names_the_hops_of_five_messages() -> None:
    tour = PAGE.partition("## A tour")[2].partition("\n## ")[0]
    stops = re.split(r"^### ", tour, flags=re.MULTILINE)[1:]
    assert len(stops) == 5
    assert all(len(re.findall(r"`penstock(?:\.\w+)+`", stop)) >= 5 for stop in stops)


def test_the_package_tree_on_the_page_is_the_package_tree() -> None:
    block = PAGE.partition("src/penstock/\n")[2].partition("```")[0]
    listed = set(re.findall(r"^  (\w+)/ ", block, re.MULTILINE))
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert listed == packages


def test_the_folders_of_the_tests_are_those_of_the_package() -> None:
    # Tests of the whole: with clients of other people, of replicas over two nodes, of real
    # clusters, and against RocketMQ itself.
    of_the_whole = {
        *("brokers/kafka/java", "brokers/kafka/replicas", "brokers/mqtt/clients"),
        "brokers/mqtt/suites",
        *("cluster", "oracle"),
    }
    tests = ROOT / "tests"
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")}
    assert {folder for folder in folders if not (PACKAGE / folder).is_dir()} == of_the_whole
