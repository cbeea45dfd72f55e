"""Events come out as lines for people and as JSON for machines."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.platform.log import configure, get_logger


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    logger = logging.getLogger("penstock")
    state = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = state


def test_people_read_key_value_pairs() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    get_logger("penstock.engine").info("file_rolled", path="a b", size=3, ratio=0.5, note="")
    line = stream.getvalue()
    assert line.endswith(
        ' info     penstock.engine  file_rolled path="a b" size=3 ratio=0.5 note=""\n'
    )


def test_machines_read_one_object_a_line() -> None:
    stream = io.StringIO()
    configure(as_json=True, stream=stream)
    log = get_logger("penstock.engine")
    log.warning("tail_cut", path="log\n", bytes_cut=7, level="field")
    log.error("flush_failed", cause=OSError(5, "broken"))
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["time"].endswith("Z")
    assert {name: first[name] for name in ("level", "logger", "event", "path", "bytes_cut")} == {
        "level": "warning",
        "logger": "penstock.engine",
        "event": "tail_cut",
        "path": "log\n",
        "bytes_cut": 7,
    }
    assert (second["error"], second["reason"]) == ("OSError", "[Errno 5] broken")
    assert "OSError" in second["traceback"]


def test_levels_below_the_configured_one_are_silent() -> None:
    stream = io.StringIO()
    configure(level="warning", stream=stream)
    log = get_logger("penstock.engine")
    log.info("not_shown")
    log.debug("not_shown")
    assert stream.getvalue() == ""


def test_events_are_ordinary_log_records(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="penstock"):
        get_logger("penstock.engine").info("file_rolled", size=3)
    assert [record.getMessage() for record in caplog.records] == ["file_rolled"]
    assert caplog.records[0].funcName == "test_events_are_ordinary_log_records"


def test_a_program_that_logs_json_has_one_form_for_everything() -> None:
    """Of other libraries, of Python's warnings, of what ends a thread."""
    program = """
import logging, sys, threading, warnings
from penstock.platform.log import configure_program, get_logger
configure_program(level="info", as_json=True)
get_logger("penstock.x").info("ours")
logging.getLogger("another.library").warning("theirs")
warnings.warn("old", stacklevel=1)
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
raise SystemError("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines[:2]] == ["ours", "theirs"]
    assert "UserWarning: old" in lines[2]["event"]
    ends = [(line["event"], line["where"], line["error"]) for line in lines[3:]]
    assert ends == [
        ("uncaught_exception", "worker", "ZeroDivisionError"),
        ("uncaught_exception", "main", "SystemError"),
    ]
