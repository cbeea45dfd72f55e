"""A node in a process of its own, which can be killed and started again on the same port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.brokers.mqtt.serving import PATIENCE_S
from tests.free_ports import free_ports


class NodeProcess:
    def __init__(self, directory: Path, *settings: str, prefix: Sequence[str] = ()) -> None:
        """`settings` are like `mqtt.receive_maximum=5`, `prefix` is put before the command."""
        self.directory = directory
        (self.port,) = free_ports(1)
        self._settings = settings
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [*self._prefix, sys.executable, "-m", "penstock", "serve", "-d"]
        command += [str(self.directory), "--port", "0", "--http-port", "0"]
        command += ["--mqtt-port", str(self.port), "--set", "mqtt.websocket=false"]
        command += ["--set", "broker.commit_log_file_size=8388608"]
        command += ["--set", "engine.index_slots=10000", "--set", "engine.index_entries_max=40000"]
        if not any(setting.startswith("kafka.") for setting in self._settings):
            command += ["--set", "kafka.enabled=false"]
        for setting in self._settings:
            command += ["--set", setting]
        with (self.directory.parent / "node.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert self._process is not None
                assert self._process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.02)
            else:
                return

    @property
    def log(self) -> str:
        return (self.directory.parent / "node.log").read_text("utf-8", "replace")[-4000:]

    def kill(self) -> None:
        """End the process as a power cut of it alone would: nothing is written any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.kill(process.pid, how)
            process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
