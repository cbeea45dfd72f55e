"""Which topics the members of a group read."""

from __future__ import annotations

from penstock.groups.consumer_protocol import CONSUMER, decode_subscription
from penstock.groups.state_machine import GroupMachine


def subscribed_topics(machine: GroupMachine) -> frozenset[str]:
    """Return the topics that any member subscribes to; none for what is not a consumer's group."""
    members = machine.members
    if members.protocol_type != CONSUMER:
        return frozenset()
    topics: set[str] = set()
    for member in members:
        for _, metadata in member.protocols[:1]:
            topics.update(decode_subscription(metadata).topics)
    return frozenset(topics)
