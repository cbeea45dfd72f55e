"""Multipart uploads left unfinished by killed writers: S3 keeps their parts, and bills them.

obstore begins and ends such uploads, but does not list them. So these two requests are made here,
signed (AWS Signature Version 4) with the access key of the options or the environment. Without
one (an instance's role), nothing is listed: a lifecycle rule of the bucket does it then.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as ET

from penstock.errors import TierSetupError, TierUnavailableError
from penstock.tiered.object_names import is_penstock_object

_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_TIMEOUT_S: Final = 60.0
_PAGES_MAX: Final = 1000


class UnfinishedUpload(NamedTuple):
    key: str
    id: str
    begun_ms: int


class S3Uploads:
    def __init__(self, url: str, options: Mapping[str, str], access_key: str, secret: str) -> None:
        parts = urlsplit(url)
        self._url: Final = url
        self._bucket: Final = parts.netloc
        self._prefix: Final = parts.path.strip("/")
        self._access_key: Final = access_key
        self._secret: Final = secret
        self._token: Final = _setting(options, "session_token") or _setting(options, "token")
        self._region: Final = (
            _setting(options, "region") or _setting(options, "default_region") or "us-east-1"
        )
        endpoint = _setting(options, "endpoint") or _setting(options, "endpoint_url")
        if endpoint:
            self._endpoint, self._path = urlsplit(endpoint), f"/{self._bucket}"
        else:
            host = f"https://{self._bucket}.s3.{self._region}.amazonaws.com"
            self._endpoint, self._path = urlsplit(host), ""

    def abort_begun_before(self, before_ms: int) -> int:
        """Abort the unfinished uploads of ours that are older; return how many."""
        old = [
            upload
            for upload in self.unfinished()
            if upload.begun_ms < before_ms and is_penstock_object(upload.key.rpartition("/")[2])
        ]
        for upload in old:
            self._request("DELETE", f"/{quote(upload.key)}", {"uploadId": upload.id})
        return len(old)

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        query = {"uploads": "", "prefix": f"{self._prefix}/" if self._prefix else ""}
        for _ in range(_PAGES_MAX):
            root = ET.fromstring(self._request("GET", "", query))
            for element in root.iterfind("{*}Upload"):
                begun = datetime.fromisoformat(element.findtext("{*}Initiated") or "")
                yield UnfinishedUpload(
                    element.findtext("{*}Key") or "",
                    element.findtext("{*}UploadId") or "",
                    round(begun.timestamp() * 1000),
                )
            if root.findtext("{*}IsTruncated") != "true":
                return
            query["key-marker"] = root.findtext("{*}NextKeyMarker") or ""
            query["upload-id-marker"] = root.findtext("{*}NextUploadIdMarker") or ""

    def _request(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        path = f"{self._path}{path}" or "/"
        joined = "&".join(
            f"{quote(name, safe='')}={quote(value, safe='')}"
            for name, value in sorted(query.items())
        )
        is_https = self._endpoint.scheme == "https"
        connect = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        connection = connect(self._endpoint.netloc, timeout=_TIMEOUT_S)
        try:
            headers = self._signed(method, path, joined)
            connection.request(method, f"{path}?{joined}", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise TierUnavailableError(f"{self._url}: {error}") from error
        finally:
            connection.close()
        if answer.status == 404 and method == "DELETE":
            return b""  # ended meanwhile
        if answer.status >= 500:
            raise TierUnavailableError(f"{self._url}: status {answer.status}")
        if answer.status >= 300:
            raise TierSetupError(f"{self._url}: listing unfinished uploads: {answer.status}")
        return body

    def _signed(self, method: str, path: str, query: str) -> dict[str, str]:
        now = datetime.now(UTC)
        headers = {
            "host": self._endpoint.netloc,
            "x-amz-content-sha256": _EMPTY,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        if self._token:
            headers["x-amz-security-token"] = self._token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{_EMPTY}"
        scope = f"{now:%Y%m%d}/{self._region}/s3/aws4_request"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashed))
        key = f"AWS4{self._secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        del headers["host"]  # the client sends it by itself
        return headers


def open_uploads(url: str, options: Mapping[str, str]) -> S3Uploads | None:
    """Return what lists unfinished uploads, if the URL is one of S3 and there is an access key."""
    access_key = _setting(options, "access_key_id")
    secret = _setting(options, "secret_access_key")
    if urlsplit(url).scheme not in ("s3", "s3a") or not access_key or not secret:
        return None
    return S3Uploads(url, options, access_key, secret)


def _setting(options: Mapping[str, str], name: str) -> str:
    """Return an option by either of its names, or as the environment has it."""
    value = options.get(name) or options.get(f"aws_{name}")
    return value or os.environ.get(f"AWS_{name.upper()}", "")
