"""What a person meets first: names to import, what objects show, `async with` on a store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import penstock
from penstock import aio
from penstock.remote.server.node_server import Server
from penstock.settings import SERVE, merge_settings


def test_objects_show_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with penstock.open(path) as store:
        assert repr(store) == f"<Store {str(path)!r}>"
        assert repr(store.namespace("other")) == f"<Store {str(path)!r} namespace='other'>"
        assert repr(store.create_topic("orders")) == "<Topic 'orders'>"
        with store.consumer("billing", ["orders"]) as consumer:
            assert repr(consumer) == "<Consumer 'billing' of orders>"
        assert repr(consumer) == "<Consumer 'billing' of orders closed>"


def test_a_policy_of_tiers_is_imported_from_the_package(tmp_path: Path) -> None:
    policy = penstock.TieringPolicy(local_retention_ms=60_000)
    with penstock.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", tiering=policy)
        assert topic.describe().config.tiering == policy


def test_a_store_is_opened_by_async_with_by_await_and_by_run(tmp_path: Path) -> None:
    async def enter() -> None:
        async with aio.open(tmp_path / "data") as store:
            topic = await store.create_topic("orders")
            await topic.write(b"3 apples")
            assert repr(store) == f"<AsyncStore {str(tmp_path / 'data')!r}>"
            assert repr(topic) == "<AsyncTopic 'orders'>"

    async def wait() -> list[str]:
        store = await aio.open(tmp_path / "data")
        async with store:
            return await store.topics()

    asyncio.run(enter())
    assert asyncio.run(wait()) == ["orders"]
    store = asyncio.run(aio.open(tmp_path / "data"))
    asyncio.run(store.close())


def test_a_connection_is_entered_by_async_with(tmp_path: Path) -> None:
    settings = merge_settings(
        SERVE,
        {
            "server": {"port": 0, "http_port": 0},
            "kafka": {"enabled": False},
            "broker": {"commit_log_file_size": 16 << 20},
        },
    )

    async def enter(address: str) -> list[str]:
        async with aio.connect(address) as store:
            await store.create_topic("orders")
            assert repr(store) == f"<AsyncStore {address!r}>"
            return await store.topics()

    with Server(str(tmp_path / "data"), settings) as server:
        assert asyncio.run(enter(f"127.0.0.1:{server.port}")) == ["orders"]
