"""A bridge between two Mosquittos: both directions, restarts, and exactly one copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest
from tests.brokers.mqtt.mosquitto import BINARY, Mosquitto
from tests.brokers.mqtt.on_a_loop import on_a_loop

from penstock.brokers.mqtt.bridge.bridge import Bridge
from penstock.brokers.mqtt.client import (
    ClientOptions,
    MqttClient,
    PacketChannel,
    open_channel,
)
from penstock.settings.mqtt_bridge_section import (
    MqttBridgeConnection,
    MqttBridgeSettings,
    MqttBridgeTopic,
)

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(BINARY is None, reason="mosquitto is not installed"),
]
WAIT_S = 60.0
COUNT = 200
SETTINGS = MqttBridgeSettings(retry_min_ms=20, retry_max_ms=200)


def topic(
    direction: Literal["in", "out", "both"], local_prefix: str = "", remote_prefix: str = ""
) -> MqttBridgeTopic:
    return MqttBridgeTopic(
        connection="b",
        filter="plant/#",
        direction=direction,
        qos=2,
        local_prefix=local_prefix,
        remote_prefix=remote_prefix,
    )


@asynccontextmanager
async def bridged(
    local: Mosquitto, remote: Mosquitto, *topics: MqttBridgeTopic, version: str = "5"
) -> AsyncIterator[Bridge]:
    """Run a bridge; yield it when it is connected."""

    async def open_local(options: ClientOptions) -> PacketChannel:
        options = ClientOptions(
            port=local.port,
            client_id="local-side",
            clean_start=False,
            session_expiry_s=3600,
            receive_maximum=options.receive_maximum,
        )
        return await open_channel(options)

    connection = MqttBridgeConnection(
        name="b",
        address=f"127.0.0.1:{remote.port}",
        version=version,  # type: ignore[arg-type] # plain text
    )
    bridge = Bridge(connection, list(topics), SETTINGS, open_local, "me")
    running = asyncio.ensure_future(bridge.run())
    try:
        await connected(bridge)
        yield bridge
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def connected(bridge: Bridge, connections: int = 1) -> None:
    async with asyncio.timeout(WAIT_S):
        while bridge.state != "connected" or bridge.counters.connections < connections:
            await bridge.changed.wait()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@on_a_loop
async def test_messages_go_out_and_come_in_under_their_names(tmp_path: Path, version: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    rules = [topic("out", local_prefix="here/"), topic("in", remote_prefix="there/")]
    with Mosquitto(tmp_path / "1") as local, Mosquitto(tmp_path / "2") as remote:
        async with (
            bridged(local, remote, *rules, version=version),
            MqttClient(ClientOptions(port=local.port, client_id="l")) as here,
            MqttClient(ClientOptions(port=remote.port, client_id="r")) as there,
        ):
            await there.subscribe("plant/#", qos=2)
            await here.subscribe("plant/#", qos=2)
            for qos in (0, 1, 2):
                await here.publish(f"here/plant/{qos}", b"out", qos=qos)
                message = await there.next_message(WAIT_S)
                assert (message.topic, message.qos) == (f"plant/{qos}", qos)
                await there.publish(f"there/plant/{qos}", b"in", qos=qos)
                message = await here.next_message(WAIT_S)
                assert (message.topic, message.qos) == (f"plant/{qos}", qos)


@on_a_loop
async def test_a_topic_in_both_directions_does_not_loop(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with Mosquitto(tmp_path / "1") as local, Mosquitto(tmp_path / "2") as remote:
        async with (
            bridged(local, remote, topic("both")) as bridge,
            MqttClient(ClientOptions(port=local.port, client_id="l")) as here,
            MqttClient(ClientOptions(port=remote.port, client_id="r")) as there,
        ):
            await here.subscribe("plant/#", qos=2)
            await there.subscribe("plant/#", qos=2)
            await here.publish("plant/1", b"a", qos=2)
            await there.publish("plant/2", b"b", qos=2)
            for client in (here, there):
                received = {(await client.next_message(WAIT_S)).topic for _ in range(2)}
                assert received == {"plant/1", "plant/2"}
            await here.publish("plant/end", b"", qos=2)
            for client in (here, there):
                assert (await client.next_message(WAIT_S)).topic == "plant/end"
            assert (bridge.counters.sent_out, bridge.counters.received_in) == (2, 1)


async def publish_all(client: MqttClient, *, qos: int) -> None:
    await asyncio.gather(
        *[client.publish("plant/1", b"%d" % number, qos=qos) for number in range(COUNT)]
    )


@on_a_loop
async def test_messages_that_were_published_while_the_remote_broker_was_away_arrive(
    tmp_path: Path,
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with (
        Mosquitto(tmp_path / "1") as local,
        Mosquitto(tmp_path / "2", is_persistent=True) as remote,
    ):
        options = ClientOptions(
            port=remote.port,
            client_id="r",
            clean_start=False,
            session_expiry_s=3600,
            reconnects=True,
        )
        async with (
            MqttClient(ClientOptions(port=local.port, client_id="l")) as here,
            MqttClient(options) as there,
            bridged(local, remote, topic("out")) as bridge,
        ):
            await there.subscribe("plant/#", qos=1)
            await asyncio.to_thread(remote.stop)
            await publish_all(here, qos=1)
            await asyncio.to_thread(remote.start)
            await connected(bridge, 2)
            received: set[int] = set()
            while len(received) < COUNT:
                received.add(int((await there.next_message(WAIT_S)).payload))
