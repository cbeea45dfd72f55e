"""Files and directories of a store are its user's alone; a program's umask stays as it is."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.meta.state.model import TieringPolicy


def modes(root: Path) -> dict[str, int]:
    found = {".": stat.S_IMODE(root.stat().st_mode)}
    for path in root.rglob("*"):
        found[str(path.relative_to(root))] = stat.S_IMODE(path.lstat().st_mode)
    return found


def is_private(root: Path) -> list[str]:
    """Return what other users could read, by its own mode."""
    return [f"{name}: {mode:o}" for name, mode in modes(root).items() if mode & 0o077]


def use(store: penstock.Store) -> None:
    for kind in ("memory", "rocksdb", "segment"):
        store.create_topic(kind, storage=kind, flush="sync").write(b"secret", key=b"k", tags=["t"])
    tiered = store.create_topic("tiered", tiering=TieringPolicy(upload_interval_ms=1))
    tiered.write_many([b"secret"] * 100)
    with store.consumer("readers", ["segment"]) as consumer:
        consumer.poll(1)
        consumer.commit()
    store.run_upkeep()


@pytest.fixture(autouse=True)
def _open_mask() -> object:
    before = os.umask(0o000)
    yield None
    os.umask(before)


def test_an_embedded_store_makes_private_files_and_leaves_the_umask_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(data) as store:
        use(store)
        made = tmp_path / "other"
        made.touch()
        assert stat.S_IMODE(made.stat().st_mode) == 0o666, "the program's own files are its own"
        directories = {name: mode for name, mode in modes(data).items() if (data / name).is_dir()}
        assert set(directories.values()) == {0o700}
    assert is_private(data) == []


def test_a_server_makes_nothing_that_others_can_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--data", str(data), "--port", "0", "--http-port", "0"]
    options += ["--set", "kafka.enabled=false", "--set", f"broker.commit_log_file_size={16 << 20}"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from penstock.cli import main; main()", "serve", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    ending = threading.Timer(100, process.kill)
    ending.start()
    try:
        assert process.stdout is not None
        greeting = ""
        for line in process.stdout:
            greeting += line
            if "Ctrl-C" in line:
                break
        address = re.search(r"storage API +(\S+)", greeting)
        assert address is not None
        with penstock.connect(address[1]) as store:
            use(store)
        assert is_private(data) == []
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        ending.cancel()


def test_a_tier_in_a_directory_for_several_users_stays_theirs(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    with penstock.open(tmp_path / "data", tiering__url=f"file://{shared}") as store:
        use(store)
    found = modes(shared)
    assert len(found) > 2
    assert all(mode & 0o040 and not mode & 0o007 for mode in found.values())
