"""Every test here runs on the native extension and on the reference implementation."""

from __future__ import annotations

import os

import pytest

from penstock.codec import pure
from penstock.codec.select import Core, native_core


def backends() -> dict[str, Core]:
    found: dict[str, Core] = {"pure": pure}
    native = None if os.environ.get("PENSTOCK_PURE") == "1" else native_core()
    if native is not None:
        found["native"] = native
    return found


BACKENDS = backends()


@pytest.fixture(scope="session", params=BACKENDS)
def core(request: pytest.FixtureRequest) -> Core:
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def both() -> tuple[Core, Core]:
    """Return the Python and the native backend."""
    if "native" not in BACKENDS:
        pytest.skip("the native extension is not there")
    return BACKENDS["pure"], BACKENDS["native"]
