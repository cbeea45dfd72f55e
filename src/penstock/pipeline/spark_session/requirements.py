"""What executors need, and what they lack.

    always            penstock of this version, msgspec, numpy, prometheus_client, pyarrow,
                      rocksdict
    byte loops        penstock._native; without it pure Python does them, many times slower, and
                      compressed batches need zstandard and lz4
    `endpoint`        grpc, google.protobuf
    tier in a store   obstore

Every executor is asked, by tasks that use nothing but the standard library: at the start of a
session, and when the data source is added to one (`register`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from penstock.errors import SetupError
from penstock.pipeline.spark_session import probe
from penstock.pipeline.spark_session.masters import is_connect
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

PACKAGE: Final = "penstock"
NATIVE: Final = "penstock._native"
NEEDED: Final = (PACKAGE, "msgspec", "numpy", "prometheus_client", "pyarrow", "rocksdict")
"""Without one of these no task of ours runs."""
OPTIONAL: Final = {
    NATIVE: "byte loops run in pure Python, many times slower",
    "grpc": "the option 'endpoint' does not work",
    "google.protobuf": "the option 'endpoint' does not work",
    "obstore": "tiers in object stores cannot be read",
    "zstandard": "without penstock._native, records compressed by zstd cannot be read",
    "lz4": "without penstock._native, records compressed by lz4 cannot be read",
}
"""Modules, and what cannot be done without each."""
INSTALL: Final = (
    "pip install 'penstock[spark]' on every worker, for the Python that PYSPARK_PYTHON names, or "
    "ship an archive (penstock pipeline package)"
)
TASKS_MAX: Final = 64


class Executor(Struct, frozen=True):
    """The answer of one host."""

    host: str
    python: str
    missing: list[str]
    penstock: str | None
    sees_path: bool


_decoder: Final = msgspec.json.Decoder(Executor)


def require_executors(spark: SparkSession) -> None:
    """Raise `SetupError` when an executor lacks what every task needs; warn of the rest."""
    problems, warnings = problems_of(ask_executors(spark))
    for text in warnings:
        _log.warning("executors_lack", detail=text)
    if problems:
        raise SetupError("; ".join(problems))


def warn_of_executors(spark: SparkSession) -> None:
    """Log what executors lack."""
    try:
        problems, warnings = problems_of(ask_executors(spark))
    except SetupError as error:
        problems, warnings = [str(error)], []
    for text in (*problems, *warnings):
        _log.warning("executors_lack", detail=text)


def problems_of(answers: Iterable[Executor]) -> tuple[list[str], list[str]]:
    """Return sentences on what is wrong, and on what will not work."""
    executors = list(answers)
    problems: list[str] = []
    lacking = _hosts_by_module(executors)
    needed = [name for name in NEEDED if name in lacking]
    if needed:
        hosts = sorted({host for name in needed for host in lacking[name]})
        problems.append(
            f"the executors lack {', '.join(needed)} (on {', '.join(hosts)}): {INSTALL}"
        )
    installed = probe.installed_version()
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for executor in executors:
        if executor.python != ours:
            problems.append(
                f"the executor on {executor.host} runs Python {executor.python}, this program "
                f"{ours}: set PYSPARK_PYTHON to the interpreter of the executors"
            )
        if executor.penstock not in (None, installed):
            problems.append(
                f"the executor on {executor.host} has penstock {executor.penstock}, this program "
                f"{installed}: install the same version there"
            )
    warnings = [
        f"{name} is missing on {', '.join(sorted(lacking[name]))}: {effect}"
        for name, effect in OPTIONAL.items()
        if name in lacking and (name not in ("zstandard", "lz4") or NATIVE in lacking)
    ]
    return problems, [] if needed else warnings


def _hosts_by_module(executors: Iterable[Executor]) -> dict[str, set[str]]:
    hosts: dict[str, set[str]] = {}
    for executor in executors:
        for name in executor.missing:
            hosts.setdefault(name, set()).add(executor.host)
    return hosts


def ask_executors(
    spark: SparkSession, names: Iterable[str] = (*NEEDED, *OPTIONAL), shared: str = ""
) -> list[Executor]:
    """Ask the executors, by twice as many tasks as there are cores; return one answer for each
    host, with everything that is missing in one of its processes."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # no types
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]  # vendored code
    modules = tuple(names)
    try:
        ask = _by_rows if is_connect(spark) else _by_tasks
        answers = ask(spark, modules, shared)
    except (PySparkException, Py4JError) as error:
        raise _unable(str(error)) from error
    by_host: dict[str, Executor] = {}
    for text in answers:
        executor = _decoder.decode(text)
        before = by_host.get(executor.host, executor)
        by_host[executor.host] = Executor(
            executor.host,
            executor.python,
            sorted({*before.missing, *executor.missing}),
            before.penstock if before.penstock is not None else executor.penstock,
            before.sees_path and executor.sees_path,
        )
    return [by_host[host] for host in sorted(by_host)]


def _by_tasks(spark: SparkSession, names: tuple[str, ...], shared: str) -> list[str]:
    from py4j.protocol import Py4JJavaError

    context = spark.sparkContext
    count = min(TASKS_MAX, max(2, 2 * context.defaultParallelism))
    work = context.parallelize(range(count), count).map(probe.report_of_task(names, shared))
    try:
        return list(work.collect())
    except Py4JJavaError as error:
        raise _unable(str(error.java_exception.getMessage())) from error


def _by_rows(spark: SparkSession, names: tuple[str, ...], shared: str) -> list[str]:
    """Ask without a SparkContext: Spark Connect has none."""
    rows = spark.range(0, 2, 1, 2).mapInArrow(probe.report_rows(names, shared), "answer string")
    return [str(row[0]) for row in rows.collect()]


def _unable(reason: str) -> SetupError:
    last = (reason.strip().splitlines() or ["no reason was given"])[-1]
    return SetupError(
        "the executors do not run Python as this program does; PYSPARK_PYTHON names the one that "
        f"they are to run ({sys.version_info[0]}.{sys.version_info[1]}): {last}"
    )
