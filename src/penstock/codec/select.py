"""Picks the codec backend: the native extension, or the reference implementation in Python.

The extension is optional: without a Rust tool chain the package installs and runs all the same.
`PENSTOCK_PURE=1` forces the reference, for tests and to tell which of the two has a fault.
"""

from __future__ import annotations

import os

from penstock.codec.append_interface import Appender
from penstock.codec.interface import Core, NativeOnly
from penstock.errors import NotSupportedError

__all__ = ["IS_NATIVE", "Appender", "Core", "core", "native_core", "native_only"]


def native_core() -> Core | None:
    """Return the native backend, or None where it was not built."""
    try:
        import penstock._native as native
    except ImportError:
        return None
    return native


def native_only() -> NativeOnly:
    """Return the functions without a reference implementation, which network front ends call."""
    try:
        import penstock._native as native
    except ImportError:
        raise NotSupportedError(
            "serving network clients needs the native extension; install a Rust tool chain and "
            "install Penstock again"
        ) from None
    return native


def _choose() -> tuple[Core, bool]:
    native = None if os.environ.get("PENSTOCK_PURE") == "1" else native_core()
    if native is not None:
        return native, True
    # Here, so that readers in Spark's workers do not load what they do not run.
    from penstock.codec import pure

    return pure, False


core, IS_NATIVE = _choose()
