"""Every test here runs on the native extension and on the reference implementation."""

from __future__ import annotations

import os

import pytest

from penstock.codec import pure
from penstock.codec.select import Core, native_core


def twins() -> dict[str, Core]:
    found: dict[str, Core] = {"pure": pure}
    native = None if os.environ.get("PENSTOCK_PURE") == "1" else native_core()
    if native is not None:
        found["native"] = native
    return found


TWINS = twins()


@pytest.fixture(scope="session", params=TWINS)
def core(request: pytest.FixtureRequest) -> Core:
    return TWINS[request.param]


@pytest.fixture(scope="session")
def both() -> tuple[Core, Core]:
    """Return the pure and the native twin."""
    if "native" not in TWINS:
        pytest.skip("the native extension is not there")
    return TWINS["pure"], TWINS["native"]
