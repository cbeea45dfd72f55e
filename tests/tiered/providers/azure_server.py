"""Microsoft's emulator of Azure Blob Storage on loopback, when it can be found."""

from __future__ import annotations

import base64
import hmac
import http.client
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Final, NamedTuple

ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""What every emulator has, and no account."""
_VERSION: Final = "2021-08-06"


class AzureServer(NamedTuple):
    port: int

    def options(self) -> dict[str, str]:
        return {
            "account_name": ACCOUNT,
            "account_key": KEY,
            "endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
        }

    def create_container(self, name: str) -> None:
        date = formatdate(usegmt=True)
        signed = (
            f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")
        headers = {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
            assert connection.getresponse().status == 201
        finally:
            connection.close()


def find_azurite() -> str | None:
    """Return the program: `PENSTOCK_AZURITE`, or on the PATH."""
    return os.environ.get("PENSTOCK_AZURITE") or shutil.which("azurite-blob")


@contextmanager
def running_azurite(program: str) -> Iterator[AzureServer]:
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(
        [program, "--blobPort", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        listening = next((one for one in process.stdout if "successfully listens" in one), None)
        assert listening is not None, "the emulator ended at once"
        yield AzureServer(int(listening.strip().rstrip("/").rpartition(":")[2]))
    finally:
        process.terminate()
        process.communicate(timeout=60)
