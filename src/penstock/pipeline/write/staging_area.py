"""Where staged files and the journal of a sink are: a directory, or an object store by its URL.

    /shared/staging, file:///shared/staging                a directory that all machines share
    s3://…  s3a://…  gs://…  az://…  abfss://…             objects (extra `s3`)

Credentials of object stores come from the environment, on the driver and on the executors.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit

from penstock.errors import AlreadyExistsError, BadRequestError, LockedError, StaleWriteError

if TYPE_CHECKING:
    from penstock.tiered.providers import TierProvider

RUN_PREFIX: Final = "run-"


class Area(Protocol):
    """The files of one sink, by names like `open.json` and `run-1/task-0.arrow`."""

    root: str

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, data: bytes, *, anew: bool = False) -> None:
        """Put a file in place, whole and durable. `anew`: `LockedError` when another publisher of
        this sink has just put one there, as far as this can be known."""
        ...

    def remove(self, name: str) -> None: ...

    def run_files(self) -> list[str]:
        """Return the paths of all files that tasks staged."""
        ...

    def put_file(self, staged: str, name: str) -> str:
        """Take a file over from this machine; return its path."""
        ...

    def drop(self, path: str) -> None:
        """Remove a staged file by its path, and what is empty then."""
        ...

    def exists(self, path: str) -> bool: ...

    def local(self, path: str) -> AbstractContextManager[str]:
        """Return a staged file as one of this machine, for the length of a `with` block."""
        ...


def is_remote(place: str) -> bool:
    """Say whether a place is not a path of this machine."""
    return bool(urlsplit(place).scheme) and urlsplit(place).scheme.lower() != "file"


def local_path(place: str) -> str:
    """Return the path of a place on this machine: `file:/a`, `file:///a` and `/a` are the same."""
    parts = urlsplit(place)
    return unquote(parts.path) if parts.scheme.lower() == "file" else place


def check_place(place: str, option: str) -> str:
    """Return a place that files can be staged in."""
    if not is_remote(place):
        return local_path(place).rstrip("/") or "/"
    from penstock.tiered.providers import OBJECT_STORES

    scheme = urlsplit(place).scheme.lower()
    if scheme not in OBJECT_STORES:
        raise BadRequestError(
            f"{option} is {place!r}: rows cannot be staged in {scheme}://; set the option "
            f"'stagingPath' to a directory shared by all machines, or to an object store "
            f"({', '.join(sorted(OBJECT_STORES))})"
        )
    return place.rstrip("/")


def open_area(root: str) -> Area:
    return ObjectArea(root) if is_remote(root) else DirectoryArea(Path(root))


class DirectoryArea:
    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self.root = str(directory)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(
        self,
        name: str,
        data: bytes,
        *,
        anew: bool = False,  # noqa: ARG002 - the publisher holds a lock: the store's, or its own
    ) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        staged = self._directory / f"{name}.tmp"
        with staged.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self._directory / name)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def run_files(self) -> list[str]:
        return [str(path) for path in sorted(self._directory.glob(f"{RUN_PREFIX}*/*"))]

    def put_file(self, staged: str, name: str) -> str:
        place = self._directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(staged) != place:
            os.replace(staged, place)
        return str(place)

    def drop(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)
        try:
            Path(path).parent.rmdir()
        except OSError:
            return  # holds files that a journal still names

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    @contextmanager
    def local(self, path: str) -> Iterator[str]:
        yield path


class ObjectArea:
    """Objects below a URL; a path is the URL of an object."""

    def __init__(self, url: str) -> None:
        self.root = url
        self._provider: TierProvider | None = None

    def _open(self) -> TierProvider:
        if self._provider is None:
            from penstock.tiered.providers import open_provider

            self._provider = open_provider(self.root)
        return self._provider

    def __getstate__(self) -> dict[str, object]:
        return {"root": self.root, "_provider": None}

    def read(self, name: str) -> bytes | None:
        from penstock.tiered.providers import ObjectMissingError

        try:
            return self._open().get(name).data
        except ObjectMissingError:
            return None

    def write(self, name: str, data: bytes, *, anew: bool = False) -> None:
        from penstock.tiered.providers import ObjectMissingError

        try:
            version = None if anew else self._open().get(name).version
        except ObjectMissingError:
            version = None
        try:
            self._open().compare_and_set(name, data, version)
        except (StaleWriteError, AlreadyExistsError) as error:
            raise LockedError(
                f"another driver publishes batches of this sink: {self.root}/{name} has changed"
            ) from error

    def remove(self, name: str) -> None:
        self._open().delete(name)

    def run_files(self) -> list[str]:
        return [f"{self.root}/{info.key}" for info in self._open().list(RUN_PREFIX)]

    def put_file(self, staged: str, name: str) -> str:
        self._open().put_if_absent(name, Path(staged).read_bytes())
        return f"{self.root}/{name}"

    def drop(self, path: str) -> None:
        self._open().delete(self._key(path))

    def exists(self, path: str) -> bool:
        return self._open().head(self._key(path)) is not None

    @contextmanager
    def local(self, path: str) -> Iterator[str]:
        with tempfile.NamedTemporaryFile(prefix="penstock-staged-") as file:
            file.write(self._open().get(self._key(path)).data)
            file.flush()
            yield file.name

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/")
