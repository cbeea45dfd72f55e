"""Spark in processes of its own on loopback: a standalone cluster, a Connect server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from penstock.pipeline.spark_session.java import find_java
from penstock.pipeline.spark_session.worker_python import worker_python

START_S = 600
WORKERS = 2
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def running_cluster(root: Path) -> Iterator[str]:
    """Yield the address of the master; workers have one core and 700 MB each."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        log = root / "master.log"
        processes.append(_start(log, _MASTER))
        master = _wait(log, r"Starting Spark master at (spark://\S+)", processes[-1])
        for number in range(WORKERS):
            log = root / f"worker-{number}.log"
            place = str(root / f"worker-{number}")
            processes.append(
                _start(log, _WORKER, "--cores", "1", "--memory", "700m", "-d", place, master)
            )
        for number, process in enumerate(processes[1:]):
            _wait(root / f"worker-{number}.log", r"(Successfully registered)", process)
        yield master
    finally:
        for process in processes:
            process.kill()
            process.wait(60)


@contextmanager
def running_connect_server(root: Path) -> Iterator[str]:
    """Yield the address of a Connect server with two cores."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
    }
    log = root / "connect.log"
    flags = [flag for name, value in settings.items() for flag in ("--conf", f"{name}={value}")]
    command = ["spark-submit", "--master", "local[2]", *flags, "--class", _CONNECT]
    # Spark gives a stream's source ten seconds to start: see `worker_python`.
    process = _run(log, command, memory="700m", python=worker_python())
    try:
        port = _wait(log, r"Spark Connect server started at: \S*?:(\d+)", process)
        yield f"sc://127.0.0.1:{port}"
    finally:
        # spark-submit is a shell script that becomes Java: one process.
        process.terminate()
        process.wait(60)


def _start(log: Path, kind: str, *more: str) -> subprocess.Popen[bytes]:
    flags = "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
    return _run(log, ["spark-class", kind, *flags, *more])


def _run(
    log: Path, command: list[str], memory: str = "256m", python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """Run a program of Spark's, without the packages of this one."""
    (home,) = pyspark.__path__
    java = find_java()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": memory,
        "PYSPARK_PYTHON": python,
    }
    environment |= {} if java is None else {"JAVA_HOME": java}
    with log.open("wb") as output:
        return subprocess.Popen(
            [f"{home}/bin/{command[0]}", *command[1:]],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _wait(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while True:
        text = log.read_text(errors="replace")
        found = re.search(pattern, text)
        if found is not None:
            return found[1]
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def spark_submit(program: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a program by spark-submit; return what it printed."""
    (home,) = pyspark.__path__
    java = find_java()
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **({} if java is None else {"JAVA_HOME": java}),
    }
    return subprocess.run(
        [f"{home}/bin/spark-submit", *flags, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=True,
    )
