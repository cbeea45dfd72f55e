"""One of several uploaders.

    python -m tests.tiered.upload.uploader_process STORE URL MODE [OPTIONS]

It says "ready", waits for a line, and then takes the shard again and again and uploads what the
tier lacks, until a rival takes it over or everything is there. MODE `next` takes the next free
epoch, MODE `same` the epochs 1, 2, 3 …, as every other process does. Each epoch that it won is a
line of its output.
"""

from __future__ import annotations

import sys

from tests.tiered.rig import SHARD

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import BusyError, StaleWriteError
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.upload.dispatcher import upload_shard

TURNS = 12


def tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> None:
    path, url, mode = sys.argv[1:4]
    options = dict(each.split("=", 1) for each in sys.argv[4:])
    config = TierConfig(url=url, options=options, chunk_size=2000, segment_size=8000)
    flat = CompositeFlatFile(config, SHARD)
    with ReadOnlyStore.open(path) as view:
        tell("ready")
        sys.stdin.readline()
        for turn in range(1, TURNS + 1):
            try:
                tell(flat.acquire(turn if mode == "same" else None))
                upload_shard(view, flat)
            except (StaleWriteError, BusyError):
                continue  # a rival was faster, or took it over


if __name__ == "__main__":
    main()
