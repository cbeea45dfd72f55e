"""Run Paho's interoperability suite against a server.

    python -m tests.brokers.mqtt.suites.run_paho DIRECTORY PORT client_test5 [TEST …]

DIRECTORY is a copy of Paho's `paho.mqtt.testing`. Prints the suite's output, then
`SUCCEEDED of TOTAL`.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path

TOPICS = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
WILDCARDS = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
NO_SUBSCRIBE = "test/nosubscribe"
"""The suite expects that nobody may subscribe to this topic."""


def run(directory: Path, port: int, name: str, tests: Sequence[str] = ()) -> tuple[int, int]:
    """Return how many tests succeeded, and how many there are."""
    sys.path.insert(0, str(directory / "interoperability"))
    suite = importlib.import_module(name)
    prefix = "client_test5/" if name == "client_test5" else ""
    vars(suite).update(
        topic_prefix=prefix,
        topics=[prefix + topic for topic in TOPICS],
        wildtopics=[prefix + topic for topic in WILDCARDS],
        nosubscribe_topics=(NO_SUBSCRIBE,),
        host="localhost",
        port=port,
    )
    loader = unittest.defaultTestLoader
    if tests:
        cases = loader.loadTestsFromNames([f"Test.{test}" for test in tests], suite)
    else:
        cases = loader.loadTestsFromTestCase(suite.Test)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(cases)
    failed = len(result.failures) + len(result.errors)
    return result.testsRun - failed, result.testsRun


if __name__ == "__main__":
    good, count = run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    sys.stdout.write(f"{good} of {count}\n")
