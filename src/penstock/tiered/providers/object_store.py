"""`s3://`, `gs://` and `az://`: object stores, through obstore.

Credentials and endpoints come from the usual places (environment, profiles, instance roles) or from
the options given with the URL. One request may take `timeout_s` with all its repeats in obstore;
`retrying.py` finds out what a lost response means, for every provider.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from penstock.errors import (
    AlreadyExistsError,
    SetupError,
    StaleWriteError,
    TierSetupError,
    TierUnavailableError,
)
from penstock.tiered.providers.contract import ObjectBytes, ObjectInfo, ObjectMissingError
from penstock.tiered.providers.memory import exactly
from penstock.tiered.providers.s3_uploads import open_uploads

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import S3Store

MULTIPART_SIZE: Final = 32 << 20
"""Larger objects are sent in parts, which cannot be made conditional: their names are unique."""
PART_SIZE: Final = 8 << 20
_PIECE_SIZE: Final = 64 << 10
_TIMEOUT_S: Final = 60.0
_RETRIES: Final = 5
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT")
_ALLOW_HTTP: Final = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
"""Read here, too: options for the client that are given replace all that obstore reads itself."""
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


class ObjectStoreProvider:
    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        try:
            import obstore
            from obstore import exceptions as errors
        except ImportError as error:
            raise SetupError("object stores need obstore: pip install 'penstock[s3]'") from error
        self._obstore: Final = obstore
        self.url: Final = url
        self._missing: Final = (errors.NotFoundError, FileNotFoundError)
        self._exists: Final = errors.AlreadyExistsError
        self._stale: Final = (errors.PreconditionError, errors.NotModifiedError)
        self._denied: Final = (
            errors.PermissionDeniedError,
            errors.UnauthenticatedError,
            errors.InvalidPathError,
            errors.NotSupportedError,
        )
        self._any: Final = (errors.BaseError, OSError)
        self._options: Final = dict(options)
        self._store: Final = self._open(url, dict(options))

    def _open(self, url: str, options: dict[str, str]) -> S3Store:
        from obstore.store import from_url

        timeout = timedelta(seconds=float(options.pop("timeout_s", _TIMEOUT_S)))
        client: dict[str, object] = {"timeout": timeout, "connect_timeout": timedelta(seconds=10)}
        allow_http = options.pop("allow_http", "") or _from_environment(_ALLOW_HTTP)
        endpoint = options.get("endpoint", "") or _from_environment(_ENDPOINTS)
        if endpoint.startswith("http://") or _FLAGS.get(allow_http.lower(), False):
            client["allow_http"] = True
        retry = {
            "max_retries": int(options.pop("retries", str(_RETRIES))),
            "retry_timeout": timeout,
            "backoff": {"init_backoff": timedelta(milliseconds=50)},
        }
        config = {name: _FLAGS.get(value.lower(), value) for name, value in options.items()}
        try:
            opened = from_url(url, client_options=client, retry_config=retry, **config)  # type: ignore[call-overload]  # names depend on the store
        except (*self._any, ValueError, TypeError) as error:
            raise TierSetupError(f"{url}: {_sentence(error)}") from error
        return cast("S3Store", opened)

    def put_if_absent(self, key: str, data: bytes) -> None:
        with self._errors(key):
            if len(data) <= MULTIPART_SIZE:
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
                return
            if self.head(key) is not None:
                raise AlreadyExistsError(f"{self.url}: object {key!r} exists already")
            self._obstore.put(
                self._store, key, data, use_multipart=True, chunk_size=PART_SIZE, max_concurrency=4
            )

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        with self._errors(key, conditional=True):
            if expected is None:
                done = self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
            else:
                done = self._obstore.put(
                    self._store, key, data, mode=_read_version(expected), use_multipart=False
                )
            return _version(done["e_tag"], done["version"])

    def get(self, key: str) -> ObjectBytes:
        with self._errors(key):
            response = self._obstore.get(self._store, key)
            version = _version(response.meta["e_tag"], response.meta["version"])
            return ObjectBytes(bytes(response.bytes()), version)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        with self._errors(key):
            data = self._obstore.get_range(self._store, key, start=start, length=size)
            return exactly(bytes(data), size, self.url, key)

    def get_range_into(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview]
    ) -> None:
        """Reads the response piece by piece, so that memory holds it once."""
        filled = 0
        with self._errors(key):
            span = (start, start + size)
            response = self._obstore.get(self._store, key, options={"range": span})
            buffer = get_buffer()
            for piece in response.stream(min_chunk_size=_PIECE_SIZE):
                end = filled + len(piece)
                if end > size:
                    break
                buffer[filled:end] = memoryview(piece)
                filled = end
        if filled != size:
            exactly(b"", size, self.url, key)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._errors(key):
                meta = self._obstore.head(self._store, key)
        except ObjectMissingError:
            return None
        return ObjectInfo(key, meta["size"], round(meta["last_modified"].timestamp() * 1000))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Object stores list below whole parts of a key; other keys are left out here."""
        objects: list[ObjectInfo] = []
        directory = prefix.rpartition("/")[0]
        with self._errors(prefix):
            for page in self._obstore.list(self._store, directory or None):
                objects += [
                    ObjectInfo(
                        meta["path"], meta["size"], round(meta["last_modified"].timestamp() * 1000)
                    )
                    for meta in page
                    if meta["path"].startswith(prefix)
                ]
        return iter(sorted(objects))

    def delete(self, key: str) -> None:
        try:
            with self._errors(key):
                self._obstore.delete(self._store, key)
        except ObjectMissingError:
            return

    def remove_leftovers(self, before_ms: int) -> int:
        """Abort multipart uploads that began earlier: S3 keeps their parts without a limit."""
        uploads = open_uploads(self.url, self._options)
        return 0 if uploads is None else uploads.abort_begun_before(before_ms)

    def close(self) -> None:
        """Connections end with the process."""

    @contextmanager
    def _errors(self, key: str, *, conditional: bool = False) -> Iterator[None]:
        try:
            yield
        except self._missing as error:
            # A missing bucket is not a missing object, and a compare-and-set lost its object.
            if _is_bucket_missing(error):
                raise TierSetupError(f"{self.url}: there is no such bucket") from error
            if conditional:
                raise StaleWriteError(f"{self.url}: {key!r} was deleted") from error
            raise ObjectMissingError(self.url, key) from error
        except self._exists as error:
            if conditional:
                raise StaleWriteError(f"{self.url}: {key!r} was created already") from error
            raise AlreadyExistsError(f"{self.url}: object {key!r} exists already") from error
        except self._stale as error:
            raise StaleWriteError(f"{self.url}: another writer has changed {key!r}") from error
        except self._denied as error:
            raise TierSetupError(f"{self.url}: {_sentence(error)}") from error
        except self._any as error:
            if _is_bucket_missing(error):
                raise TierSetupError(f"{self.url}: there is no such bucket") from error
            raise TierUnavailableError(f"{self.url}: {_sentence(error)}") from error


def _from_environment(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _is_bucket_missing(error: BaseException) -> bool:
    """S3 and Google call it a bucket, Azure a container."""
    text = str(error)
    return "NoSuchBucket" in text or "ContainerNotFound" in text


def _version(e_tag: str | None, version: str | None) -> str:
    """S3 and Azure compare entity tags, Google Cloud Storage generations: both are kept."""
    return f"{e_tag or ''} {version or ''}"


def _read_version(text: str) -> UpdateVersion:
    e_tag, _, version = text.rpartition(" ")
    parsed: UpdateVersion = {}
    if e_tag:
        parsed["e_tag"] = e_tag
    if version:
        parsed["version"] = version
    return parsed


def _sentence(error: BaseException) -> str:
    """Return the first line; the rest is a dump of obstore's internal state."""
    return str(error).partition("\n")[0].strip()
