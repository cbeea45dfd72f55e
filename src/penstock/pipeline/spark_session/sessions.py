"""Starts a Spark session that reads and writes message stores.

The first source that sets a master decides where it runs (`masters`): a running session, the
argument, spark-submit, the environment, Spark's own files. Settings of the user, from any source,
take precedence over our defaults. On a local master the workers are processes of this machine and
import the same package. On other masters the executors are checked for their dependencies
(`requirements`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.errors import SetupError
from penstock.pipeline.spark_session.java import find_java
from penstock.pipeline.spark_session.launchers import write_launcher
from penstock.pipeline.spark_session.masters import (
    CORES,
    MASTER,
    Chosen,
    check_master,
    choose,
    is_connect,
    is_local,
    is_master,
)
from penstock.pipeline.spark_session.packaging import WORKER_PYTHON
from penstock.pipeline.spark_session.requirements import require_executors, warn_of_executors
from penstock.pipeline.spark_session.worker_python import worker_python
from penstock.pipeline.spark_session.worker_sockets import socket_settings
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"
CONNECT_NEEDS: Final = ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas")
_INSTALL: Final = "pip install 'penstock[spark]'"
_LOOPBACK: Final = "127.0.0.1"
SOURCE_NAME: Final = "penstock"
_REGISTERED: Final = "DATA_SOURCE_ALREADY_EXISTS"
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
    master: str | None = None,
    *,
    quiet: bool = False,
    **conf: str | float | bool,
) -> SparkSession:
    """Return a Spark session with the data source `penstock`.

    Without `master`, Spark runs where spark-submit, SPARK_REMOTE, PYSPARK_SUBMIT_ARGS,
    spark-defaults.conf or MASTER say, else on this machine. `sc://host:port` is Spark Connect. The
    address of a master may stand alone: `session("sc://host:15002")`.

    Settings are Spark's own, by name (`**{"spark.executor.memory": "2g"}`) or without their prefix
    and with underscores for dots (`executor_memory="2g"`). A session that runs already is returned
    as it is, with the data source added. With `quiet`, a Spark that is started logs nothing.
    """
    _check_packages()
    if master is None and is_master(app_name):
        app_name, master = "penstock", app_name
    if master is not None:
        check_master(master)
    given = {_setting(name): value for name, value in conf.items()}
    running = _running()
    if running is not None:
        return register(_changed(running, master, given))
    chosen = choose(master)
    if chosen.is_remote:
        return register(_connect(app_name, chosen, given))
    spark = _classic(app_name, chosen, given, quiet=quiet)
    _registered(spark)  # with the interpreter of the driver, which plans
    workers = spark.conf.get(WORKER_PYTHON, None)
    if workers is not None:
        spark.sparkContext.pythonExec = workers  # of tasks without SQL, too
    if not is_local(_master_of(spark)):
        try:
            require_executors(spark)
        except SetupError:
            spark.stop()
            raise
    return spark


def _classic(
    app_name: str, chosen: Chosen, given: Mapping[str, str | float | bool], *, quiet: bool
) -> SparkSession:
    """Start a session whose driver is this program."""
    if not chosen.java_runs:
        home = find_java(quiet=quiet)
        if home is not None:
            os.environ["JAVA_HOME"] = home
    from pyspark.sql import SparkSession

    settings = {
        name: _as_text(value) for name, value in _settings(chosen, given, quiet=quiet).items()
    }
    if "spark.app.name" not in chosen.settings or app_name != "penstock":
        settings["spark.app.name"] = app_name
    if chosen.given is not None:
        settings[MASTER] = chosen.given
    if not chosen.java_runs:
        _launch_java(settings, chosen)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return _start(builder, chosen)


def _launch_java(settings: Mapping[str, str], chosen: Chosen) -> None:
    """Start Java in a session of processes of its own: a signal to this program's group ends this
    program, which then ends Java and its workers in order. Java ends with this program in any case:
    it sees the end of its input."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    try:
        own = {"start_new_session": True}
        gateway = launch_gateway(conf, own)  # type: ignore[no-untyped-call]  # no types
    except PySparkException as error:
        raise _not_started(chosen, str(error)) from error
    SparkContext._ensure_initialized(gateway=gateway)


def register(spark: SparkSession) -> SparkSession:
    """Add the data source `penstock` to a session that was started elsewhere; return it. What its
    executors lack is logged as a warning."""
    _registered(spark)
    if not is_local(_master_of(spark)):
        warn_of_executors(spark)
    return spark


def _registered(spark: SparkSession) -> SparkSession:
    from pyspark.errors import PySparkException

    from penstock.pipeline.source import PenstockDataSource

    if spark.conf.get(PUSH_DOWN, "false") != "true":
        _set(spark, PUSH_DOWN, "true")
    if _is_registered(spark):
        return spark
    try:
        spark.dataSource.register(PenstockDataSource)
    except PySparkException as error:
        if error.getCondition() != _REGISTERED:
            raise
    return spark


def _is_registered(spark: SparkSession) -> bool:
    """Say whether `pyspark_penstock` has registered the source, for all sessions, with the
    interpreter of this one. Spark warns when a session registers it again."""
    if is_connect(spark):
        return False
    assert spark._jvm is not None, "a session that runs has a JVM"
    environment = spark._jvm.java.lang.System.getenv
    # As Spark chooses the interpreter of a source that it registers by itself.
    chosen = environment("PYSPARK_DRIVER_PYTHON") or environment("PYSPARK_PYTHON") or "python3"
    if chosen != spark.sparkContext.pythonExec:
        return False
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return bool(sources.dataSourceExists(SOURCE_NAME))


def _set(spark: SparkSession, name: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        spark.conf.set(name, value)
    except PySparkException as error:
        # A declarative pipeline rejects changes: its own settings name the value then.
        _log.warning("setting_refused", setting=name, reason=str(error).split("\n")[0])


def _master_of(spark: SparkSession) -> str:
    """Return where a session runs; empty where a Connect server does not tell."""
    return str(spark.conf.get(MASTER, "") or "")


def _running() -> SparkSession | None:
    """Return the session of this program, if it has one that runs."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        active = SparkSession.getActiveSession()
    except PySparkException:
        return None  # it was stopped
    # A thread that has none of its own takes the one that the program has.
    shared = SparkSession._instantiatedSession
    if active is None and shared is not None and shared._sc._jsc is not None:
        return shared
    return active


def _changed(
    spark: SparkSession, master: str | None, given: Mapping[str, str | float | bool]
) -> SparkSession:
    """Return a running session with those of the settings that can still be changed."""
    there = _master_of(spark)
    if master is not None and there and master != there:
        _log.warning("session_runs_already", master=there, wanted=master)
    for name, value in given.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, _as_text(value))
        elif spark.conf.get(name, None) != _as_text(value):
            _log.warning("setting_without_effect", setting=name, reason="the session runs already")
    return spark


def _connect(
    app_name: str, chosen: Chosen, given: Mapping[str, str | float | bool]
) -> SparkSession:
    """Open a session of Spark Connect."""
    missing = [name for name in CONNECT_NEEDS if not _is_installed(name)]
    if missing:
        raise SetupError(
            f"Spark Connect needs {', '.join(missing)}: pip install 'penstock[spark,connect]'"
        )
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if chosen.given is not None:
        builder = builder.remote(chosen.given)
    for name, value in given.items():
        builder = builder.config(name, _as_text(value))
    return _start(builder, chosen)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # the package that it is part of is missing


def _settings(
    chosen: Chosen, given: Mapping[str, str | float | bool], *, quiet: bool
) -> dict[str, str | float | bool]:
    """Return the settings of the session: our defaults only where the user has set nothing."""
    ours = _defaults(chosen.master)
    if chosen.is_local and not chosen.java_runs:
        ours |= _local_workers() | {_JAVA_OPTIONS: _java_options()}
        os.environ[CORES] = str(_cores(chosen.master))
    settings = {name: value for name, value in ours.items() if name not in chosen.settings}
    settings |= given
    cluster_cores = str({**chosen.settings, **settings}.get("spark.cores.max", ""))
    if not chosen.is_local and cluster_cores.isdigit():
        os.environ[CORES] = cluster_cores
    if quiet and not chosen.java_runs:
        before = settings.get(_JAVA_OPTIONS, chosen.settings.get(_JAVA_OPTIONS, ""))
        options = f"{before} -Dlog4j2.configurationFile={_quiet_logs()}"
        settings[_JAVA_OPTIONS] = options.strip()
    return settings


def _start(builder: SparkSession.Builder, chosen: Chosen) -> SparkSession:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # no types
    from pyspark.errors import PySparkException

    # An argument wins over SPARK_REMOTE, and Spark takes no two addresses.
    remote = None if chosen.is_remote else os.environ.pop("SPARK_REMOTE", None)
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        raise _not_started(chosen, str(error.java_exception.getMessage())) from error
    except (PySparkException, Py4JError) as error:
        raise _not_started(chosen, str(error) or type(error).__name__) from error
    finally:
        if remote is not None:
            os.environ["SPARK_REMOTE"] = remote


def _not_started(chosen: Chosen, reason: str) -> SetupError:
    hint = "" if chosen.is_local else "; is there one, and can it be reached from here?"
    first = reason.strip().partition("\n")[0]
    return SetupError(f"Spark did not start at the master {chosen.master!r}: {first}{hint}")


def _local_workers() -> dict[str, str]:
    """Return the Spark settings of workers on this machine."""
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
    if not is_local(master):
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
    }


def _java_options() -> str:
    """How the JVM of a local session runs, unless the user says otherwise.

    Rows are short-lived: a collector without barriers is cheaper. Spark asks whether a cell is
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


def _cores(master: str) -> int:
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return max(1, int(inside))
    return os.cpu_count() or 1 if inside == "*" else 1


def _setting(name: str) -> str:
    return name if "." in name else f"spark.{name.replace('_', '.')}"


def _as_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
