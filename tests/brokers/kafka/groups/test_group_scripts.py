"""The group protocol, played from text: each script is a story with every answer in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.brokers.kafka.groups.group_scripts import play

from penstock.groups.model import Limits

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))
LIMITS = Limits(initial_delay_ms=3_000, members_max=4, metadata_size_max=100)


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_group_answers_as_its_script_says(path: Path) -> None:
    played = play(path, LIMITS)
    if os.environ.get("PENSTOCK_REWRITE"):
        path.write_text(played)
    assert played == path.read_text()


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 6
