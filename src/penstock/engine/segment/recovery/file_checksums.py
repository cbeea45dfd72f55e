"""Checksums of small files that have none: RocketMQ's checkpoint and configuration, and the
sizes of the store's files.

They are taken when the store is closed, and kept in `penstock/checkpoint`. RocketMQ and people may
change these files afterwards: a difference says that one is not what Penstock left, not why.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.platform.disk import Disk

_CONFIG: Final = "config"
_SIZE_MAX: Final = 64 << 20
_FILES_MAX: Final = 64


def sums_of_small_files(disk: Disk, paths: StorePaths) -> dict[str, int]:
    """Return the checksum of each small file, by its path in the store's directory."""
    return dict(_checksums(disk, paths))


def _checksums(disk: Disk, paths: StorePaths) -> Iterator[tuple[str, int]]:
    for name in small_files(disk, paths):
        data = read_whole(disk, f"{paths.root}/{name}")
        if data is not None and len(data) <= _SIZE_MAX:
            yield name, zlib.crc32(data)


def small_files(disk: Disk, paths: StorePaths) -> list[str]:
    names = [path.removeprefix(f"{paths.root}/") for path in (paths.checkpoint, paths.properties)]
    config = f"{paths.root}/{_CONFIG}"
    kept = [name for name in disk.list(config) if not disk.is_directory(f"{config}/{name}")]
    return [*names, *(f"{_CONFIG}/{name}" for name in kept[:_FILES_MAX] if name.endswith(".json"))]
