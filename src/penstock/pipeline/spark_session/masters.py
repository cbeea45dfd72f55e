"""Chooses the Spark master: the first of these sources that sets one.

    1  a session that runs already
    2  the argument of `session`
    3  spark-submit, which started this program (PYSPARK_GATEWAY_PORT) and has a master already
    4  SPARK_REMOTE: Spark Connect
    5  PYSPARK_SUBMIT_ARGS (--master, --remote, --conf), then spark-defaults.conf
    6  MASTER
    7  local[*]

What is decided by 3 to 6 is left to Spark: `Chosen.given` is then None, and only its kind is known
here, for the settings that suit one machine. Defaults of ours never replace a setting that one of
these sources has (`Chosen.settings`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
CORES: Final = "PENSTOCK_CORES"
"""Plans are made in processes that see no session: this variable holds its cores."""
CONNECT: Final = "sc://"
MASTER: Final = "spark.master"
REMOTE: Final = "spark.remote"
_MASTERS: Final = ("local", "spark://", "k8s://", CONNECT)
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_FLAGS: Final = {
    "--master": MASTER,
    "--remote": REMOTE,
    "--name": "spark.app.name",
    "--deploy-mode": "spark.submit.deployMode",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--executor-memory": "spark.executor.memory",
    "--executor-cores": "spark.executor.cores",
}
_CONF: Final = ("--conf", "-c")
_PROPERTY: Final = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*)$")


class Chosen(Struct, frozen=True):
    """What was found out before a session starts."""

    master: str
    """Where Spark will run, as far as this can be known; empty under spark-submit."""
    given: str | None
    """What the session must be given; None: Spark knows it by itself."""
    settings: Mapping[str, str]
    """What the user has set outside of this program, by Spark's names."""
    java_runs: bool
    """spark-submit has started Java already: its options are fixed."""

    @property
    def is_local(self) -> bool:
        return is_local(self.master)

    @property
    def is_remote(self) -> bool:
        return self.master.startswith(CONNECT)


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def is_master(text: str) -> bool:
    """Say whether a text is the address of a master, not the name of a program."""
    return text == "yarn" or is_local(text) or text.startswith(_MASTERS[1:])


def is_connect(spark: SparkSession) -> bool:
    """Say whether a session is one of Spark Connect, which has no SparkContext."""
    return not hasattr(spark, "_jsparkSession")


def check_master(master: str) -> None:
    """Refuse what Spark would refuse with a stack trace."""
    if master != "yarn" and not master.startswith(_MASTERS):
        raise BadRequestError(
            f"unknown Spark master {master!r}: write local[*], local[2], spark://host:port, yarn, "
            "k8s://… or sc://host:port (Spark Connect)"
        )


def choose(argument: str | None, environment: Mapping[str, str] | None = None) -> Chosen:
    """Find out where Spark is to run."""
    env = os.environ if environment is None else environment
    if _GATEWAY in env:
        settings = _submitted()
        known = settings.get(MASTER, "")
        return Chosen(argument or known, argument, settings, java_runs=True)
    settings = {**_defaults_file(env), **_submit_arguments(env)}
    if argument is not None:
        return Chosen(argument, argument, settings, java_runs=False)
    remote = env.get("SPARK_REMOTE") or settings.get(REMOTE)
    if remote:
        # A local one is a Connect server that Spark starts beside this program.
        return Chosen(_remote(remote), remote, settings, java_runs=False)
    master = settings.get(MASTER) or env.get("MASTER")
    if master:
        return Chosen(master, None, settings, java_runs=False)
    return Chosen(LOCAL, LOCAL, settings, java_runs=False)


def _remote(address: str) -> str:
    return address if address.startswith(CONNECT) else f"{CONNECT}{address}"


def _submitted() -> dict[str, str]:
    """Return the settings of spark-submit, from the running JVM."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to Java: without, a SparkConf is empty
    return dict(SparkConf().getAll())


def _submit_arguments(env: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in _pairs(shlex.split(env.get("PYSPARK_SUBMIT_ARGS", ""))):
        if name in _CONF:
            key, separator, setting = value.partition("=")
            if separator:
                settings[key.strip()] = setting.strip()
        elif name in _FLAGS:
            settings[_FLAGS[name]] = value
        elif name == "--properties-file":
            settings = {**_properties(Path(value)), **settings}
    return settings


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, as `--name value` and `--name=value`."""
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if separator and name.startswith("--") and name not in _CONF:
            yield name, value
        elif index + 1 < len(words):
            yield word, words[index + 1]


def _defaults_file(env: Mapping[str, str]) -> dict[str, str]:
    directory = env.get("SPARK_CONF_DIR")
    if not directory and env.get("SPARK_HOME"):
        directory = f"{env['SPARK_HOME']}/conf"
    return {} if not directory else _properties(Path(directory, "spark-defaults.conf"))


def _properties(path: Path) -> dict[str, str]:
    """Return what a file of Spark's says: `name value`, or `name=value`, a line each."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}  # Spark itself says what is wrong with it
    settings = {}
    for line in lines:
        match = _PROPERTY.match(line)
        if match is not None:
            settings[match[1]] = match[2].strip()
    return settings
