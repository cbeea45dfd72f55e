"""Run Mosquitto's packet suite against a server: raw bytes in, exact bytes out.

    python -m tests.brokers.mqtt.suites.run_mosquitto DIRECTORY PORT

DIRECTORY is a copy of Mosquitto's sources. Prints the failed cases, then `SUCCEEDED of TOTAL`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[\d+m")


def run(directory: Path, port: int, host: str = "localhost") -> tuple[list[str], int, int]:
    """Return the failed cases, the number that succeeded, and the number of all."""
    sys.path[:0] = [str(directory / "test" / "broker"), str(directory / "test")]
    suite = importlib.import_module("msg_sequence_test")
    # After a timeout the suite would exit; the other cases are independent.
    vars(suite)["exit"] = lambda: None
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        suite.do_test(host, port, "mqtt")
    text = ESCAPE.sub("", output.getvalue())
    total = re.search(r"(\d+) tests total", text)
    succeeded = re.search(r"(\d+) tests succeeded", text)
    assert total, text
    assert succeeded, text
    failed = re.findall(r"^(.* failed: .*(?:\n(?:rec|exp|diff):.*)*)", text, re.MULTILINE)
    return failed, int(succeeded[1]), int(total[1])


if __name__ == "__main__":
    failures, good, count = run(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write("\n".join([*failures, f"{good} of {count}", ""]))
