"""Waiting for what a server does behind its answers."""

from __future__ import annotations

import time

from penstock.adapter.topics.shard_name import build_storage_name
from penstock.node.node import Node

WAIT_S = 90.0


def wait_until_ended(node: Node, topic: str) -> None:
    """The answer to EndTxn comes when the outcome is decided; what it means follows behind it."""
    shard = build_storage_name(node.broker_cache.get_topic(topic).topic_id, 0)
    deadline = time.monotonic() + WAIT_S
    while node.handler.limits.stable_until(shard) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
