"""Downloads wheels for other machines than this one, by pip."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Final

from penstock.errors import BadRequestError, SetupError

TIMEOUT_S: Final = 1800
_PLATFORM: Final = re.compile(r"[a-z0-9_]+")
_MANYLINUX: Final = re.compile(r"manylinux_2_(\d+)_(\w+)")
_GLIBC_MINOR_MIN: Final = 17
"""The C library of manylinux2014, the oldest that wheels of today are built for."""
_PYTHON: Final = re.compile(r"3\.(\d+)")
_MINOR_MIN: Final = 11


def download(
    requirements: Sequence[str], directory: str, platform: str | None, python: str | None
) -> dict[str, str]:
    """Install the requirements and what they depend on into `directory`, as wheels for these
    machines; return names and versions."""
    command = _command(requirements, directory, platform, python)
    if find_spec("pip") is None:
        raise SetupError(
            f"{sys.executable} has no pip, which downloads packages for other machines: "
            "python -m ensurepip"
        )
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise SetupError(
            f"pip found no packages for {platform or 'this platform'}, Python "
            f"{python or 'of this program'}: {_reason(str(error.stderr))}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"pip did not finish within {TIMEOUT_S} s; try again") from error
    return {dist.name: dist.version for dist in distributions(path=[directory])}


def _command(
    requirements: Sequence[str], directory: str, platform: str | None, python: str | None
) -> list[str]:
    command = [sys.executable, "-m", "pip", "install", "--target", directory]
    command += ["--only-binary", ":all:", "--no-compile", "--quiet", "--disable-pip-version-check"]
    if platform is not None:
        if _PLATFORM.fullmatch(platform) is None:
            raise BadRequestError(
                f"{platform!r} is not a platform tag: write one like manylinux_2_28_aarch64"
            )
        command += [word for tag in _compatible(platform) for word in ("--platform", tag)]
    if python is not None:
        version = _PYTHON.fullmatch(python)
        if version is None or int(version[1]) < _MINOR_MIN:
            raise BadRequestError(
                f"{python!r} is not a version of Python that penstock runs on: write "
                f"3.{_MINOR_MIN} or newer"
            )
        command += ["--python-version", python, "--implementation", "cp"]
    return [*command, *requirements]


def _compatible(platform: str) -> list[str]:
    """Return the tags of wheels that run on a platform: pip does not know that a machine with a
    newer C library runs wheels that were built for an older one."""
    newest = _MANYLINUX.fullmatch(platform)
    if newest is None:
        return [platform]
    minors = range(int(newest[1]), _GLIBC_MINOR_MIN - 1, -1)
    tags = [f"manylinux_2_{minor}_{newest[2]}" for minor in minors]
    return [*tags, f"manylinux2014_{newest[2]}"] if tags else [platform]


def _reason(output: str) -> str:
    lines = output.strip().splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no reason was given"])[-1]
