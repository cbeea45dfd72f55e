"""A log inside a program: write orders, read them as a consumer group, and resume after a restart.

python examples/embedded_log.py
"""

from __future__ import annotations

import tempfile

import penstock


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        # A data directory belongs to one process at a time; `penstock serve` shares one.
        with penstock.open(data) as store:
            orders = store.create_topic("orders", partitions=2, partitioner="key")
            for number in range(6):
                # Records with the same key go to the same partition, and stay in order there.
                orders.write(b"order %d" % number, key=b"customer %d" % (number % 2))

            with store.consumer("billing", ["orders"]) as consumer:
                for message in consumer.poll(max_records=4):
                    print("billed:", (message.value or b"").decode())
                consumer.commit()  # the group continues after these four
            print("lag:", store.describe_group("billing").total_lag)

        # The store is opened again, as after a restart: records and offsets are durable.
        with penstock.open(data) as store, store.consumer("billing", ["orders"]) as consumer:
            rest = sum(1 for _ in consumer)  # up to what is there now
            consumer.commit()
            print("after the restart:", rest)
            print("lag:", store.describe_group("billing").total_lag)


if __name__ == "__main__":
    main()
