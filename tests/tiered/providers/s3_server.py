"""A real S3 server on loopback for the tests: versitygw, when it can be found."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"
_LISTENS = "0A"
"""The state in the kernel's table of sockets."""


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
    """Run it on a port that the system picks: one that was only looked for may be another's by the
    time the server is there."""
    command = [program, "--port", "127.0.0.1:0", "--access", ACCESS_KEY, "--secret"]
    process = subprocess.Popen(
        [*command, SECRET_KEY, "posix", str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield S3Server(_wait_for(process), directory)
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the S3 server ended at once"
        port = _listening_port(process.pid)
        if port is not None:
            return port
        time.sleep(0.05)
    raise AssertionError("the S3 server does not listen")


def _listening_port(pid: int) -> int | None:
    """Return the port at which a process listens: it does not tell, the kernel does."""
    sockets: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            sockets.add(os.readlink(descriptor))
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].rpartition(":")[2], 16)
    return None
