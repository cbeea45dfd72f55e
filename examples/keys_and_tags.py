"""Lookups by key and by tag: the store's indexes answer, without a scan of the topic.

python examples/keys_and_tags.py
"""

from __future__ import annotations

import tempfile

import penstock


def main() -> None:
    with tempfile.TemporaryDirectory() as data, penstock.open(data) as store:
        orders = store.create_topic("orders", partitions=2, partitioner="key")
        orders.write(b"3 apples", key=b"o-17", tags=["eu", "fruit"])
        orders.write(b"1 lamp", key=b"o-18", tags=["us"])
        orders.write(b"4 apples", key=b"o-17", tags=["eu", "fruit"])
        orders.write_many([b"filler"] * 1_000)

        newest = orders.read_by_key(b"o-17")
        assert newest is not None
        print("newest of o-17:", newest.value)
        print("all of o-17:", [message.value for message in orders.query(b"o-17", limit=10)])
        print("tagged fruit:", [message.value for message in orders.read_by_tag("fruit")])

        # A deletion by key removes every record of the key from all reads; offsets stay.
        orders.delete_by_key(b"o-17")
        print("after the deletion:", orders.read_by_key(b"o-17"))
        print("records:", sum(1 for _ in orders))


if __name__ == "__main__":
    main()
