"""A disk whose power can be cut: an ext4 file system in a file, mounted as a loop device.

`cut_power` stops the file system where it is (`EXT4_IOC_SHUTDOWN` without a flush of its journal)
and mounts it again: what was synced is there, what was only in the page cache is lost.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

DEVICE_SIZE: Final = 384 << 20
_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = 2
_COMMAND_S: Final = 60.0
_FILL_SIZES: Final = (32 << 20, 1 << 20, 64 << 10, 4 << 10)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=_COMMAND_S)


def missing_for_devices(directory: Path) -> str:
    """Return why no such disk can be made here; empty: one can."""
    if os.geteuid() != 0:
        return "a disk whose power can be cut needs root"
    if shutil.which("mkfs.ext4") is None:
        return "the command `mkfs.ext4` is not installed"
    place = directory / "try-device"
    place.mkdir(parents=True)
    try:
        device = Device(directory / "try-device.img", place)
        (place / "lost").write_bytes(bytes(100))
        device.cut_power()
        is_lost = not (place / "lost").exists()
        device.close()
    except (subprocess.SubprocessError, OSError) as error:
        return f"a loop device cannot be used: {error}"
    finally:
        (directory / "try-device.img").unlink(missing_ok=True)
        with suppress(OSError):
            place.rmdir()
    return "" if is_lost else "the file system keeps what was not synced"


class Device:
    """`image` holds the file system, `place` is where it is mounted."""

    def __init__(self, image: Path, place: Path) -> None:
        self._image: Final = image
        self._place: Final = place
        with image.open("wb") as file:
            file.truncate(DEVICE_SIZE)
        _run("mkfs.ext4", "-q", "-F", str(image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self._place))

    def cut_power(self) -> None:
        """Lose what was not synced. No process may use the file system."""
        handle = os.open(self._place, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(handle)
        _run("umount", str(self._place))
        self._mount()

    def fill(self, name: str) -> None:
        """Leave no room, and write nothing for that."""
        handle = os.open(self._place / name, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            end = 0
            for size in _FILL_SIZES:
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(handle, end, size)
                        end += size
        finally:
            os.close(handle)

    def close(self) -> None:
        command = ["umount", "-l", str(self._place)]
        subprocess.run(command, check=False, capture_output=True, timeout=_COMMAND_S)
