"""Which topics the members of a group read: the one part of their metadata that is looked into."""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.brokers.kafka.groups.machine import GroupMachine

CONSUMER: Final = "consumer"
_HEAD: Final = Struct(">hi")
_SIZE: Final = Struct(">h")


def subscribed_topics(machine: GroupMachine) -> frozenset[str]:
    """Return the topics that any member subscribes to; none for what is not a consumer's group."""
    members = machine.members
    if members.protocol_type != CONSUMER:
        return frozenset()
    found: set[str] = set()
    for member in members:
        for _, metadata in member.protocols[:1]:
            found |= parse_topics(metadata)
    return frozenset(found)


def parse_topics(metadata: bytes) -> set[str]:
    """Return the topics of a consumer's subscription; clients own the bytes, so they may be
    anything, and what cannot be read names no topics."""
    if len(metadata) < _HEAD.size:
        return set()
    _, count = _HEAD.unpack_from(metadata)
    at = _HEAD.size
    topics: set[str] = set()
    for _ in range(count):
        if at + _SIZE.size > len(metadata):
            return topics
        (size,) = _SIZE.unpack_from(metadata, at)
        at += _SIZE.size
        if size < 0 or at + size > len(metadata):
            return topics
        topics.add(metadata[at : at + size].decode("utf-8", "replace"))
        at += size
    return topics
