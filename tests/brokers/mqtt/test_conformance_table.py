"""The table of normative statements names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "mqtt-conformance.md"
ROW = re.compile(r"^\| MQTT-(\d+\.\d+\.\d+-\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`(\w+)::(\w+)`")
SUITES = {"M", "P"}


def named_tests() -> set[tuple[str, str]]:
    """Return the modules and names of all tests of the front end and its network."""
    return {
        (path.stem, name)
        for folder in ("mqtt", "network")
        for path in (ROOT / "tests" / "brokers" / folder).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }


def test_every_test_that_the_table_names_exists() -> None:
    missing = set(TEST.findall(TABLE.read_text(encoding="utf-8"))) - named_tests()
    assert missing == set()


def test_every_statement_has_a_test_and_is_there_once() -> None:
    parts = TABLE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert [part.partition("\n")[0] for part in parts] == ["MQTT 5", "MQTT 3.1.1"]
    for part, least in zip(parts, (180, 100), strict=True):
        rows = ROW.findall(part)
        statements = [statement for statement, _, _ in rows]
        assert len(statements) == len(set(statements)) == part.count("| MQTT-") >= least
        assert statements == sorted(statements, key=_numbers)
        for statement, _, tests in rows:
            named = {test.strip() for test in tests.split(",")}
            assert all(test in SUITES or TEST.fullmatch(test) for test in named), statement


def _numbers(statement: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", statement)]
