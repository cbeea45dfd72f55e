"""Packs what executors need into an archive for `spark.archives`.

    site/penstock/…            this package with its native extension
    site/pyarrow/… numpy/…     the distributions of the list, and what they depend on

Files are those that the installed distributions name as theirs. The archive is for machines of the
same platform and the same minor version of Python; Spark itself is not in it.

    spark.archives                 env.tgz#penstock
    spark.executorEnv.PYTHONPATH   ./penstock/site
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from typing import Final

from msgspec import Struct

import penstock
from penstock.errors import BadRequestError, SetupError

NEEDED: Final = (
    "msgspec",
    "numpy",
    "prometheus-client",
    "pyarrow",
    "rocksdict",
    "grpcio",
    "protobuf",
)
WHERE_INSTALLED: Final = ("pandas", "obstore", "zstandard", "lz4", "fastavro", "confluent-kafka")
"""Put in if this program has them."""
SUFFIXES: Final = (".tgz", ".tar.gz")
SITE: Final = "site"
_OWN: Final = "penstock"
_LEFT_OUT: Final = re.compile(
    r"(^|/)(__pycache__|tests?|include)/|\.(pyc|pyi|pyx|pxd|a|h|hpp|lib)$|^\.\./"
)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Packed(Struct, frozen=True):
    path: str
    files: int
    bytes: int
    distributions: dict[str, str]
    """Names and versions of what is in it."""
    python: str
    platform: str


def package(target: str, *, more: Iterable[str] = ()) -> Packed:
    """Write the archive; `more` names further distributions that stages of yours need."""
    if not target.endswith(SUFFIXES):
        raise BadRequestError(f"{target!r} is not an archive name: it must end in .tgz")
    found = _closure((*NEEDED, *more), WHERE_INSTALLED)
    staged = f"{target}.part"
    files = 0
    with tarfile.open(staged, "w:gz", compresslevel=6) as archive:
        for name, path in _files(found):
            archive.add(path, f"{SITE}/{name}", recursive=False)
            files += 1
    os.replace(staged, target)
    versions = {each.name: each.version for each in found}
    versions[_OWN] = _own_version()
    return Packed(
        path=target,
        files=files,
        bytes=Path(target).stat().st_size,
        distributions=dict(sorted(versions.items())),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        platform=sysconfig.get_platform(),
    )


def archive_settings(path: str) -> dict[str, str]:
    """Return the settings of Spark with which executors use an archive."""
    return {
        "spark.archives": f"{path}#{_OWN}",
        "spark.executorEnv.PYTHONPATH": f"./{_OWN}/{SITE}",
    }


def _own_version() -> str:
    try:
        return distribution(_OWN).version
    except PackageNotFoundError:
        return "unknown"


def _closure(needed: Iterable[str], wanted: Iterable[str]) -> list[Distribution]:
    """Return the distributions, and those that they depend on, as far as they are installed."""
    found: dict[str, Distribution] = {}
    waiting = [(name, True) for name in needed] + [(name, False) for name in wanted]
    while waiting:
        name, is_needed = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:
            if is_needed:
                raise SetupError(
                    f"{name} is not installed here, and executors need it: pip install {name}"
                ) from None
            continue
        for text in found[key].requires or ():
            requirement, _, marker = text.partition(";")
            depends = _NAME.match(requirement)
            if depends is not None and "extra" not in marker:
                waiting.append((depends[0], False))
    return [found[key] for key in sorted(found)]


def _files(found: Iterable[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield the names below `site` and the files."""
    root = Path(penstock.__file__).parent
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root.parent))
        if path.is_file() and not _LEFT_OUT.search(name):
            yield name, path
    for file in (*_own(), *(file for each in found for file in each.files or ())):
        path = Path(str(file.locate()))
        if not _LEFT_OUT.search(str(file)) and path.is_file():
            yield str(file), path


def _own() -> list[PackagePath]:
    """Return the files that describe this package: executors compare its version with the driver's.
    Its code is taken from where it is loaded."""
    try:
        files = distribution(_OWN).files or ()
    except PackageNotFoundError:
        return []
    return [file for file in files if ".dist-info/" in str(file)]
