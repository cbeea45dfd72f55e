"""The files of this interpreter, for an archive that machines without Python can run.

    bin/python            a script: finds the libraries next to it, and the packages of the archive
    bin/python3.11        the interpreter
    lib/python3.11/…      its standard library
    lib/libpython…        if the interpreter is linked to one

The C library and libraries like OpenSSL are the machine's own.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LAUNCHER: Final = "bin/python"
_VERSION: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_LEFT_OUT: Final = re.compile(
    r"^(site-packages|dist-packages|test|idlelib|ensurepip|lib2to3|turtledemo|tkinter|config-[^/]*)/"
    r"|(^|/)(__pycache__|tests)/|\.a$"
)
_SCRIPT: Final = """#!/bin/sh
home=$(cd "$(dirname "$0")/.." && pwd) || exit
export LD_LIBRARY_PATH="$home/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONPATH="$home/{site}${{PYTHONPATH:+:$PYTHONPATH}}"
exec "$home/bin/{version}" "$@"
"""


def launcher(site: str) -> str:
    """Return the script that runs the interpreter with the packages of the directory `site`."""
    return _SCRIPT.format(site=site, version=_VERSION)


def interpreter_files() -> Iterator[tuple[str, Path]]:
    """Yield names in the archive, and files."""
    yield f"bin/{_VERSION}", Path(sys.executable).resolve()
    library = _shared_library()
    if library is not None:
        yield f"lib/{library.name}", library
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not _LEFT_OUT.search(name):
            yield f"{sys.platlibdir}/{_VERSION}/{name}", path


def _shared_library() -> Path | None:
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return None
    directory, name = (str(sysconfig.get_config_var(key)) for key in ("LIBDIR", "INSTSONAME"))
    path = Path(directory, name)
    return path if path.is_file() else None
