"""Starting, in a process of its own: an embedded store, and a server.

    python -m bench.start_cases DIRECTORY     opens a store; prints seconds, CPU seconds, bytes of
                                              memory

The clock of a store runs from the start of the imports, that of a server from the start of its
process. Memory is what the process has for itself: pages of mapped files, which the kernel takes
back when it needs them, do not count.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def own_memory() -> int:
    found = re.search(r"Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _serve(path: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "serve", "--data", path]
    ports = ["--port", "0", "--http-port", "0", "--kafka-port", "0"]
    return subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True)


def _stop(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.communicate(timeout=60)


def first_line_of_serve(path: str) -> tuple[float, float]:
    """Start a server with everything on, and stop it again; return the seconds, and those of a
    CPU, until its first line is there."""
    started = time.perf_counter()
    with _serve(path) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        seconds = time.perf_counter() - started
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        _stop(server)
    assert line, "the server did not start"
    return seconds, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(path: str) -> Iterator[str]:
    """Run a server; give the address of its storage API."""
    with _serve(path) as server:
        try:
            assert server.stdout is not None
            found = (re.search(r"storage API\s+(\S+)", line) for line in server.stdout)
            yield next(match[1] for match in found if match)
        finally:
            _stop(server)


def main() -> None:
    cpu, started = time.process_time(), time.perf_counter()
    import penstock

    with penstock.open(sys.argv[1]):
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        gc.collect()
        print(seconds, cpu_seconds, own_memory())


if __name__ == "__main__":
    main()
