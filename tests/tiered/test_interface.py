"""What other packages may import of tiers, and what a store without a tier loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import tiered

OPENED = """
import sys
import penstock
assert not any(name.startswith("penstock.tiered") for name in sys.modules)
penstock.open(sys.argv[1], broker__commit_log_file_size=16 << 20).close()
print(*sys.modules)
"""


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'TierReader'"):
        getattr(tiered, "TierReader")  # noqa: B009 the type checker knows that it is missing


def test_a_store_without_a_tier_loads_no_client_of_object_stores(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    modules = set(ran.stdout.split())
    assert "penstock.tiered.engine" in modules
    needless = {
        "obstore",
        "penstock.tiered.admin",
        "penstock.tiered.catalog.restore",
        "penstock.tiered.composite_flat_file",
        "penstock.tiered.maintenance.repair",
        "penstock.tiered.providers.object_store",
        "penstock.tiered.rocketmq.tier",
    }
    assert needless & modules == set()
