"""The programs in examples/ run as they are, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
EXAMPLES: Final = ROOT / "examples"
LINES_MAX: Final = 60
WAIT_S: Final = 180
PRINTED: Final = {
    "async_consumer": "seen: 20 degrees, 21 degrees, 22 degrees, 23 degrees, 24 degrees\n",
    "embedded_log": (
        "billed: order 0\nbilled: order 1\nbilled: order 2\nbilled: order 3\n"
        "lag: 2\nafter the restart: 2\nlag: 0\n"
    ),
    "kafka_client": (
        "not delivered: 0\nby Kafka: [b'order 0', b'order 1', b'order 2']\n"
        "by Penstock: [b'order 0', b'order 1', b'order 2']\nlag of billing: 0\n"
    ),
    "keys_and_tags": (
        "newest of o-17: b'4 apples'\nall of o-17: [b'4 apples', b'3 apples']\n"
        "tagged fruit: [b'3 apples', b'4 apples']\nafter the deletion: None\nrecords: 1001\n"
    ),
    "spark_batch": "eu 250\nus 750\nof one key: 1\n",
    "tiered_topic": (
        "the log begins after offset 0: True\nthe tier has objects: True\nrecords: 4000\n"
    ),
}


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_short_and_has_its_output_checked() -> None:
    programs = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert programs.keys() == PRINTED.keys()
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in programs.items()}
    assert max(lengths.values()) <= LINES_MAX, lengths


@pytest.mark.parametrize("name", sorted(PRINTED.keys() - {"spark_batch"}))
def test_an_example_prints_what_it_promises(name: str) -> None:
    assert run(name) == PRINTED[name]


@pytest.mark.spark
def test_the_example_on_spark_prints_what_it_promises() -> None:
    assert run("spark_batch") == PRINTED["spark_batch"]
