"""A machine that has done with what came before: so that the store is measured, and nothing else.

A virtual machine gets its memory from its host when a page is touched for the first time, and gives
pages back that nobody has used for a while. A run that fills the page cache as fast as the host
hands out pages measures the host: 0.4 to 0.7 GB/s on the machine of our figures, and a third of its
processors' time; pages that were in use just before cost a fifteenth of that.

And a case that wrote gigabytes leaves the kernel work for some seconds: discarding the blocks of
deleted files, giving memory back.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Final

TAKEN_SIZE: Final = 2 << 30
"""About what the longest case writes."""
_LOOK_S: Final = 0.5
_QUIET_LOOKS: Final = 3
_QUIET_SHARE: Final = 0.04
_LOOKS_MAX: Final = 40


def settle() -> None:
    """Let the device have what was written before, the kernel its rest, the machine its memory."""
    os.sync()
    quiet = 0
    for _ in range(_LOOKS_MAX):
        quiet = quiet + 1 if busy_share(_LOOK_S) <= _QUIET_SHARE else 0
        if quiet == _QUIET_LOOKS:
            break
    take_memory()


def busy_share(seconds: float) -> float:
    """Return how much of the processors' time was used, by anybody, while so much time passed."""
    before = _processor_times()
    time.sleep(seconds)
    idle, total = (now - then for now, then in zip(_processor_times(), before, strict=True))
    return 1 - idle / total if total else 0.0


def _processor_times() -> tuple[int, int]:
    """Idle and all of the processors' time since the start; (0, 0) where nobody says."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return 0, 0
    times = [int(each) for each in statistics.read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def take_memory(size: int = TAKEN_SIZE) -> float:
    """Touch so much memory, half of what is free at most, and let it go, for the next one to use;
    return how fast the machine handed it out, in bytes/s."""
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = max(mmap.PAGESIZE, min(size, free // 2) // mmap.PAGESIZE * mmap.PAGESIZE)
    started = time.perf_counter()
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
    return size / (time.perf_counter() - started)
