"""Workers on this machine are reached by Unix sockets, where those can be had."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.spark_session import sessions, worker_sockets
from penstock.pipeline.spark_session.worker_daemon import ignore_broken_pipe
from penstock.pipeline.spark_session.worker_python import worker_python
from penstock.pipeline.spark_session.worker_sockets import (
    DIRECTORY,
    ENABLED,
    PATH_LENGTH_MAX,
    socket_settings,
)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)


def test_workers_of_a_local_session_use_a_directory_that_is_ours_alone(spark: SparkSession) -> None:
    def look(_: int) -> tuple[str | None, str | None]:
        return (
            os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED"),
            os.environ.get("PYTHON_WORKER_FACTORY_SOCK_DIR"),
        )

    ((enabled, directory),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert enabled == "True"
    assert directory == spark.sparkContext.getConf().get(DIRECTORY)
    assert directory is not None
    assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700


def test_a_path_that_is_too_long_for_a_socket_leaves_it_at_tcp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parent = tmp_path / ("x" * PATH_LENGTH_MAX)
    parent.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    assert socket_settings() == {}
    assert [*parent.iterdir()] == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert socket_settings() == {}


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_UDS_MODE", "false")
    assert socket_settings() == {}


def test_an_interpreter_of_the_users_own_is_reached_as_spark_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_sockets, "_directory", lambda *_: "/tmp/short")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert sessions._local_workers() == {}
    monkeypatch.setenv("PYSPARK_PYTHON", worker_python())
    assert sessions._local_workers() == {ENABLED: "true", DIRECTORY: "/tmp/short"}


def test_the_directory_goes_with_the_process_that_made_it(tmp_path: Path) -> None:
    code = (
        "import os, sys, tempfile\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "from penstock.pipeline.spark_session import worker_sockets\n"
        "worker_sockets.PATH_LENGTH_MAX = 1000\n"
        "path = worker_sockets.socket_settings()[worker_sockets.DIRECTORY]\n"
        "open(os.path.join(path, '.left.sock'), 'w').close()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "assert os.path.exists(path), 'a child removed it'\n"
        "print(path)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert Path(ran.stdout.strip()).parent == tmp_path
    assert [*tmp_path.iterdir()] == []


def test_a_worker_that_spark_hung_up_on_ends_without_a_trace() -> None:
    def work(code: int) -> int:
        if code < 0:
            raise BrokenPipeError
        return 10 // code

    patient = ignore_broken_pipe(work)
    assert patient(5) == 2
    assert patient(-1) == 1
    with pytest.raises(ZeroDivisionError):
        patient(0)
