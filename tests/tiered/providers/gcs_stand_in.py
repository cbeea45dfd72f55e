"""As much of Google Cloud Storage's XML interface as a tier uses, in memory, on loopback.

It stands in for the service: what it shows is that preconditions go by generations, and that every
call of ours is one of that interface. It checks no signatures.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_WHEN = "2026-01-01T00:00:00.000Z"


class GcsStandIn(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.generations = itertools.count(1_700_000_000_000_001)

    def options(self) -> dict[str, str]:
        account = {
            "gcs_base_url": f"http://127.0.0.1:{self.server_address[1]}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"service_account_key": json.dumps(account), "allow_http": "true"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: 40 ms for each answer
    server: GcsStandIn

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base
        """Quiet."""

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.server.lock:
            _, generation = self.server.objects.get(self._key(), (b"", 0))
            if wanted is not None and int(wanted) != generation:
                self._answer(412)
                return
            generation = next(self.server.generations)
            self.server.objects[self._key()] = (data, generation)
        self._answer(200, generation=generation)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in query:
            self._list(query.get("prefix", [""])[0])
            return
        found = self.server.objects.get(self._key())
        if found is None:
            self._answer(404)
            return
        data, generation = found
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, data, generation=generation)
            return
        first, last = (int(each) for each in asked.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        if not part:
            self._answer(416)
            return
        content = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self._answer(206, part, generation=generation, content_range=content)

    do_HEAD = do_GET  # noqa: N815 - names of the base

    def do_DELETE(self) -> None:
        with self.server.lock:
            found = self.server.objects.pop(self._key(), None)
        self._answer(404 if found is None else 204)

    def _list(self, prefix: str) -> None:
        bucket = f"{self._key()}/"
        with self.server.lock:
            found = {
                key.removeprefix(bucket): len(data)
                for key, (data, _) in sorted(self.server.objects.items())
                if key.startswith(bucket + prefix)
            }
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_WHEN}</LastModified>"
            f"<ETag>&quot;e&quot;</ETag><Size>{size}</Size></Contents>"
            for key, size in found.items()
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._answer(200, body.encode())

    def _answer(
        self, status: int, data: bytes = b"", *, generation: int = 0, content_range: str = ""
    ) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", formatdate(usegmt=True))
        if generation:
            self.send_header("ETag", '"the same for all"')
            self.send_header("x-goog-generation", str(generation))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def running_stand_in() -> Iterator[GcsStandIn]:
    server = GcsStandIn()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
