"""Settings of the whole test run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=50, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=2_000, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_report_header() -> str:
    """Say which twin of the byte loops this run tests."""
    try:
        from penstock.engine.segment.twin import IS_NATIVE
    except ImportError:
        return "penstock: twins not there yet"
    return f"penstock: {'native extension' if IS_NATIVE else 'pure twins'}"
