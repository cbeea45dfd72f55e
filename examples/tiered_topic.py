"""A topic whose old records move to a tier in a directory, and are read from there.

python examples/tiered_topic.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import penstock

COUNT = 4_000
WAIT_S = 60


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        settings = {
            # Any file system, or an object store: "s3://bucket/prefix" (extra `s3`).
            "tiering": {"url": f"file://{root}/tier", "upload_interval_ms": 50, "grace_ms": 0},
            # Small log files and short retention, so that the example ends within seconds.
            "broker": {"commit_log_file_size": 1 << 20, "file_reserved_time": 0.0001},
        }
        with penstock.open(f"{root}/data", **settings) as store:
            # A record may leave the log one millisecond after it was uploaded.
            policy = penstock.TieringPolicy(local_retention_ms=1)
            events = store.create_topic("events", tiering=policy)
            for _ in range(COUNT // 400):
                events.write_many([b"v" * 1_000] * 400)

            deadline = time.monotonic() + WAIT_S
            while not events.describe().partitions[0].log_start and time.monotonic() < deadline:
                store.run_upkeep()  # a node does this in the background

            partition = events.describe().partitions[0]
            print("the log begins after offset 0:", bool(partition.log_start))
            objects = [path for path in Path(root, "tier").rglob("*") if path.is_file()]
            print("the tier has objects:", bool(objects))
            # Reads find the records in the log or in the tier; callers see no difference.
            print("records:", sum(1 for _ in events))


if __name__ == "__main__":
    main()
