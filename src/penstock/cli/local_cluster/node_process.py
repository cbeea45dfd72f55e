"""One node of a local cluster: its process, its output and its health.

Everything that the node writes to standard error goes to its log file, which is replaced at
`_LOG_SIZE_MAX`; warnings, errors and lines that are not log lines are passed on as well.
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
from typing import IO, Final

import msgspec

from penstock.cli.local_cluster.directory import HOST, ClusterDirectory, NodePorts

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

    def __init__(self, directory: ClusterDirectory, ports: NodePorts, show: Show) -> None:
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
        command = [
            *(sys.executable, "-m", "penstock.cli.local_cluster.child", str(os.getpid())),
            *("serve", "--data", str(self._directory.data(self.node))),
            *("--config", str(self._directory.config(self.node))),
        ]
        self.last_words = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(),
            process_group=0,  # Ctrl-C reaches the supervisor alone, which stops the nodes
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stderr,), name=f"output-{self.node}", daemon=True
        )
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        path = self._directory.log(self.node)
        is_shown = False
        log = path.open("ab")
        try:
            while line := output.readline(_LINE_MAX):
                if log.tell() > _LOG_SIZE_MAX:
                    log.close()
                    path.replace(path.with_name("log.1"))
                    log = path.open("ab")
                log.write(line)
                log.flush()
                is_shown = _is_shown(line, after_shown=is_shown)
                if is_shown:
                    text = line.decode("utf-8", "replace").rstrip()
                    self.last_words = text or self.last_words
                    self._show(self.node, text)
        except OSError as error:
            self._show(self.node, f"{path} cannot be written: {error.strerror}")
            while output.read(_LINE_MAX):
                pass  # else the node would wait for a reader of its output
        finally:
            log.close()
            output.close()

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
            probe = http.client.HTTPConnection(HOST, self.ports.http, timeout=_PROBE_S)
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
        return "" if _accepts(self.ports.kafka) else "opening its ports"


def _is_shown(line: bytes, *, after_shown: bool) -> bool:
    """Return whether a line is a warning or an error, belongs to one, or is not a log line."""
    found = _LEVEL.search(line)
    if found is not None:
        return (found[1] or found[2]) in {b"warning", b"error", b"critical"}
    if line[:1].isspace():
        return after_shown
    return _QUIET.match(line) is None


def _reason(body: bytes) -> str:
    try:
        page = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.DecodeError:
        return "starting"
    return str(page.get("problem", "starting"))


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(_PROBE_S)
        return probe.connect_ex((HOST, port)) == 0


def _environment() -> dict[str, str]:
    """Return the environment of a node: without settings, which would be those of all nodes, and
    without the service manager of this process."""
    return {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith("PENSTOCK_") and "__" in name) and name != "NOTIFY_SOCKET"
    }
