"""The suites of Mosquitto and Paho against `penstock serve`.

The environment names their directories; without them the tests are skipped, and nothing is fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.brokers.mqtt.suites.run_paho import NO_SUBSCRIBE
from tests.engine.quick_directory import quick_directory

from penstock.settings import Settings

pytestmark = [pytest.mark.mqtt_suites, pytest.mark.timeout(1200)]
MOSQUITTO = os.environ.get("MOSQUITTO_SOURCES")
PAHO = os.environ.get("PAHO_TESTING")
SUITE_S = 1000
ROOT = Path(__file__).parents[4]


def run_suite(module: str, directory: str, settings: Settings, *arguments: str) -> list[str]:
    """Run a suite against a node of its own; return the last words of its output."""
    with quick_directory() as data, serve(Path(data) / "data", settings) as server:
        command = [sys.executable, "-m", f"tests.brokers.mqtt.suites.{module}", directory]
        done = subprocess.run(
            [*command, str(port_of(server)), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SUITE_S,
            check=False,
        )
    output = done.stdout.strip()
    sys.stdout.write(output)
    succeeded, _, total = output.splitlines()[-1].split()
    return [succeeded, total]


@pytest.mark.skipif(MOSQUITTO is None, reason="MOSQUITTO_SOURCES is not set")
def test_every_packet_of_the_suite_of_mosquitto_is_answered_as_expected() -> None:
    assert MOSQUITTO is not None
    settings = node_settings(receive_maximum=20, no_subscribers_reason=True)
    succeeded, total = run_suite("run_mosquitto", MOSQUITTO, settings)
    assert int(total) > 1_000
    assert succeeded == total


@pytest.mark.skipif(PAHO is None, reason="PAHO_TESTING is not set")
@pytest.mark.parametrize("suite", ["client_test", "client_test5"])
def test_every_test_of_the_suite_of_paho_succeeds(suite: str, tmp_path: Path) -> None:
    assert PAHO is not None
    rules = tmp_path / "acl"
    rules.write_text(f"topic #\ntopic $TopicA/#\ntopic denyfilter {NO_SUBSCRIBE}\n", "utf-8")
    settings = node_settings(
        receive_maximum=20,
        keep_alive_max_s=60,
        mqtt_access__acl_file=str(rules),
        mqtt_access__subscription_refusal="unspecified_error",
    )
    succeeded, total = run_suite("run_paho", PAHO, settings, suite)
    assert int(total) >= 10
    assert succeeded == total
