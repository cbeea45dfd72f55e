"""A Kafka client against a node: confluent-kafka writes, a Penstock store reads the same topic.

pip install confluent-kafka
python examples/kafka_client.py
"""

from __future__ import annotations

import tempfile

from confluent_kafka import Consumer, Producer

import penstock
from penstock.remote.server.node_server import Server
from penstock.settings import SERVE, merge_settings

WAIT_S = 60


def main() -> None:
    # `penstock serve` starts the same node; ports of 0 are free ones.
    settings = merge_settings(SERVE, {
        "server": {"port": 0, "http_port": 0},
        "kafka": {"port": 0},
        "broker": {"commit_log_file_size": 16 << 20},
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as data, Server(data, settings) as server:
        assert server.kafka is not None, "the Kafka front end needs the native extension"
        host, port = server.kafka.advertised
        kafka = {"bootstrap.servers": f"{host}:{port}"}

        with penstock.connect(f"127.0.0.1:{server.port}") as store:
            store.create_topic("orders", partitions=1)

            producer = Producer({**kafka, "log_level": 0})  # silent when the node stops
            for number in range(3):
                producer.produce("orders", b"order %d" % number, key=b"o-%d" % number)
            print("not delivered:", producer.flush(WAIT_S))

            consumer = Consumer({**kafka, "group.id": "billing", "auto.offset.reset": "earliest"})
            consumer.subscribe(["orders"])
            polled = [consumer.poll(WAIT_S) for _ in range(3)]
            consumer.commit(asynchronous=False)
            consumer.close()
            print("by Kafka:", [message.value() for message in polled if message is not None])

            # Records and groups are those of the store: any interface sees them.
            print("by Penstock:", [record.value for record in store.topic("orders")])
            print("lag of billing:", store.describe_group("billing").total_lag)


if __name__ == "__main__":
    main()
