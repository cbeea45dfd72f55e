"""A real S3 server on loopback for the tests: versitygw, when it can be found."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"


class S3Server(NamedTuple):
    port: int
    directory: Path

    def options(self, port: int | None = None) -> dict[str, str]:
        return {
            "endpoint": f"http://127.0.0.1:{port or self.port}",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
            "virtual_hosted_style_request": "false",
        }

    def create_bucket(self, name: str) -> None:
        (self.directory / name).mkdir(exist_ok=True)


def find_server() -> str | None:
    """Return the program: `PENSTOCK_VERSITYGW`, on the PATH, or where `go install` puts it."""
    named = os.environ.get("PENSTOCK_VERSITYGW")
    return named or shutil.which("versitygw") or shutil.which(str(Path.home() / "go/bin/versitygw"))


@contextmanager
def running_server(program: str, directory: Path) -> Iterator[S3Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", f"127.0.0.1:{port}", "--access", ACCESS_KEY, "--secret"]
    process = subprocess.Popen(
        [*command, SECRET_KEY, "posix", str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield S3Server(port, directory)
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, "the S3 server ended at once"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the S3 server does not listen")
