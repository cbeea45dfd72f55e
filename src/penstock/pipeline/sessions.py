"""Starts a Spark session that reads and writes message stores.

On a local master the workers are processes of this machine and import the same package. On any
other master the executors must have it: when they do not, the package is shipped as a zip, which
runs on the pure twins (an extension cannot be loaded from a zip), and a warning says so; when they
lack pyarrow or msgspec, too, `SetupError` says what to install there.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequestError, SetupError
from penstock.log import get_logger
from penstock.pipeline.java import find_java
from penstock.pipeline.launchers import write_launcher
from penstock.pipeline.worker_python import worker_python
from penstock.pipeline.worker_sockets import socket_settings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"
NEEDED: Final = ("msgspec", "pyarrow", "numpy", "prometheus_client")
"""What executors need besides the package itself."""
_PACKAGE: Final = "penstock"
_INSTALL: Final = "pip install 'penstock[spark]'"
_LOOPBACK: Final = "127.0.0.1"
_MASTERS: Final = ("local", "spark://", "k8s://")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUIET: Final = """status = off
appender.none.type = Null
appender.none.name = none
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
logger.start.name = org.apache.spark.api.python.PythonGatewayServer
logger.start.level = off
"""
"""Where the log's level is not that of the class that Java starts with, Spark says so."""
_JAVA_VARIABLES: Final = "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_ARROW_UNCHECKED: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)


def session(
    app_name: str = "penstock",
    master: str = "local[*]",
    *,
    quiet: bool = False,
    **conf: str | float | bool,
) -> SparkSession:
    """Return a Spark session with the data source `penstock`.

    Settings are Spark's own, by name (`**{"spark.executor.memory": "2g"}`) or without their prefix
    and with underscores for dots (`executor_memory="2g"`). A session that runs already is returned
    as it is, with the data source added. With `quiet`, a Spark that is started logs nothing.
    """
    _check_packages()
    _check_master(master)
    home = find_java(quiet=quiet)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    from pyspark.sql import SparkSession

    local = _is_local(master)
    settings = _defaults(master)
    if local:
        settings |= _local_workers()
    settings |= {_setting(name): value for name, value in conf.items()}
    if quiet:
        options = f"{settings.get(_JAVA_OPTIONS, '')} -Dlog4j2.configurationFile={_quiet_logs()}"
        settings[_JAVA_OPTIONS] = options.strip()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, _as_text(value))
    spark = _start(builder, master)
    if not local:
        try:
            ship(spark.sparkContext)
        except SetupError:
            spark.stop()
            raise
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Add the data source `penstock` to a session that was started elsewhere; return it."""
    from penstock.pipeline.source import PenstockDataSource

    spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(PenstockDataSource)
    return spark


def _check_master(master: str) -> None:
    """Refuse what Spark would refuse with a stack trace."""
    if master != "yarn" and not master.startswith(_MASTERS):
        raise BadRequestError(
            f"there is no master {master!r}: local[*], local[2], spark://host:port, yarn or k8s://…"
        )


def _start(builder: SparkSession.Builder, master: str) -> SparkSession:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # no types
    from pyspark.errors import PySparkException

    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        raise _not_started(master, str(error.java_exception.getMessage())) from error
    except (PySparkException, Py4JError) as error:
        raise _not_started(master, str(error) or type(error).__name__) from error


def _not_started(master: str, reason: str) -> SetupError:
    hint = "" if _is_local(master) else "; is there one, and can it be reached from here?"
    first = reason.strip().partition("\n")[0]
    return SetupError(f"Spark did not start at the master {master!r}: {first}{hint}")


def _local_workers() -> dict[str, str]:
    """Say how workers run on this machine; return what Spark is to be told of it."""
    # Otherwise Spark looks up the machine's own name, which need not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # Workers run this very interpreter, not whichever `python3` comes first.
    ours = worker_python()
    chosen = os.environ.setdefault("PYSPARK_PYTHON", ours)
    # Spark's own daemon shows a traceback for every worker that ends while its socket is closed.
    return socket_settings() if chosen == ours != sys.executable else {}


def _check_packages() -> None:
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise SetupError(f"the pipeline needs {', '.join(missing)}: {_INSTALL}")


def _defaults(master: str) -> dict[str, str | float | bool]:
    shared: dict[str, str | float | bool] = {
        PUSH_DOWN: True,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": True,
        "spark.sql.streaming.stopTimeout": "60s",
    }
    if not _is_local(master):
        return shared
    cores = _cores(master)
    return {
        **shared,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.sql.shuffle.partitions": cores,
        "spark.default.parallelism": cores,
        _JAVA_OPTIONS: _java_options(),
    }


def _java_options() -> str:
    """How the JVM of a local session runs, unless the user says otherwise.

    Rows live for moments: a collector without barriers is cheaper. Spark asks whether a cell is
    null before it takes it, and its vectors are as long as they say; that Arrow checks both again,
    for each cell, is a tenth of what a read costs there.
    """
    chosen = " ".join(os.environ.get(name, "") for name in _JAVA_VARIABLES)
    options = [_ARROW_UNCHECKED]
    if not _COLLECTOR.search(chosen):
        options.insert(0, "-XX:+UseParallelGC")
    return " ".join(options)


def _quiet_logs() -> str:
    """Return the address of a file by which Java's log says nothing, not even when it starts."""
    return write_launcher("penstock-java", "quiet-log4j2.properties", _QUIET).as_uri()


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _cores(master: str) -> int:
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return max(1, int(inside))
    return os.cpu_count() or 1 if inside == "*" else 1


def _setting(name: str) -> str:
    return name if "." in name else f"spark.{name.replace('_', '.')}"


def _as_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def ship(context: SparkContext) -> None:
    """Make sure that the executors have the package; ship it when they do not."""
    from pyspark import SparkFiles

    missing = missing_on_executors(context, (_PACKAGE, *NEEDED))
    if _PACKAGE in missing:
        # Spark serves the file from where it lies, and removes this directory when it stops.
        directory = tempfile.mkdtemp(dir=SparkFiles.getRootDirectory())
        context.addPyFile(str(_zip_package(Path(directory))))
        _log.warning("package_shipped", reason="not installed on the executors", twins="pure")
        missing.remove(_PACKAGE)
    if missing:
        raise SetupError(
            f"the executors lack {', '.join(missing)}: {_INSTALL} on every worker, for the Python "
            "that PYSPARK_PYTHON names"
        )


def missing_on_executors(context: SparkContext, names: Sequence[str]) -> list[str]:
    """Return which of these packages an executor does not find."""
    from py4j.protocol import Py4JJavaError

    # Functions of the standard library only: nothing of ours can be loaded there yet. Every task
    # looks for all of them.
    count = max(2, context.defaultParallelism)
    work = context.parallelize([*names] * count, count).map(find_spec).map(bool)
    try:
        found = work.collect()
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage()).strip().splitlines()[-1]
        raise SetupError(
            "the executors do not run Python as this program does; PYSPARK_PYTHON names the one "
            f"that they are to run ({sys.version_info[0]}.{sys.version_info[1]}): {reason}"
        ) from error
    return [name for at, name in enumerate(names) if not all(found[at :: len(names)])]


def _zip_package(directory: Path) -> Path:
    root = Path(__file__).parents[1]
    target = directory / "penstock.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, path.relative_to(root.parent))
    return target
