"""The interpreter that Spark runs as Python workers on this machine.

Spark puts zips of its Python code first on the path. They hold no compiled code, so
every daemon and every worker compiles all of `pyspark` when it starts: a second of CPU time, where
the installed package takes a third of it. A streaming source has ten seconds to start, and no
setting changes that; on a busy machine a query with a few sources failed by it. So a script drops
the zips from the path, where the interpreter has the same code installed. It runs `worker_daemon`
instead of Spark's own daemon, and has libraries start no threads (a process with threads must not
be forked) and keep the memory of a batch for the next one instead of giving it back to the system.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock.pipeline.spark_session.launchers import write_launcher

_SCRIPT: Final = """#!/bin/sh
# Runs Python without Spark's own zips on its path: what is in them is installed.
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
    case $place in
        {home}/*) ;;
        *) kept=$kept${{kept:+:}}$place ;;
    esac
done
unset IFS
export PYTHONPATH="$kept"
export JE_ARROW_MALLOC_CONF="${{JE_ARROW_MALLOC_CONF-background_thread:false}}"
export OPENBLAS_NUM_THREADS="${{OPENBLAS_NUM_THREADS-1}}"
export MALLOC_MMAP_THRESHOLD_="${{MALLOC_MMAP_THRESHOLD_-33554432}}"
export MALLOC_TRIM_THRESHOLD_="${{MALLOC_TRIM_THRESHOLD_-67108864}}"
case "$1 $2" in
    "-m pyspark.daemon") shift 2; set -- -c {daemon} "$@" ;;
    "-m pyspark.sql.streaming.python_streaming_"*) shift; set -- -c {runner} "$@" ;;
esac
exec {python} "$@"
"""

_DAEMON: Final = """
try:
    from penstock.pipeline.spark_session.worker_daemon import main
except ImportError:
    from pyspark.daemon import manager as main
main()
"""


# A stream's source process ends when Spark closes its socket, and would print a traceback.
_RUNNER: Final = """
import os, runpy, sys
del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except (BrokenPipeError, ConnectionResetError):
    os._exit(1)
"""


def worker_python() -> str:
    """Return what is to run as Python: a script, or this interpreter where that would not do."""
    home = _installed("pyspark")
    if home is None or _installed("py4j") is None:
        return sys.executable
    if os.environ.get("SPARK_HOME", home) != home:
        return sys.executable  # another Spark, whose Python code only its zips have
    text = _SCRIPT.format(
        home=shlex.quote(home),
        python=shlex.quote(sys.executable),
        daemon=shlex.quote(_DAEMON),
        runner=shlex.quote(_RUNNER),
    )
    name = f"python-{crc32(text.encode()):08x}"
    try:
        return str(write_launcher("penstock-python", name, text))
    except OSError:
        return sys.executable  # a machine without a place for it


def _installed(package: str) -> str | None:
    """Return the path of a package if every interpreter on this machine finds it there."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(next(iter(spec.submodule_search_locations)))
    places = [*site.getsitepackages(), site.getusersitepackages()]
    return str(place) if str(place.parent) in places else None
