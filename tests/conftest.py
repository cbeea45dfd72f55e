"""Settings of the whole test run."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.codec.golden_store import GoldenStore, unpack
from tests.engine.quick_directory import quick_directory

settings.register_profile("default", deadline=None, max_examples=50, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=2_000, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _compile_once_for_all_processes() -> None:
    """Many tests start processes. Where nothing is to be written beside the sources, each of them
    would compile all modules again, which takes longer than the rest of its start."""
    if "PYTHONDONTWRITEBYTECODE" in os.environ and "PYTHONPYCACHEPREFIX" not in os.environ:
        directory = tempfile.mkdtemp(prefix="penstock-bytecode-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        del os.environ["PYTHONDONTWRITEBYTECODE"]
        os.environ["PYTHONPYCACHEPREFIX"] = directory


_compile_once_for_all_processes()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in the background (`nohup … &`), and processes that tests start
    # would ignore the interrupts that the tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    """The store that RocketMQ wrote, unpacked once. Not to be changed."""
    return unpack(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A data directory that does not exist yet, on the quickest file system."""
    with quick_directory() as found:
        yield Path(found) / "data"


@pytest.fixture(autouse=True)
def _umask_as_it_was() -> Iterator[None]:
    """A server that a test runs in this process makes all of its files private."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that a test runs in this process configure logging for ever, on a stream of that
    test; the next one must not see it."""
    logger = logging.getLogger("penstock")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have measured, `record_property("measured", …)`: they pass by other means."""
    reports = terminalreporter.stats.get("passed", [])
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for report in reports
        for name, value in report.user_properties
        if name == "measured" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_report_header() -> str:
    """Say which codec backend this run tests."""
    try:
        from penstock.codec.select import IS_NATIVE
    except ImportError:
        return "penstock: codec not there yet"
    return f"penstock: {'native extension' if IS_NATIVE else 'Python backend'}"
