"""Archives for executors: complete, for other machines, with an interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.errors import BadRequestError, SetupError
from penstock.pipeline.spark_session import packaging, pip_resolution


@pytest.fixture(autouse=True)
def few_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "NEEDED", ("msgspec", "rocksdict"))
    monkeypatch.setattr(packaging, "WHERE_INSTALLED", ("no-such-thing",))


def unpack(archive: str, directory: Path) -> None:
    subprocess.run(["tar", "xzf", archive, "-C", str(directory)], check=True, timeout=120)


def test_an_archive_holds_what_executors_need(tmp_path: Path) -> None:
    packed = packaging.package(str(tmp_path / "env.tgz"))
    assert {"penstock", "msgspec", "rocksdict"} <= {*packed.distributions}
    unpack(packed.path, tmp_path)
    code = (
        "import msgspec, penstock, penstock._native\n"
        "from penstock.pipeline.spark_session import probe\n"
        "print(penstock.__file__, probe.installed_version())"
    )
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    place, version = answer.stdout.split()
    assert place.startswith(str(tmp_path / "site"))
    assert version == packed.distributions["penstock"]
    with pytest.raises(SetupError, match="nothing-like-this is not installed here"):
        packaging.package(str(tmp_path / "env.tgz"), more=["nothing-like-this"])


def test_an_archive_brings_its_own_interpreter(tmp_path: Path) -> None:
    packed = packaging.package(str(tmp_path / "env.tgz"), venv=True)
    unpack(packed.path, tmp_path)
    code = (
        "import json, msgspec, penstock._native, ssl, sqlite3, sys\n"
        "loaded = open('/proc/self/maps').read() if sys.platform == 'linux' else ''\n"
        "library = [line.split()[-1] for line in loaded.splitlines() if 'libpython' in line]\n"
        "print(json.dumps([sys.prefix, msgspec.__file__, json.__file__, *library]))"
    )
    answer = subprocess.run(
        ["./bin/python", "-c", code],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert all(path.startswith(str(tmp_path.resolve())) for path in json.loads(answer.stdout))
    settings = packaging.archive_settings(packed.path, venv=True)
    assert settings["spark.sql.execution.pyspark.python"] == "./penstock/bin/python"


def fake_pip(monkeypatch: pytest.MonkeyPatch, directory: Path, *, fails: bool = False) -> Path:
    """Replace pip; return the file that it writes its arguments to."""
    (directory / "pip").mkdir()
    told = directory / "arguments"
    (directory / "pip" / "__main__.py").write_text(
        "import pathlib, sys\n"
        f"pathlib.Path({str(told)!r}).write_text('\\n'.join(sys.argv[1:]))\n"
        "target = pathlib.Path(sys.argv[sys.argv.index('--target') + 1])\n"
        "(target / 'msgspec').mkdir()\n"
        "(target / 'msgspec' / '__init__.py').write_text('')\n"
        + ("sys.exit('ERROR: No matching distribution found for msgspec')\n" if fails else "")
    )
    (directory / "pip" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return told


def test_an_archive_for_another_platform_has_its_wheels_and_no_extension_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = fake_pip(monkeypatch, tmp_path)
    packed = packaging.package(
        str(tmp_path / "env.tgz"), platform="manylinux_2_28_aarch64", python="3.12"
    )
    arguments = told.read_text().splitlines()
    tags = [tag for name, tag in pairwise(arguments) if name == "--platform"]
    assert (tags[0], tags[-1]) == ("manylinux_2_28_aarch64", "manylinux2014_aarch64")
    assert "manylinux_2_17_aarch64" in tags  # runs there as well, but pip does not know
    assert arguments[arguments.index("--python-version") + 1] == "3.12"
    names = [argument.partition("==")[0] for argument in arguments[-4:]]
    assert names == ["lz4", "msgspec", "rocksdict", "zstandard"]
    assert (packed.python, packed.platform) == ("3.12", "manylinux_2_28_aarch64")
    assert not packed.has_native
    (tmp_path / "out").mkdir()
    unpack(packed.path, tmp_path / "out")
    assert (tmp_path / "out/site/msgspec/__init__.py").read_text() == ""
    assert (tmp_path / "out/site/pyspark_penstock/__init__.py").exists()
    assert not [*(tmp_path / "out/site/penstock").glob("_native*.so")]


def test_the_extension_fits_every_python_of_the_same_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = fake_pip(monkeypatch, tmp_path)
    assert packaging.package(str(tmp_path / "env.tgz"), python="3.13").has_native
    assert "--platform" not in told.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"platform": "linux on arm"}, "'linux on arm' is not a platform tag"),
        ({"python": "2.7"}, "'2.7' is not a version of Python that penstock runs on"),
        ({"python": "3.10"}, "write 3.11 or newer"),
        ({"python": "3.12", "venv": True}, "cannot be combined with platform or python"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_anything_is_downloaded(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadRequestError, match=message):
        packaging.package(str(tmp_path / "env.tgz"), **options)  # type: ignore[arg-type]  # as keywords
    assert not [*tmp_path.iterdir()]


def test_what_pip_says_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_pip(monkeypatch, tmp_path, fails=True)
    with pytest.raises(
        SetupError, match=r"Python 3\.12: No matching distribution found for msgspec"
    ):
        packaging.package(str(tmp_path / "env.tgz"), python="3.12")
    monkeypatch.setattr(pip_resolution, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match="has no pip"):
        packaging.package(str(tmp_path / "env.tgz"), python="3.12")
