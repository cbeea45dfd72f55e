"""What does it cost to copy the records of a replicated shard to one follower, step by step?

    python -m bench.replica_copy --megabytes 128 --size 1000 --range 1048576

One process is leader and follower, without a network: the figures are its processor time, which
other work on the machine does not change much. `bench.cluster` measures whole clusters.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.engine.replication.message_codec import decode_message, encode_message
from penstock.engine.replication.messages import FetchError, FetchReply, ShardReply, StreamReply
from penstock.engine.segment.replica.replica_log import SegmentReplicaLog
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.meta.raft.network.messages import check_frame, frame_head, read_head
from penstock.platform.clock import SystemClock
from penstock.platform.local_disk import LocalDisk
from penstock.record import Flush, QueueKind, Record, ShardId

SHARD = ShardId("orders", 0)
GROUP = 100
STEPS = ("read", "encode", "frame", "check", "decode", "append")
T = TypeVar("T")


class Timer:
    """Adds up the processor time of each step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)

    def time(self, step: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.seconds[step] += time.process_time() - began
        return result


def open_store(path: str) -> tuple[SegmentStore, SegmentReplicaLog]:
    settings = SegmentSettings(background=False)
    store = SegmentStore.open(path, settings, disk=LocalDisk(), clock=SystemClock())
    store.create_shard(SHARD, QueueKind.SIMPLE, Flush.ASYNC)
    return store, store.replicas.logs(SHARD)[0]


def copy_all(source: SegmentReplicaLog, target: SegmentReplicaLog, size: int) -> Timer:
    timer = Timer()
    while (end := target.end) < source.end:
        data = timer.time("read", lambda end=end: source.read_range(end, size)[0])
        stream = StreamReply(end, 0, 0, data)
        reply = FetchReply(1, 1, (ShardReply(SHARD.name, FetchError.NONE, 1, (stream,)),))
        message = timer.time("encode", lambda reply=reply: encode_message(reply))
        head = timer.time("frame", lambda message=message: frame_head(message, 2))
        _, checksum = read_head(head, 0, 2, 1 << 30)
        timer.time("check", lambda m=message, c=checksum: check_frame(m, c))
        decoded = timer.time("decode", lambda message=message: decode_message(message))
        assert isinstance(decoded, FetchReply)
        got = decoded.shards[0].streams[0].data
        timer.time("append", lambda got=got: target.append_range(got))
    return timer


def measure(megabytes: int, value_size: int, size: int) -> dict[str, float]:
    """Return microseconds of processor time for each KB, by step."""
    root = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        leader, source = open_store(f"{root}/leader")
        follower, target = open_store(f"{root}/follower")
        for log in leader.replicas.logs(SHARD):
            log.begin_epoch(1)
        values = [Record(os.urandom(value_size)) for _ in range(GROUP)]
        for _ in range(megabytes * 1_000_000 // (value_size * GROUP)):
            leader.append_many(SHARD, values)
        timer = copy_all(source, target, size)
        leader.close()
        follower.close()
        return {name: seconds / megabytes * 1e3 for name, seconds in timer.seconds.items()}
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a value")
    parser.add_argument("--range", type=int, default=1 << 20, help="bytes of one reply")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rounds = [measure(given.megabytes, given.size, given.range) for _ in range(given.rounds)]
    print("| step | µs of CPU per KB |\n|---|---|")
    for step in STEPS:
        print(f"| {step} | {statistics.median(one[step] for one in rounds):.2f} |")
    total = statistics.median(sum(one.values()) for one in rounds)
    print(f"| all | {total:.2f} |")


if __name__ == "__main__":
    main()
