"""Memory that the machine has in hand: so that the store is measured, and not the machine's host.

A virtual machine gets its memory from its host when a page is touched for the first time, and gives
pages back that nobody has used for a while. A run that fills the page cache as fast as the host
hands out pages measures the host: 0.4 to 0.7 GB/s on the machine of our figures, and a third of its
processors' time; pages that were in use just before cost a fifteenth of that.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

TAKEN_SIZE: Final = 2 << 30
"""About what the longest case writes."""


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
