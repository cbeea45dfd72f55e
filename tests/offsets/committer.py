"""A process that commits offsets until it is killed, and says on its output what it did.

    python committer.py DIRECTORY SEED

Lines: `has KEY OFFSET` for what it found, `ready`, then `try KEY OFFSET` before each change and
`did KEY OFFSET` when it was acknowledged.
"""

from __future__ import annotations

import os
import random
import sys

from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.offsets.config import OffsetConfig
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId

GROUPS = ("g", "h")
SHARDS = tuple(ShardId("orders-1", number) for number in range(4))


def say(*words: str | int) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def change(manager: OffsetManager, choose: random.Random, offsets: dict[str, int]) -> None:
    group, shard = choose.choice(GROUPS), choose.choice(SHARDS)
    key = f"{group}/{shard.name}"
    kind = choose.random()
    offset = choose.randrange(10) if kind < 0.01 else offsets.get(key, 0) + 1
    say("try", key, offset)
    if kind < 0.01:
        manager.reset_offsets(group, {shard: OffsetCommit(Offset(offset))})
    elif kind < 0.03:
        manager.commit_offset(group, shard, offset, enable_cache=False)
    else:
        manager.commit_offset(group, shard, offset)
    offsets[key] = offset
    say("did", key, offset)


def main(directory: str, seed: int) -> None:
    choose = random.Random(seed)
    config = OffsetConfig(flush_interval_ms=choose.choice([1, 5, 20, 100]))
    meta = StandaloneMetaClient.open(f"{directory}/meta")
    manager = OffsetManager.open(f"{directory}/offsets", meta, config=config)
    offsets: dict[str, int] = {}
    for group in GROUPS:
        for shard, found in manager.get_offsets(group).items():
            offsets[f"{group}/{shard.name}"] = found.offset
    for key, offset in offsets.items():
        say("has", key, offset)
    say("ready")
    while True:
        change(manager, choose, offsets)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
