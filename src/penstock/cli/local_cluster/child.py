"""Entry point of a node's process: `python -m penstock.cli.local_cluster.child PARENT serve …`.

The kernel sends it SIGTERM when its parent ends, also when the parent is killed: the node then
stops in order instead of serving on. Systems without this call leave the node running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from penstock.cli import main

_PR_SET_PDEATHSIG: Final = 1


def _end_with(parent: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        # The parent may have ended before the call above.
        if os.getppid() != parent:
            sys.exit(0)


if __name__ == "__main__":
    _end_with(int(sys.argv[1]))
    main(sys.argv[2:])
