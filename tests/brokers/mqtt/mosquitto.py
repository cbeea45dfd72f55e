"""A Mosquitto of the machine, for tests that need another broker."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.free_ports import free_ports

BINARY = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
START_S = 60.0


class Mosquitto:
    """Runs with a configuration of the test; can be stopped and started again."""

    def __init__(self, directory: Path, *, config: str = "", is_persistent: bool = False) -> None:
        assert BINARY is not None
        [self.port] = free_ports(1)
        self._file = directory / "mosquitto.conf"
        stored = f"persistence true\npersistence_location {directory}/\n" if is_persistent else ""
        # As root it would become another user, who cannot write here.
        user = f"user {getpass.getuser()}"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", user]
        lines += ["max_queued_messages 0", stored, config, ""]
        self._file.write_text("\n".join(lines), "utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        assert BINARY is not None
        self._process = subprocess.Popen(
            [BINARY, "-c", str(self._file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, "mosquitto ended"
            time.sleep(0.02)
        raise AssertionError("mosquitto does not listen")

    def stop(self) -> None:
        """Stop it; what it persists is written."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_S)
            self._process = None
