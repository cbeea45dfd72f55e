"""Opens a store in a process of its own, and prints what that took.

    python -m bench.start_cases DIRECTORY     seconds, CPU seconds, bytes of memory

The clock runs from the start of the imports. Memory is what the process has for itself: pages of
mapped files, which the kernel takes back when it needs them, do not count.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from pathlib import Path


def own_memory() -> int:
    found = re.search(r"Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    cpu, started = time.process_time(), time.perf_counter()
    import penstock

    with penstock.open(sys.argv[1]):
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        gc.collect()
        print(seconds, cpu_seconds, own_memory())


if __name__ == "__main__":
    main()
