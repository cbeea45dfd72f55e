"""Packs what executors need into an archive for `spark.archives`.

    site/penstock/…            this package with its native extension
    site/pyarrow/… numpy/…     the distributions of the list, and what they depend on
    bin/… lib/…                with `venv`: this interpreter and its standard library

Files are those that the installed distributions name as theirs; for another platform or another
version of Python, pip downloads them (`pip_resolution`). Spark itself is not in the archive.

    spark.archives                 env.tgz#penstock
    spark.executorEnv.PYTHONPATH   ./penstock/site
    with `venv`, instead of the second: spark.sql.execution.pyspark.python ./penstock/bin/python
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from io import BytesIO
from pathlib import Path
from typing import Final

from msgspec import Struct

import penstock
from penstock.errors import BadRequestError, SetupError
from penstock.pipeline.spark_session.interpreter_files import LAUNCHER, interpreter_files, launcher
from penstock.pipeline.spark_session.pip_resolution import download

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
WORKER_PYTHON: Final = "spark.sql.execution.pyspark.python"
"""The interpreter of the executors; without it, the one that PYSPARK_PYTHON names."""
PURE_NEEDS: Final = ("zstandard", "lz4")
"""Decompress records where the native extension is missing."""
SUFFIXES: Final = (".tgz", ".tar.gz")
SITE: Final = "site"
_OWN: Final = "penstock"
_REGISTRATION: Final = "pyspark_penstock"
_LEFT_OUT: Final = re.compile(
    r"(^|/)(__pycache__|tests?|include)/|\.(pyc|pyi|pyx|pxd|a|h|hpp|lib)$|^\.\./"
)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Packed(Struct, frozen=True):
    path: str
    files: int
    bytes: int
    distributions: dict[str, str]
    """Names and versions of the distributions in the archive."""
    python: str
    platform: str
    has_native: bool
    """False: records are encoded and decoded in pure Python there, many times slower."""


def package(
    target: str,
    *,
    more: Iterable[str] = (),
    platform: str | None = None,
    python: str | None = None,
    venv: bool = False,
) -> Packed:
    """Write the archive.

    `more` names further distributions that your stages import. With `platform` (a wheel's platform
    tag) or `python` ("3.12"), pip downloads the distributions for those machines; this package's
    own extension is left out for another platform. `venv` adds this interpreter, for machines
    without Python.
    """
    if not target.endswith(SUFFIXES):
        raise BadRequestError(f"{target!r} is not an archive name: it must end in .tgz")
    is_foreign = platform is not None or python is not None
    if venv and is_foreign:
        raise BadRequestError(
            "venv packs the interpreter of this machine: it cannot be combined with platform or "
            "python"
        )
    installed = _closure((*NEEDED, *more), WHERE_INSTALLED)
    with tempfile.TemporaryDirectory(prefix="penstock-package-") as directory:
        if is_foreign:
            has_native = platform is None and _has_native()
            names = (*NEEDED, *more, *(() if has_native else PURE_NEEDS))
            versions = download(_pinned(names, installed), directory, platform, python)
            files = [*_own_files(with_native=has_native), *_below(Path(directory))]
        else:
            has_native = _has_native()
            versions = {dist.name: dist.version for dist in installed}
            files = [*_own_files(with_native=True), *_files(installed)]
        count = _write(target, files, venv=venv)
    versions[_OWN] = _own_version()
    return Packed(
        path=target,
        files=count,
        bytes=Path(target).stat().st_size,
        distributions=dict(sorted(versions.items())),
        python=python or f"{sys.version_info[0]}.{sys.version_info[1]}",
        platform=platform or sysconfig.get_platform(),
        has_native=has_native,
    )


def _write(target: str, files: Iterable[tuple[str, Path]], *, venv: bool) -> int:
    staged = f"{target}.part"
    named = [(f"{SITE}/{name}", path) for name, path in files]
    if venv:
        named += interpreter_files()
    with tarfile.open(staged, "w:gz", compresslevel=6, dereference=True) as archive:
        for name, path in named:
            archive.add(path, name, recursive=False)
        if venv:
            script = launcher(SITE).encode()
            info = tarfile.TarInfo(LAUNCHER)
            info.size, info.mode = len(script), 0o755
            archive.addfile(info, BytesIO(script))
    os.replace(staged, target)
    return len(named) + venv


def archive_settings(path: str, *, venv: bool = False) -> dict[str, str]:
    """Return the settings of Spark with which executors use an archive."""
    settings = {"spark.archives": f"{path}#{_OWN}"}
    if venv:
        return settings | {WORKER_PYTHON: f"./{_OWN}/{LAUNCHER}"}
    return settings | {"spark.executorEnv.PYTHONPATH": f"./{_OWN}/{SITE}"}


def _own_version() -> str:
    try:
        return distribution(_OWN).version
    except PackageNotFoundError:
        return "unknown"


def _pinned(names: Iterable[str], installed: Iterable[Distribution]) -> list[str]:
    """Return requirements in the versions of this machine, as far as they are installed here."""
    versions = {_key(dist.name): dist.version for dist in installed}
    keys = sorted({_key(name) for name in names})
    return [f"{key}=={versions[key]}" if key in versions else key for key in keys]


def _key(name: str) -> str:
    """Return the normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _closure(needed: Iterable[str], optional: Iterable[str]) -> list[Distribution]:
    """Return the distributions, and those that they depend on, as far as they are installed."""
    closure: dict[str, Distribution] = {}
    waiting = [(name, True) for name in needed] + [(name, False) for name in optional]
    while waiting:
        name, is_needed = waiting.pop()
        key = _key(name)
        if key in closure:
            continue
        try:
            closure[key] = distribution(name)
        except PackageNotFoundError:
            if is_needed:
                raise SetupError(
                    f"{name} is not installed here, and executors need it: pip install {name}"
                ) from None
            continue
        for text in closure[key].requires or ():
            requirement, _, marker = text.partition(";")
            depends = _NAME.match(requirement)
            if depends is not None and "extra" not in marker:
                waiting.append((depends[0], False))
    return [closure[key] for key in sorted(closure)]


def _own_files(*, with_native: bool) -> Iterator[tuple[str, Path]]:
    """Yield this package, from where it is loaded, and what describes its version."""
    root = Path(penstock.__file__).parent
    for package_root in (root, root.with_name(_REGISTRATION)):
        for name, path in _below(package_root.parent, package_root):
            if with_native or not _is_native(path):
                yield name, path
    for file in _own():
        yield str(file), Path(str(file.locate()))


def _has_native() -> bool:
    return any(map(_is_native, Path(penstock.__file__).parent.iterdir()))


def _is_native(path: Path) -> bool:
    return path.name.startswith("_native.") and path.suffix in (".so", ".pyd")


def _below(root: Path, part: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield the files of a directory, or of a part of it, with their names relative to `root`."""
    for path in sorted((part or root).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not _LEFT_OUT.search(name):
            yield name, path


def _files(distributions: Iterable[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield the names below `site` and the files."""
    for file in (file for dist in distributions for file in dist.files or ()):
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
