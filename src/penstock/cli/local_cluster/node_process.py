"""One node of a local cluster: its process, its output and its health.

Everything that the node writes to standard error goes to its log file, which is replaced at
`_LOG_SIZE_MAX`; warnings, errors and lines that are not log lines are passed on as well. A node
without a log file has all its lines passed on.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import msgspec

from penstock.cli.local_cluster.node_ports import NodePorts
from penstock.cli.local_cluster.supervised_directory import SupervisedDirectory
from penstock.platform.addresses import bare_host

_LOG_SIZE_MAX: Final = 16 << 20
_LINE_MAX: Final = 16_384
_PROBE_S: Final = 2.0
_JOIN_S: Final = 2.0
_BODY_MAX: Final = 1 << 20
_LEVEL: Final = re.compile(rb"^\d\d:\d\d:\d\d\.\d{3} (\w+) |\"level\":\"(\w+)\"")
_QUIET: Final = re.compile(rb"^(?:stopping: |stopped)")

Show = Callable[[int, str], None]
"""Called with the number of a node and a line of its output."""


class NodeProcess:
    """Runs one node; a stopped one can be started again."""

    def __init__(self, directory: SupervisedDirectory, ports: NodePorts, show: Show) -> None:
        self._directory: Final = directory
        self._show: Final = show
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.ports: Final = ports
        self.last_words = ""
        """The last error that the node printed."""

    @property
    def node(self) -> int:
        return self.ports.node

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process. Call it in the main thread: the node ends with the thread that started
        it."""
        launch = self._directory.launch(self.node)
        command = [
            *(sys.executable, "-m", "penstock.cli.local_cluster.child", str(os.getpid())),
            *("serve", *launch.arguments),
        ]
        self.last_words = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=launch.environment,
            process_group=0,  # Ctrl-C reaches the supervisor alone, which stops the nodes
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(
            target=self._read,
            args=(self._process.stderr, launch.log),
            name=f"output-{self.node}",
            daemon=True,
        )
        self._reader.start()

    def _read(self, output: IO[bytes], log: Path | None) -> None:
        is_shown = False
        with output, _LogFile(log) as file:
            while line := output.readline(_LINE_MAX):
                problem = file.write(line)
                if problem:
                    self._show(self.node, problem)
                is_shown = _is_shown(line, after_shown=is_shown)
                if is_shown or log is None:
                    text = line.decode("utf-8", "replace").rstrip()
                    self.last_words = (is_shown and text) or self.last_words
                    self._show(self.node, text)

    def exit_code(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is not None and self._reader is not None:
            self._reader.join(_JOIN_S)
        return code

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def problem(self) -> str:
        """Return why the node is not ready; empty: it serves all clients."""
        try:
            probe = http.client.HTTPConnection(
                bare_host(self.ports.near_host), self.ports.http, timeout=_PROBE_S
            )
            try:
                probe.request("GET", "/health")
                answer = probe.getresponse()
                body = answer.read(_BODY_MAX)
            finally:
                probe.close()
        except (OSError, http.client.HTTPException):
            return "starting"
        if answer.status != http.HTTPStatus.OK:
            return _reason(body)
        return "" if _accepts_kafka(self.ports) else "opening its ports"


class _LogFile:
    """The output of a node, in a file of bounded size. After an error nothing is written: a node
    must not wait for a reader of its output."""

    def __init__(self, path: Path | None) -> None:
        self._path: Final = path
        self._file: IO[bytes] | None = None
        self._is_broken = False

    def __enter__(self) -> _LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, line: bytes) -> str:
        """Write a line; return why that is not possible, once."""
        if self._path is None or self._is_broken:
            return ""
        try:
            self._append(self._path, line)
        except OSError as error:
            self._is_broken = True
            return f"{self._path} cannot be written: {error.strerror}"
        return ""

    def _append(self, path: Path, line: bytes) -> None:
        if self._file is None:
            self._file = path.open("ab")
        if self._file.tell() > _LOG_SIZE_MAX:
            self._file.close()
            path.replace(path.with_name("log.1"))
            self._file = path.open("ab")
        self._file.write(line)
        self._file.flush()


def _is_shown(line: bytes, *, after_shown: bool) -> bool:
    """Return whether a line is a warning or an error, belongs to one, or is not a log line."""
    level = _LEVEL.search(line)
    if level is not None:
        return (level[1] or level[2]) in {b"warning", b"error", b"critical"}
    if line[:1].isspace():
        return after_shown
    return _QUIET.match(line) is None


def _reason(body: bytes) -> str:
    try:
        page = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.DecodeError:
        return "starting"
    return str(page.get("problem", "starting"))


def _accepts_kafka(ports: NodePorts) -> bool:
    if not ports.kafka:
        return True
    try:
        address = (bare_host(ports.near_kafka_host), ports.kafka)
        socket.create_connection(address, timeout=_PROBE_S).close()
    except OSError:
        return False
    return True
