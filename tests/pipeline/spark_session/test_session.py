"""What is missing is said in one sentence, before Java says it in a hundred."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pyspark
import pytest
from msgspec.structs import replace
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.errors import BadRequestError, SetupError
from penstock.pipeline.source import PenstockDataSource
from penstock.pipeline.spark_session import java, masters, requirements, sessions
from penstock.pipeline.spark_session.launchers import write_launcher
from penstock.pipeline.spark_session.worker_python import worker_python


def fake_java(path: Path, answer: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_java")
def test_without_java_the_message_says_what_to_do() -> None:
    with pytest.raises(SetupError, match="Spark needs Java 17 or newer, but none was found"):
        java.find_java()


@pytest.mark.usefixtures("no_java")
def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "bin" / "java", "echo 'openjdk version \"1.8.0_292\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="found Java 8, Spark needs 17"):
        java.find_java()


@pytest.mark.usefixtures("no_java")
def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SetupError, match=r"JAVA_HOME is .*nothing, but .* does not run"):
        java.find_java()


def test_the_stand_in_drops_only_the_argument_that_the_runtime_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = fake_java(tmp_path / "a dir" / "java", 'printf "[%s]" "$@"')
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = java._wrap(real)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "", "a b", "$x"]
    answer = subprocess.run(
        [str(Path(home, "bin", "java")), *arguments], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[-Xmx1g][][a b][$x]"


def test_without_pyspark_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"needs pyspark, pyarrow, pandas: pip install 'penstock"):
        sessions.session()


def test_a_master_that_is_none_is_refused_before_java_starts() -> None:
    for master in ("foo", "", "spark:/host", "yarn2"):
        with pytest.raises(BadRequestError, match=f"unknown Spark master {master!r}"):
            sessions.session("x", master)


class NoSession:
    """A builder for a Spark that does not start."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def getOrCreate(self) -> SparkSession:  # noqa: N802 - a name of Spark's
        raise self._error


@pytest.mark.parametrize(
    ("master", "error", "sentence"),
    [
        (
            "spark://127.0.0.1:1",
            PySparkRuntimeError("Cannot call methods on a stopped SparkContext.\n\tat org.apache"),
            "stopped SparkContext.; is there one, and can it be reached from here?",
        ),
        (
            "local[x]",
            Py4JError(""),
            "Spark did not start at the master 'local[x]': Py4JError",
        ),
    ],
)
def test_a_spark_that_does_not_start_says_why_in_a_sentence(
    master: str, error: Exception, sentence: str
) -> None:
    chosen = masters.choose(master)
    with pytest.raises(SetupError) as caught:
        sessions._start(NoSession(error), chosen)  # type: ignore[arg-type]  # it has what is used
    assert str(caught.value).endswith(sentence)
    assert "\n" not in str(caught.value)


def test_settings_have_sane_defaults_and_short_names(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get(sessions.PUSH_DOWN) == "true"
    assert sessions._setting("executor_memory") == "spark.executor.memory"
    assert sessions._setting("spark.a.b") == "spark.a.b"
    assert sessions._cores("local") == 1
    assert sessions._cores("local[*]") == os.cpu_count()


def test_the_source_is_there_in_a_session_that_registered_nothing(
    spark: SparkSession, spark_store: Path
) -> None:
    other = spark.newSession()
    assert other.read.format("penstock").load(str(spark_store)).count() == 10_000
    narrow = other.read.format("penstock").schema("key binary, timestamp timestamp")
    assert narrow.load(str(spark_store)).where("key = cast('key 7' as binary)").count() == 100
    other.sql(f"create temporary view numbers using penstock options (path '{spark_store}')")
    assert other.sql("select max(offset) from numbers").collect()[0][0] == 9_999
    sessions.register(other)  # changes nothing, and is not an error


def test_a_spark_without_our_requirements_keeps_its_other_sources(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['penstock.pipeline.source'] = None\n"
        "import pyspark_penstock\n"
        "print(hasattr(pyspark_penstock, 'DefaultSource'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stdout == "False\n"


def test_what_the_executors_lack_is_found_out_before_a_job_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = "no_such_package", "penstock", "no_such.either"
    (found,) = requirements.ask_executors(spark, wanted, str(tmp_path / "nothing"))
    assert found.missing == ["no_such.either", "no_such_package"]
    assert (found.penstock, found.sees_path) == (version("penstock"), False)
    assert requirements.problems_of(requirements.ask_executors(spark)) == ([], [])
    monkeypatch.setattr(requirements, "NEEDED", ("msgspec", "no_such_package"))
    monkeypatch.setattr(
        requirements, "ask_executors", lambda _: [replace(found, missing=["no_such_package"])]
    )
    with pytest.raises(SetupError, match=r"the executors lack no_such_package \(on .*pip install"):
        requirements.require_executors(spark)
    requirements.warn_of_executors(spark)  # logs, and goes on


def test_an_executor_of_another_version_is_named() -> None:
    lacks = ["penstock._native", "lz4", "grpc"]
    old = requirements.Executor("one", "3.9", lacks, "0.0.1", sees_path=True)
    problems, warnings = requirements.problems_of([old])
    assert "runs Python 3.9" in problems[0]
    assert "has penstock 0.0.1" in problems[1]
    assert [text.split()[0] for text in warnings] == ["penstock._native", "grpc", "lz4"]


def test_workers_run_this_interpreter_without_zips_of_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def look(_: int) -> tuple[str, str, list[str]]:
        import pyspark

        return sys.executable, pyspark.__file__, sys.path

    ((python, package, path),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert Path(python).resolve() == Path(sys.executable).resolve()
    assert package == pyspark.__file__
    assert not [place for place in path if "pyspark.zip" in place or place.endswith(".jar")]
    # What others put on the path stays there.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = Path(pyspark.__file__).parent
    zips = f"{home}/python/lib/pyspark.zip", f"{home}/jars/spark.jar"
    answer = subprocess.run(
        [worker_python(), "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((*zips, "/a b/*", *zips, "/c"))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "/a b/*:/c\n"


def loaded_by_the_daemon(
    directory: Path, *words: str, broken: str | None = None
) -> dict[str, list[str]]:
    """Run the start of a daemon as Spark does; return what it has before it would fork. The module
    `broken` cannot be loaded there."""
    (directory / "pyspark_daemon_stub.py").write_text(
        "import json, os, sys\n"
        "from pyspark import daemon\n"
        "def manager():\n"
        "    threads = os.listdir('/proc/self/task') if sys.platform == 'linux' else ['main']\n"
        "    print(json.dumps({'modules': [*sys.modules], 'threads': threads}))\n"
        "daemon.manager = manager\n" + (f"sys.modules[{broken!r}] = None\n" if broken else "")
    )
    (directory / "sitecustomize.py").write_text("import pyspark_daemon_stub\n")
    path = os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", "")))
    answer = subprocess.run(
        [worker_python(), "-m", "pyspark.daemon", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, list[str]] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("worker", ["pyspark.worker", "pyspark.sql.worker.plan_data_source_read"])
def test_a_daemon_loads_what_workers_need_and_starts_no_thread(tmp_path: Path, worker: str) -> None:
    found = loaded_by_the_daemon(tmp_path, worker)
    assert {worker, "pyarrow.compute", "penstock.pipeline.source"} <= {*found["modules"]}
    assert len(found["threads"]) == 1  # it is forked: what a thread held would be held for ever
    assert "grpc" not in found["modules"]


def test_where_our_daemon_cannot_be_loaded_it_is_sparks_own(tmp_path: Path) -> None:
    broken = "penstock.pipeline.spark_session.worker_daemon"
    found = loaded_by_the_daemon(tmp_path, "pyspark.worker", broken=broken)
    assert "pyspark.daemon" in found["modules"]
    assert "pyarrow" not in found["modules"]


def test_where_the_package_cannot_be_loaded_the_worker_says_so_not_the_daemon(
    tmp_path: Path,
) -> None:
    found = loaded_by_the_daemon(tmp_path, "pyspark.worker", broken="penstock.pipeline.sink")
    assert "penstock.pipeline.source" in found["modules"]
    assert "penstock.pipeline.jobs.spark_work" not in found["modules"]


def test_workers_draw_numbers_of_their_own(spark: SparkSession) -> None:
    def draw(_: object) -> list[tuple[int, float]]:
        import numpy as np

        time.sleep(1)  # so that one worker does not do both
        return [(os.getpid(), float(np.random.rand()))]

    found = spark.sparkContext.parallelize([0, 1], 2).mapPartitions(draw).collect()
    assert len({number for _, number in found}) == 2


def test_java_is_told_how_to_collect_unless_it_was_told_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert "-XX:+UseParallelGC" in sessions._java_options()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xss2m -XX:+UseZGC")
    assert "GC" not in sessions._java_options()


def test_a_spark_without_streams_of_this_kind_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # What loading the stream's module comes to on PySpark 4.1.
    monkeypatch.setitem(sys.modules, "penstock.pipeline.stream_source", None)
    source = PenstockDataSource({"path": "data"})
    with pytest.raises(SetupError, match=r"streams need PySpark 4\.2 or newer"):
        source.streamReader(StructType())


def test_another_spark_brings_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_python() == sys.executable


def test_a_script_is_never_put_where_another_user_can_change_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"penstock-tool-{os.getuid()}"
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)
    script = write_launcher("penstock-tool", "tool", "#!/bin/sh\necho ran\n")
    assert taken not in script.parents
    assert subprocess.run([str(script)], capture_output=True, check=True).stdout == b"ran\n"


@pytest.mark.spark
def test_a_worker_leaves_what_it_has_loaded_out_of_its_collections(spark: SparkSession) -> None:
    def freeze_twice(_: int) -> list[int]:
        import gc

        from penstock.pipeline.spark_session.worker_gc import freeze_loaded_objects

        counts = []
        for _ in range(2):
            freeze_loaded_objects()
            counts.append(gc.get_freeze_count())
        return counts

    first, second = spark.sparkContext.parallelize([0], 1).map(freeze_twice).collect()[0]
    assert first > 10_000
    assert second == first


def test_a_program_of_its_own_collects_as_it_always_did() -> None:
    code = (
        "import gc; from penstock.pipeline.spark_session.worker_gc import freeze_loaded_objects; "
        "freeze_loaded_objects(); "
        "print(gc.get_freeze_count())"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(asked.stdout) == 0
