"""A process that uses a store until it is killed, and says on its output what it did.

    python killed_store.py DIRECTORY SEED

Lines: `ready`, then `try OPERATION …` before each change and `did OPERATION …` when it was
acknowledged, with the same words behind.
"""

from __future__ import annotations

import os
import random
import sys

import penstock

NAMES = ("a", "b", "c")
KINDS = ("segment", "rocksdb")


def say(*words: str | int) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


class User:
    def __init__(self, store: penstock.Store, choose: random.Random) -> None:
        self.store = store
        self.choose = choose
        self.turn = 0

    def step(self) -> None:
        self.turn += 1
        name = self.choose.choice(NAMES)
        kind = self.choose.random()
        if name not in self.store:
            self.create(name)
        elif kind < 0.03:
            self.delete(name)
        elif kind < 0.06:
            self.grow(name)
        elif kind < 0.15:
            self.commit(name)
        else:
            self.write(name)

    def create(self, name: str) -> None:
        partitions = self.choose.randint(1, 3)
        say("try", "create", name, partitions)
        self.store.create_topic(name, partitions=partitions, storage=self.choose.choice(KINDS))
        say("did", "create", name, partitions)

    def delete(self, name: str) -> None:
        say("try", "delete", name)
        self.store.topic(name).delete()
        say("did", "delete", name)

    def grow(self, name: str) -> None:
        partitions = self.store.topic(name).partitions + 1
        if partitions > 5:
            return
        say("try", "grow", name, partitions)
        self.store.topic(name).alter(partitions=partitions)
        say("did", "grow", name, partitions)

    def write(self, name: str) -> None:
        topic = self.store.topic(name)
        partition = self.choose.randrange(topic.partitions)
        count = self.choose.randint(1, 20)
        value = f"{os.getpid()}-{self.turn}"
        say("try", "write", name, partition, count, value)
        records = [penstock.Record(value.encode(), key=value.encode())] * count
        places = topic.write_many(records, partition=partition)
        say("did", "write", name, partition, count, value, places[0].offset)

    def commit(self, name: str) -> None:
        partition = self.choose.randrange(self.store.topic(name).partitions)
        offset = self.choose.randrange(1_000_000)
        say("try", "commit", name, partition, offset)
        self.store.consumer("g", [name]).commit({(name, partition): offset})
        say("did", "commit", name, partition, offset)


def main(directory: str, seed: int) -> None:
    store = penstock.open(directory, engine__segment_size=20_000, engine__upkeep_interval_ms=20)
    user = User(store, random.Random(seed))
    say("ready")
    while True:
        user.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
