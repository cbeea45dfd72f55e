"""A directory that may not be read or written: every call says so, and nothing is deleted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, open_store, upload

from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig

AS_NOBODY = """
import os, sys
from penstock.errors import TierSetupError
from penstock.record import ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.providers.contract import remove_leftovers
from penstock.tiered.admin import collect_garbage, verify_tier
from penstock.tiered.config import TierConfig
import penstock.tiered.providers.posix
url, key, options = sys.argv[1], sys.argv[2], dict(each.split("=") for each in sys.argv[3:])
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
config = TierConfig(url=url, options=options, grace_ms=0)
opened = config.open
calls = {
    "open": opened,
    "get": lambda: opened().get(key),
    "get_range": lambda: opened().get_range(key, 0, 1),
    "head": lambda: opened().head(key),
    "list": lambda: list(opened().list()),
    "put": lambda: opened().put_if_absent("orders/0/new", b"1"),
    "replace": lambda: opened().compare_and_set("orders/0/manifest", b"1", None),
    "delete": lambda: opened().delete(key),
    "leftovers": lambda: remove_leftovers(opened(), 1 << 60),
    "acquire": lambda: CompositeFlatFile(config, ShardId("orders", 0)).acquire(),
    "verify": lambda: verify_tier(config),
    "gc": lambda: collect_garbage(config),
}
for name, call in calls.items():
    try:
        call()
    except TierSetupError as error:
        assert "Permission denied" in str(error) and url in str(error), error
        print(name, "refused")
    else:
        print(name, "done")
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that everybody may reach; those of pytest are the user's own."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def make_tier(root: Path, tmp_path: Path) -> TierConfig:
    tier = root / "tier"
    tier.mkdir()
    tier.chmod(0o755)  # made for others to read; what the store makes by itself is private
    config = TierConfig(url=f"file://{tier}", chunk_size=2000)
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        fill(store, 60)
        flat = CompositeFlatFile(config, SHARD)
        flat.acquire()
        upload(store, flat)
    return config


def prepared(config: TierConfig, *options: str) -> list[str]:
    flat = CompositeFlatFile(config, SHARD)
    flat.refresh()
    key = flat.manifest.prefix + next(iter(flat.manifest.chunks_from(0))).name
    return [sys.executable, "-c", AS_NOBODY, config.url, key, *options]


def run(command: list[str]) -> dict[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def content(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


READS = {"get", "get_range", "head", "list", "verify"}
WRITES = {"put", "replace", "delete", "acquire"}


def test_a_shard_that_may_not_be_looked_into_is_told(root: Path, tmp_path: Path) -> None:
    config = make_tier(root, tmp_path)
    before = content(root)
    directory = root / "tier" / "orders" / "0"
    command = prepared(config)
    directory.chmod(0)
    try:
        found = run(command)
    finally:
        directory.chmod(0o755)
    assert {name for name, what in found.items() if what == "refused"} == (
        READS | WRITES | {"leftovers", "gc"}
    )
    assert content(root) == before


def test_a_tier_that_may_only_be_read_is_read_and_otherwise_refused(
    root: Path, tmp_path: Path
) -> None:
    config = make_tier(root, tmp_path)
    orphan = root / "tier" / "orders" / "0" / f"{1:010}-{0:020}-{'0' * 12}.chunk"
    orphan.write_bytes(b"what nothing refers to")
    before = content(root)
    command = prepared(config)
    directories = [root / "tier", root / "tier" / "orders", orphan.parent]
    for each in directories:
        each.chmod(0o555)
    try:
        found = run(command)
    finally:
        for each in directories:
            each.chmod(0o755)
    assert {name for name, what in found.items() if what == "refused"} == WRITES | {"gc"}
    assert content(root) == before


@pytest.mark.parametrize("options", [(), ("create=false",)])
def test_a_directory_that_may_not_be_made_or_found_is_told(
    root: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    config = make_tier(root, tmp_path)
    command = prepared(config, *options)
    root.chmod(0o700 if os.geteuid() == 0 else 0)
    try:
        found = run(command)
    finally:
        root.chmod(0o755)
    assert set(found.values()) == {"refused"}
