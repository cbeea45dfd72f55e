"""aiomqtt, and the command line clients of Mosquitto."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import aiomqtt
import pytest
from tests.brokers.mqtt.serving import PATIENCE_S, port_of

from penstock.remote.server.node_server import Server

PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_aiomqtt_publishes_and_receives(server: Server, qos: int) -> None:
    async def work() -> list[bytes]:
        async with (
            aiomqtt.Client("127.0.0.1", port_of(server), identifier=f"a{qos}") as client,
            asyncio.timeout(PATIENCE_S),
        ):
            await client.subscribe(f"aio/{qos}", qos)
            for number in range(5):
                await client.publish(f"aio/{qos}", b"%d" % number, qos)
            found: list[bytes] = []
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                found.append(message.payload)
                if len(found) == 5:
                    return found
        raise AssertionError("the messages ended")

    assert asyncio.run(work()) == [b"%d" % number for number in range(5)]


@pytest.mark.skipif(PUB is None or SUB is None, reason="Mosquitto's clients are not installed")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_clients_publish_and_subscribe(server: Server, version: str, qos: str) -> None:
    assert PUB is not None
    assert SUB is not None
    address = ["-p", str(port_of(server)), "-V", version, "-q", qos]
    topic = f"mosquitto/{version}/{qos}"
    published = [PUB, *address, "-t", topic, "-m", "kept", "-r"]
    subprocess.run(published, check=True, timeout=PATIENCE_S)
    # The retained message shows that the subscription is there.
    command = [SUB, *address, "-t", topic, "-C", "2", "-i", f"sub-{version}-{qos}"]
    subscriber = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == b"kept\n"
        subprocess.run([PUB, *address, "-t", topic, "-m", "live"], check=True, timeout=PATIENCE_S)
        assert subscriber.stdout.readline() == b"live\n"
        assert subscriber.wait(PATIENCE_S) == 0
    finally:
        subscriber.kill()
        subscriber.wait(PATIENCE_S)
        if subscriber.stdout is not None:
            subscriber.stdout.close()
