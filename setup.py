"""Builds the optional native extension; everything else is declared in pyproject.toml.

Without the crate, without a Rust tool chain, or with PENSTOCK_PURE=1 the package is pure Python.
A crate that does not compile is a warning, unless PENSTOCK_NATIVE=required makes it an error.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools_rust import Binding, RustExtension

CRATE = Path(__file__).parent / "native" / "Cargo.toml"


def native_extensions() -> list[RustExtension]:
    required = os.environ.get("PENSTOCK_NATIVE") == "required"
    if os.environ.get("PENSTOCK_PURE") == "1" or not CRATE.exists():
        return []
    if shutil.which("cargo") is None and not required:
        print("penstock: cargo was not found; installing the pure-Python store")
        return []
    return [
        RustExtension(
            "penstock._native",
            path="native/Cargo.toml",
            binding=Binding.PyO3,
            py_limited_api=True,
            debug=False,
            optional=not required,
        )
    ]


extensions = native_extensions()
setup(
    rust_extensions=extensions,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if extensions else {},
    zip_safe=False,
)
