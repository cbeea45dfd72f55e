"""Where Spark runs is decided by the first source that speaks; settings of users win over ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.pipeline.spark_cluster import spark_submit

from penstock.errors import SetupError
from penstock.pipeline.spark_session import masters, sessions

CLUSTER = "spark://host:7077"


def environment(tmp_path: Path, defaults: str = "", **more: str) -> dict[str, str]:
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    return {"SPARK_CONF_DIR": str(tmp_path), **more}


@pytest.mark.parametrize(
    ("argument", "more", "defaults", "master", "given"),
    [
        (None, {}, "", "local[*]", "local[*]"),
        ("local[2]", {"SPARK_REMOTE": "sc://a"}, "", "local[2]", "local[2]"),
        (None, {"MASTER": CLUSTER}, "", CLUSTER, None),
        (None, {"MASTER": "yarn"}, f"# x\nspark.master  {CLUSTER}\n", CLUSTER, None),
        (
            None,
            {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"},
            "spark.master=x",
            "yarn",
            None,
        ),
        (None, {"PYSPARK_SUBMIT_ARGS": "--conf spark.master=yarn x"}, "", "yarn", None),
        (None, {"PYSPARK_SUBMIT_ARGS": "--master=yarn x"}, "", "yarn", None),
        (None, {"SPARK_REMOTE": "sc://a:1", "MASTER": "yarn"}, "", "sc://a:1", "sc://a:1"),
        (None, {"PYSPARK_SUBMIT_ARGS": "--remote sc://a:1 x"}, "", "sc://a:1", "sc://a:1"),
        ("sc://b", {"SPARK_REMOTE": "sc://a"}, "", "sc://b", "sc://b"),
    ],
)
def test_the_first_source_that_speaks_decides(
    tmp_path: Path,
    argument: str | None,
    more: dict[str, str],
    defaults: str,
    master: str,
    given: str | None,
) -> None:
    found = masters.choose(argument, environment(tmp_path, defaults, **more))
    assert (found.master, found.given) == (master, given)


def test_settings_of_the_user_win_over_ours(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        "spark.sql.session.timeZone: Asia/Tokyo\n! no\nspark.ui.enabled=true\n",
        PYSPARK_SUBMIT_ARGS="--driver-memory 3g --driver-java-options '-Xss2m -Da=b' x",
    )
    chosen = masters.choose(None, env)
    assert chosen.settings["spark.driver.memory"] == "3g"
    found = sessions._settings(chosen, {}, quiet=False)
    assert "spark.sql.session.timeZone" not in found
    assert "spark.ui.enabled" not in found
    assert "spark.driver.extraJavaOptions" not in found
    assert found["spark.sql.streaming.stopTimeout"] == "60s"
    quiet = sessions._settings(chosen, {}, quiet=True)
    assert str(quiet["spark.driver.extraJavaOptions"]).startswith("-Xss2m -Da=b -Dlog4j2")


def test_a_cluster_gets_no_settings_of_one_machine(tmp_path: Path) -> None:
    chosen = masters.choose(None, environment(tmp_path, MASTER=CLUSTER))
    assert not [name for name in sessions._settings(chosen, {}, quiet=False) if "driver" in name]


def test_connect_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CONNECT_NEEDS", ("no_such.package",))
    monkeypatch.setattr(sessions, "_running", lambda: None)
    with pytest.raises(
        SetupError, match=r"needs no_such.package: pip install 'penstock\[spark,con"
    ):
        sessions.session("sc://127.0.0.1:1")


def test_spark_submit_decides_where_a_session_runs(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "import json, os\n"
        "from penstock import pipeline\n"
        "spark = pipeline.session()\n"
        "names = 'spark.master', 'spark.app.name', 'spark.sql.session.timeZone'\n"
        "print(json.dumps([spark.conf.get(name) for name in names]))\n"
        "again = pipeline.session('other', 'local[4]', sql_shuffle_partitions=7)\n"
        "same = again.sparkContext is spark.sparkContext\n"
        "print(same, spark.conf.get('spark.sql.shuffle.partitions'))\n"
        "spark.stop()\n"
    )
    flags = (
        "--master",
        "local[3]",
        "--name",
        "mine",
        "--conf",
        "spark.sql.session.timeZone=Asia/Tokyo",
    )
    answer = spark_submit(program, *flags)
    first, second = answer.stdout.splitlines()[-2:]
    assert json.loads(first) == ["local[3]", "mine", "Asia/Tokyo"]
    assert second == "True 7"
