"""Writes to a RocksDB engine until somebody kills it; says what it does, and what was done.

    python writer_to_kill.py DIRECTORY SEED

Every line on standard output is one JSON object. `begin` says what comes next; `done` that it
returned, and with which offset. What has begun and is not done may have happened or not.
"""

from __future__ import annotations

import json
import os
import random
import sys

from penstock.engine.contract import ShardConfig
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.record import Flush, Offset, Producer, Record, ShardId

SHARDS = {"async_0": ShardConfig(), "sync_0": ShardConfig(flush=Flush.SYNC)}
LARGE_VALUE_SIZE = 30_000


def batch(token: str, count: int) -> list[Record]:
    """Return the records of one write; some of them are so large that they go in pieces."""
    padding = bytes(LARGE_VALUE_SIZE) if count > 50 else b""
    return [
        Record(
            value=f"{token}/{n}/".encode() + padding,
            key=b"%d" % (n % 3),
            tags=("t", f"u{n % 2}"),
        )
        for n in range(count)
    ]


def say(**fields: str | int) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def run(directory: str, seed: int) -> None:
    choose = random.Random(seed)
    engine = RocksDBStorageEngine.open(directory)
    sequences = {}
    for name, config in SHARDS.items():
        engine.create_shard(ShardId.parse(name), config)
        sequences[name] = 0
    for number in range(1_000_000):
        name = choose.choice(list(SHARDS))
        shard = ShardId.parse(name)
        info = engine.shard_info(shard)
        action = choose.random()
        if action < 0.75:
            count = 100 if action < 0.05 else choose.randint(1, 20)
            token = f"{seed}.{number}"
            say(begin="write", shard=name, token=token, count=count, sequence=sequences[name])
            producer = Producer(seed, 0, sequences[name])
            written = engine.batch_write(shard, batch(token, count), producer=producer)
            sequences[name] += count
            say(done="write", shard=name, first=written.first)
        elif action < 0.95 and info.latest > info.earliest:
            offset = choose.randrange(info.earliest, info.latest)
            say(begin="delete", shard=name, offset=offset)
            engine.delete_by_offset(shard, Offset(offset))
            say(done="delete", shard=name)
        elif info.latest - info.earliest > 300:
            offset = choose.randrange(info.earliest, info.latest - 100)
            say(begin="delete_before", shard=name, offset=offset)
            engine.delete_records_before(shard, Offset(offset))
            say(done="delete_before", shard=name)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
