"""The enumerations of the metadata, as tables of text.

The engines have enums for some of them. The meta service is a layer below the engines and must read
the values of older and newer nodes, so here they are text, checked when a command is applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

DEFAULT_NAMESPACE: Final = "default"

STORAGE_TYPES: Final = frozenset({"EngineMemory", "EngineRocksDB", "EngineSegment"})
STORAGE_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"memory": "EngineMemory", "rocksdb": "EngineRocksDB", "segment": "EngineSegment"}
)
_PLUGIN_STORAGE: Final = re.compile(r"plugin:[a-z][a-z0-9_-]{0,31}")
"""Engines of other packages, by the names of their entry points. Every node applies the same
commands, so that the metadata checks the form alone: not what is installed."""
PLUGIN_STORAGE_ROLE: Final = "plugin-storage"
"""A role of every node whose release accepts plugin storage types. All releases store the roles of
a node as they come, so that also nodes of older ones agree on which nodes have it."""
REPLICATION_ROLE: Final = "replication"
"""A role of every node whose release replicates shards: as long as one node lacks it, no topic has
more than one replica."""
HANDOVER_ROLE: Final = "handover"
"""A role of every node whose release knows the status `STOPPING`."""
REASSIGNMENT_ROLE: Final = "reassignment"
"""A role of every node whose release limits the rate at which reassigned shards are copied, and
changes the number of replicas of topics that exist."""
EPOCH_BUMP_ROLE: Final = "epoch-bump"
"""A role of every node whose release bumps the epoch of a producer at the end of a transaction: as
long as one node lacks it, none does."""
DATA_PEERS_ROLE: Final = "data-peers"
"""A role of every node whose release connects to the internal ports of nodes without the role
`meta`: as long as one node lacks it, only nodes with that role have one of several replicas."""
INTERNAL_LISTENER: Final = "internal"
"""Under this name a node without the role `meta` announces its internal port, among its listeners.
The members of the Raft groups have theirs in the membership."""
COPY_ANEW_ROLE: Final = "copy-anew"
"""A role of every node whose release lets the other replicas of a shard copy it anew after an
operator has elected a leader that lacks records."""
REPLICA_ORDER_ROLE: Final = "replica-order"
"""A role of every node whose release stores the replicas of a shard before a reassignment, and
restores their order when it is cancelled."""
LASTING_DRAIN_ROLE: Final = "lasting-drain"
"""A role of every node whose release lets a drained node drain on when it registers again."""
RACK: Final = "rack"
"""Under this name a node announces, among its listeners, on which rack it is. All releases store
listeners as they come."""
SYNC_FLUSH: Final = "SYNC_FLUSH"
FLUSH_MODES: Final = frozenset({"ASYNC_FLUSH", "SYNC_FLUSH"})
CLEANUPS: Final = frozenset({"delete", "compact", "compact,delete"})
PARTITIONERS: Final = frozenset({"round_robin", "key"})
QUEUE_KINDS: Final = frozenset({"SimpleCQ", "BatchCQ"})
QUEUE_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"simple": "SimpleCQ", "batch": "BatchCQ"}
)
UPLOADERS: Final = frozenset({"broker", "spark"})
STORAGE_LEVELS: Final = frozenset({"DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE"})
"""When a read goes to the tier; the names are RocketMQ's."""

ACTIVE: Final = "active"
DELETING: Final = "deleting"
LOST: Final = "lost"
"""Status of a shard whose nodes have come back without its records."""
MEMORY_STORAGE: Final = "EngineMemory"
"""Storage type of topics that are empty after every start of their node."""

OFFLINE: Final = "offline"
"""Status of a node that is gone, or fenced: it takes part in nothing until it registers again."""
ONLINE: Final = "online"
DRAINING: Final = "draining"
"""Status of a node that an operator empties: it gets no new shards, and others lead for it."""
STOPPING: Final = "stopping"
"""Status of a node that is about to stop in order: it keeps its replicas in sync, and leads only
what no other node can lead."""
NODE_STATUSES: Final = frozenset({ONLINE, OFFLINE, DRAINING, STOPPING})

SEGMENT_STEPS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "write": frozenset({"pre-seal", "sealed", "pre-delete", "unavailable"}),
        "pre-seal": frozenset({"write", "sealed", "pre-delete", "unavailable"}),
        "sealed": frozenset({"pre-delete", "unavailable"}),
        "pre-delete": frozenset({"deleting", "unavailable"}),
        "deleting": frozenset({"unavailable"}),
        "unavailable": frozenset({"write", "pre-seal", "sealed", "pre-delete", "deleting"}),
    }
)
"""From each status of a segment, those that may follow. A sealed segment is never written again:
`unavailable` remembers nothing, so whether it may return to `write` depends on its end."""

TOPIC_ID_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
)
"""RocketMQ's legal characters for a topic, without `%` and `|`: the store gives those a meaning."""
TOPIC_ID_SIZE_MAX: Final = 100
"""RocketMQ allows 127; what is left is for the partition and for companion queues."""


def storage_type(name: str) -> str | None:
    """Return the full name of a storage type given by name or alias, or None."""
    full = STORAGE_ALIASES.get(name, name)
    return full if full in STORAGE_TYPES or is_plugin_storage(full) else None


def is_plugin_storage(name: str) -> bool:
    return _PLUGIN_STORAGE.fullmatch(name) is not None
